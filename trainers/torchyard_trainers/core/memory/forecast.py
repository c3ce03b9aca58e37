"""Forecast of one rank's memory in a training step, without a GPU: the step runs with fake tensors.

Every allocation of a real step happens, in a simulated world of which this process is one rank, but a tensor is only a
shape and a type (FakeTensorMode), and a collective does nothing. Workloads whose code reads values, such as rollouts
of environments, run a real step on the CPU instead. Known differences from a GPU: fragmentation, library workspaces
and the CUDA context, for which `room_on` leaves space; attention kernels with other temporaries.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple

import msgspec
import torch
from torch import distributed, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._pytree import tree_leaves

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.data.packing import packing_of
from torchyard_trainers.core.device import as_on_gpu, as_shapes, for_memory
from torchyard_trainers.core.memory.limits import IN_TENSORS
from torchyard_trainers.core.memory.micro_batches import divisible
from torchyard_trainers.core.memory.tracker import KINDS, OFFLOADED, tracker_of, tracking
from torchyard_trainers.core.optimizers import as_one
from torchyard_trainers.core.parallel import SHARDED, Parallel, held_type, mesh_of, parallelize
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.step import accumulate, micro_batches_of
from torchyard_trainers.core.weights import built, is_deferred
from torchyard_trainers.core.workload import Session, Workload, average_of, evaluated, ids_of_step
from torchyard_trainers.core.world import T, World

CPU = torch.device("cpu")
GIB = 1024**3
# A CUDA context, and the buffers of a NCCL communicator (measured by others on H100; both are outside the allocator).
CONTEXT_BYTES = GIB // 2
COMMUNICATOR_BYTES = GIB // 2
# Moments outside of a step.
ROLLOUT = "rollout before a step"
EVALUATION = "evaluation between steps"


class Usage(NamedTuple):
    """Bytes of one rank at its peak."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int  # stored for the backward pass, and temporaries
    buffers: int  # of collectives: gathered parameters, unreduced gradients, buckets
    average: int = 0  # a moving average of the weights
    host: int = 0  # parameters, gradients and optimizer state that are offloaded to host memory
    peak: str = "forward pass"  # when that is: or `backward pass`, `update`, `ROLLOUT`, `EVALUATION`

    @property
    def total(self) -> int:
        """On the device."""
        kept = self.parameters + self.gradients + self.optimizer + self.average
        return kept + self.activations + self.buffers - self.host


def room_on(memory: int, world_size: int, fraction: float = 1.0) -> int:
    """Return the bytes for tensors on a GPU with `memory` bytes of which a rank may use `fraction`."""
    left = memory - CONTEXT_BYTES - (COMMUNICATOR_BYTES if world_size > 1 else 0)
    return int(IN_TENSORS * min(left, fraction * memory))


class FakeWorld(World):
    """A world of ranks of which only this process exists."""

    def gather(self, value: T) -> list[T]:
        """Return this rank's value for every rank: there is no real process group."""
        return [value] * self.size


