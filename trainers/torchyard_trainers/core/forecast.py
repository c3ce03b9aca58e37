"""What a step of a job will take of one rank's memory, told without a GPU: the step is made with tensors of no content.

Every allocation of a real step happens, in a world of ranks of which this process is one, but a tensor is only a shape
and a type (FakeTensorMode) and a collective only a call. Workloads whose code looks at numbers, such as rollouts of
environments, make a real step on the CPU instead. Known to differ from a GPU: its allocator's gaps, workspaces of its
libraries and a context, for which `room_on` leaves space; kernels of attention with other temporaries.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import torch
from torch import distributed, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._pytree import tree_leaves

from torchyard_trainers.core.batching import split
from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.memory import IN_TENSORS
from torchyard_trainers.core.order import samples_of_step
from torchyard_trainers.core.parallel import SHARDED, mesh_of, spread
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.step import accumulate
from torchyard_trainers.core.workload import MicroBatch, Session, Terms, Workload
from torchyard_trainers.core.world import World

CPU = torch.device("cpu")
GIB = 1024**3
# A CUDA context, and the buffers of a NCCL communicator (measured by others on H100; both are outside the allocator).
CONTEXT_BYTES = GIB // 2
COMMUNICATOR_BYTES = GIB // 2


class Usage(NamedTuple):
    """Bytes of one rank at the moment when it needs most."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int  # kept for the backward pass, and what is there only for a moment
    buffers: int  # of collectives: gathered parameters, gradients on their way
    host: int = 0  # of parameters, gradients and optimizer, what is kept in host memory
    peak: str = "forward pass"  # when that is: or `backward pass`, or `update`

    @property
    def total(self) -> int:
        """On the device."""
        return self.parameters + self.gradients + self.optimizer + self.activations + self.buffers - self.host


def room_on(memory: int, world_size: int, fraction: float = 1.0) -> int:
    """Give what tensors may take of a GPU with `memory` bytes, of which a rank is held to `fraction`."""
    left = memory - CONTEXT_BYTES - (COMMUNICATOR_BYTES if world_size > 1 else 0)
    return int(IN_TENSORS * min(left, fraction * memory))