@contextmanager
def imagined_world(size: int, local_size: int) -> Iterator[World]:
    """Join a simulated gang as rank 0: its collectives return at once."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    try:
        yield FakeWorld(0, size, 0, CPU, grouped=True, local_size=local_size)
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
    on_gpu: bool,
) -> Usage:
    """Return the peak memory of a step, or of the code after it, once there is optimizer state.

    The code after it is `after_step` of the last step, which evaluates. With fake tensors it runs until it reads a
    value, usually after the first batch: all batches have the same size.

    Args:
        make: creates the workload; its tensors are fake, too.
        world: from `imagined_world`, or a real one.
        strategy: resolved.
        settings: of activation checkpointing and sharding.
        precision: `fp32`, `bf16` or `fp16`.
        micro_batch: samples of one forward pass.
        real: run the step with real tensors.
        on_gpu: whether the ranks will have GPUs: optimizer and collectives then use other buffers.

    Raises:
        LooksAtNumbersError: the workload reads values of tensors.
    """
    mode: AbstractContextManager[Any] = nullcontext() if real else FakeTensorMode(allow_non_fake_inputs=True)
    mesh = mesh_of(strategy, world) if strategy in SHARDED else None
    try:
        with mode, as_shapes(wanted=not real), for_memory(), warnings.catch_warnings(action="ignore"):
            return _measure(
                make(),
                world,
                strategy,
                mesh=mesh,
                settings=settings,
                precision=precision,
                size=micro_batch,
                real=real,
                on_gpu=on_gpu,
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
    on_gpu: bool,
) -> Usage:
    sharded = strategy in SHARDED
    # fp16 needs as much as bf16, and its loss scaler would read values.
    half = Precision("bf16" if precision == "fp16" else precision, CPU, sharded=sharded)
    # Offloaded parts are counted as if they were not offloaded; compiled blocks need less.
    plain = msgspec.structs.replace(settings, cpu_offload=False, compile=False)
    deferred = is_deferred(work)
    # Parameters without memory need no fake tensors, whose modules cannot be moved as peft does.
    with unset_fake_temporarily() if deferred else nullcontext():
        model = built(work)
    _allocate(model, half)
    parallel = parallelize(
        model,
        work.blocks(model),
        strategy if sharded else "single",
        settings=plain,
        precision=half,
        world=world,
        mesh=mesh,
        entry_points=work.entry_points,
    )
    if strategy == "ddp":
        parallel = Parallel(strategy, Replica(model), model)
    reporter = Reporter(None, rank=0, local_rank=0, round_number=0)
    packing = packing_of(work.source, settings.micro_batch_tokens, divisible=divisible(work, model))
    average = average_of(work, parallel)
    session = Session(parallel, half, world, reporter, size, packing=packing, average=average)
    optimizer = as_one(work.optimizer(model))
    for group in optimizer.param_groups:
        if on_gpu and not group.get("fused") and group.get("foreach") is None:
            group["foreach"] = True  # as PyTorch chooses there, with temporaries for all parameters at once
    tracker = tracker_of(model, optimizer, sharded=sharded, offloads=settings.cpu_offload, on_gpu=on_gpu)
    kept = [leaf for leaf in tree_leaves(work.state()) if isinstance(leaf, torch.Tensor)]
    kept += average.parts if average is not None else []
    if sharded:  # its `track_external` does nothing
        tracker.track_inputs((kept,))
    else:
        tracker.track_external(parallel.forward, optimizer, *kept)
    step = work.planned_step
    ids = ids_of_step(work, step)
    slots = micro_batches_of(work, session, ids)
    accumulates = len(slots) > 1
    # The last micro-batch runs with gradients present. Zeros replace those of earlier ones, unless passes differ: a
    # sharded model keeps unsharded gradients until the last one, and a workload that reads values may do in the first
    # what it needs once.
    alike = not (sharded or real)
    if packing is not None:
        slots = slots[::-1]  # the longest last
    slots = slots[-1:] if alike or not accumulates else [slots[0], slots[-1]]
    with tracking(tracker), as_on_gpu(wanted=on_gpu):
        _fill_with_zeros(model)
        optimizer.step()  # there is optimizer state from here on
        optimizer.zero_grad(set_to_none=True)
        tracker.forget()
        tracker.beside = ROLLOUT
        work.prepare(session, step)
        tracker.beside = ""
        if alike and accumulates:
            _fill_with_zeros(model)
        sums = accumulate(work, session, ids, slots, step)
        half.clip(parallel.shards, optimizer, work.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        tracker.beside = EVALUATION
        _evaluate(work, session, [*sums.names, "gradNorm"], real=real)
    found = _usage(tracker.get_tracker_snapshot("peak")[CPU], offloads=settings.cpu_offload, peak=tracker.moment)
    return found if average is None else _told_apart(found, average.bytes, offloads=settings.cpu_offload)


def _evaluate(work: Workload, session: Session, names: list[str], *, real: bool) -> None:
    """Run the code after the last step, and the evaluation if it has not come that far."""
    # Code that reads the value of a fake tensor gets one of these errors.
    reads_values = nullcontext() if real else suppress(RuntimeError, TypeError)
    evaluations = _noting_calls(work, "evaluate")
    with reads_values:
        work.after_step(session, work.total_steps, dict.fromkeys(names, 0.0))
    if not real and not evaluations:  # a baseline has read a value before the evaluation started
        with reads_values:
            evaluated(work, session)


def _noting_calls(work: Workload, method: str) -> list[None]:
    """Return a list that gets one item for each call of this method from now on."""
    calls: list[None] = []
    called = getattr(work, method)

    def noting(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        return called(*args, **kwargs)

    setattr(work, method, noting)
    return calls


def _allocate(model: nn.Module, precision: Precision) -> None:
    """Allocate (fake) memory for parameters on the meta device; tied ones stay tied."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, each in module._parameters.items():  # noqa: SLF001 - `_apply` cannot exchange fake tensors
            if each is None or not each.is_meta:
                continue
            if each not in made:
                # Of a step with real tensors, what memory happens to hold could be no number.
                values = torch.zeros(each.shape, dtype=held_type(each, precision.name))
                made[each] = nn.Parameter(values, requires_grad=each.requires_grad)
            module._parameters[name] = made[each]  # noqa: SLF001


class Replica(nn.Module):
    """Simulates the memory of DDP, which cannot start with fake tensors: keeps buckets that gradients are copied into.

    Buckets persist between steps. In the micro-batch that reduces, a gradient is copied into its bucket as soon as it
    exists, and freed. In earlier micro-batches gradients and buckets exist side by side.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._reduces = True
        learning = [each for each in module.parameters() if each.requires_grad]
        for number, parameter in enumerate(learning):
            self.register_buffer(f"bucket{number}", torch.zeros_like(parameter))
            parameter.register_post_accumulate_grad_hook(partial(self._reduce, f"bucket{number}"))

    def forward(self, *inputs: Any, **more: Any) -> Any:
        """Call the wrapped module."""
        return self.module(*inputs, **more)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """See `DistributedDataParallel`."""
        self._reduces = False
        try:
            yield
        finally:
            self._reduces = True

    def _reduce(self, name: str, parameter: nn.Parameter) -> None:
        if self._reduces:
            assert parameter.grad is not None
            parameter.grad = self.get_buffer(name).copy_(parameter.grad)


def _fill_with_zeros(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None


def _told_apart(found: Usage, average: int, *, offloads: bool) -> Usage:
    """Return the usage with the bytes of a moving average by themselves; it is offloaded as the weights are."""
    host = found.host + (average if offloads else 0)
    return found._replace(activations=found.activations - average, average=average, host=host)


def _usage(snapshot: dict[Any, int], *, offloads: bool, peak: str) -> Usage:
    found = {getattr(kind, "name", ""): size for kind, size in snapshot.items()}
    host = sum(found.get(kind, 0) for kind in OFFLOADED) if offloads else 0
    sizes = {name: sum(found.pop(kind, 0) for kind in kinds) for name, kinds in KINDS.items()}
    found.pop("", None)  # the total
    return Usage(**sizes, activations=sum(found.values()), host=host, peak=peak)