@contextmanager
def imagined_world(size: int, local_size: int) -> Iterator[World]:
    """Be rank 0 of a gang that is not there: its collectives return at once."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        yield World(0, size, 0, CPU, grouped=True, local_size=local_size)
    finally:
        distributed.destroy_process_group()


def forecast(
    make: Callable[[], Workload],
    world: World,
    strategy: str,
    *,
    settings: Parallelism,
    precision: str,
    micro_batch: int,
    real: bool,
) -> Usage:
    """Give what a step takes at most once there is optimizer state; the first step of a job has none yet.

    Args:
        make: gives the workload; its own tensors have no content either.
        world: from `imagined_world`, or a real one.
        strategy: resolved.
        settings: of activation checkpointing and sharding.
        precision: `fp32`, `bf16` or `fp16`.
        micro_batch: samples of one forward pass.
        real: make the step with real numbers, not with shapes only.

    Raises:
        LooksAtNumbersError: the workload needs real numbers.
    """
    mode: AbstractContextManager[Any] = nullcontext() if real else FakeTensorMode()
    mesh = mesh_of(strategy, world) if strategy in SHARDED else None
    try:
        with mode, warnings.catch_warnings(action="ignore"):
            return _measure(
                make(),
                world,
                strategy,
                mesh=mesh,
                settings=settings,
                precision=precision,
                size=micro_batch,
                real=real,
            )
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise LooksAtNumbersError(str(error)) from error


class LooksAtNumbersError(Exception):
    """A step depends on more than shapes."""


def _measure(
    work: Workload,
    world: World,
    strategy: str,
    *,
    mesh: DeviceMesh | None,
    settings: Parallelism,
    precision: str,
    size: int,
    real: bool,
) -> Usage:
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed._tools.mem_tracker import MemTracker

    sharded = strategy in SHARDED
    # fp16 takes what bf16 does, and its scaler would look at numbers.
    half = Precision("bf16" if precision == "fp16" else precision, CPU, sharded=sharded)
    # Offloaded parts are counted where they would be without; compiled blocks need less.
    plain = msgspec.structs.replace(settings, cpu_offload=False, compile=False)
    model = work.build()
    # A copy of ddp's own would hold what one process does, and buckets; they are added below.
    as_if = strategy if sharded else "single"
    parallel = spread(model, work.blocks(model), as_if, settings=plain, precision=half, world=world, mesh=mesh)
    reporter = Reporter(None, rank=0, local_rank=0, round_number=0)
    session = Session(parallel, half, world, reporter, size)
    optimizer = work.optimizer(model.parameters())
    for group in optimizer.param_groups:  # one parameter after the other: what a fused update takes
        group["foreach"], group["fused"] = False, False
    tracker: Any = _of_the_whole(FSDPMemTracker)(model, optimizer) if sharded else _of_the_whole(MemTracker)()
    kept = [leaf for leaf in tree_leaves(work.state()) if isinstance(leaf, torch.Tensor)]
    if sharded:  # its `track_external` does nothing
        tracker.track_inputs((kept,))
    else:
        tracker.track_external(model, optimizer, *kept)
    slots = split(work.global_batch, world.size, world.rank, size)
    accumulates = len(slots) > 1
    # The last micro-batch finds gradients there. Zeros stand in for those of all before it, unless passes differ: a
    # sharded model keeps gradients of whole parameters until the last one, and who looks at numbers may play a rollout
    # in the first.
    alike = not (sharded or real)
    slots = slots[-1:] if alike or not accumulates else [slots[0], slots[-1]]
    ids = samples_of_step(0, work.global_batch)
    buckets = _buckets(model) if strategy == "ddp" and world.size > 1 else 0

    def loss(session: Session, batch: MicroBatch) -> Terms:
        tracker.reset_mod_stats()  # it refuses a second pass through a sharded module that it has seen
        return work.loss(session, batch)

    seen: Any = SimpleNamespace(loss=loss, global_batch=work.global_batch)
    with tracker:
        _fill_with_zeros(model)
        optimizer.step()  # there is optimizer state from here on
        if not (alike and accumulates):
            optimizer.zero_grad(set_to_none=True)
        tracker.forget()
        accumulate(seen, session, ids, slots)
        half.clip(model, optimizer, work.max_grad_norm)
        optimizer.step()
    snapshot = tracker.get_tracker_snapshot("peak")[CPU]
    return _usage(snapshot, buckets, offloaded=settings.cpu_offload)._replace(peak=tracker.moment)


def _fill_with_zeros(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None


def _of_the_whole(tracker: type[Any]) -> type[Any]:
    """Make a tracker that can begin anew, and knows when the peak was, and takes networks that do not learn.

    It leaves out the peaks of modules, which take most of its time.
    """
    track, before_pass = attrgetter("_track_module_params_and_buffers", "_pre_fw_hook")(tracker)

    def update(self: Any, _state: object) -> None:
        for device, now in self._curr_mem_snap.items():
            if self._peak_mem.get(device, 0) < now["Total"]:
                self._peak_mem[device] = now["Total"]
                self._peak_mem_snap[device] = dict(now)
                in_pass = "backward pass" if self._mod_tracker.is_bw else "forward pass"
                self.moment = "update" if self._in_opt else in_pass

    def forget(self: Any) -> None:
        self._peak_mem.clear()
        self._peak_mem_snap.clear()

    def count(self: Any, module: nn.Module, install_grad_hooks: bool = True) -> tuple[int, int]:
        learning = [each.requires_grad for each in module.parameters()]
        if learning and not any(learning):  # a frozen copy is part of the workload's state, and counted there
            return 0, 0
        sizes: tuple[int, int] = track(self, module, install_grad_hooks and all(learning))
        return sizes

    def enter(self: Any, module: nn.Module, inputs: Any) -> None:
        if not self._mod_tracker.is_bw and module in self.memory_tracking:
            del self.memory_tracking[module]  # or it refuses a second pass: a rollout has one for each of its times
        before_pass(self, module, inputs)

    replaced = {"_update_peak_stats": update, "forget": forget}
    replaced |= {"_track_module_params_and_buffers": count, "_pre_fw_hook": enter}
    return type(tracker.__name__, (tracker,), replaced)


# The trackers' kinds of memory, by name.
_KINDS = {
    "parameters": ("PARAM", "SHARDED_PARAM"),
    "gradients": ("GRAD", "SHARDED_GRAD", "UNSHARDED_GRAD"),
    "optimizer": ("OPT",),
    "buffers": ("UNSHARDED_PARAM", "ALL_GATHER", "REDUCE_SCATTER"),
}


def _usage(snapshot: dict[Any, int], buckets: int, *, offloaded: bool) -> Usage:
    found = {getattr(kind, "name", ""): size for kind, size in snapshot.items()}
    sizes = {name: sum(found.pop(kind, 0) for kind in kinds) for name, kinds in _KINDS.items()}
    found.pop("", None)  # the total
    # What is not in use at the moment of most need; gathered parameters and gradients on their way are on the device.
    host = sizes["parameters"] + sizes["gradients"] + sizes["optimizer"] if offloaded else 0
    return Usage(**sizes | {"buffers": sizes["buffers"] + buckets}, activations=sum(found.values()), host=host)


def _buckets(model: nn.Module) -> int:
    """Give the bytes of DDP's buckets, in which gradients are reduced and stay."""
    return sum(each.numel() * each.element_size() for each in model.parameters() if each.requires_grad)
