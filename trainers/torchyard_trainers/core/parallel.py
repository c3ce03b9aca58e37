"""Strategies as functions on a plain module: `single`, `ddp`, `fsdp`, `hsdp`. A setting, never four programs.

Losses are sums over the rank's samples divided by the *global* count; both wrappers average gradients over ranks, so
the loop multiplies by the world size. Then every strategy at every size computes the same step.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.modules.batchnorm import _BatchNorm

from torchyard_trainers.core import gradients
from torchyard_trainers.core.activations import checkpoint_activations
from torchyard_trainers.core.buffers import Buffers
from torchyard_trainers.core.checkpoints.frozen_base import FrozenBase
from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.group_threads import without_wakeup_preemption
from torchyard_trainers.core.losses import Softmax
from torchyard_trainers.core.named_tensors import whole
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.weights import allocate
from torchyard_trainers.core.world import World

# Mixed-precision AdamW: fp32 weights, gradients and two moments, all of them 4 bytes.
BYTES_PER_TRAINABLE = 16
BYTES_PER_AVERAGE = 4  # fp32
# The rest is for activations; a larger model is sharded.
USABLE_MEMORY = 0.85
SHARDED = frozenset({"fsdp", "hsdp"})


@dataclass(frozen=True)
class Parallel:
    """A model distributed over the ranks. Call `forward` to train, `module` to evaluate."""

    strategy: str
    forward: nn.Module
    module: nn.Module
    reshards: bool = True  # whether a block frees its gathered parameters after a forward pass
    checks: set[str] = field(default_factory=set)  # that were made and need not be made again

    @cached_property
    def buffers(self) -> Buffers:
        """The buffers that a forward pass may change."""
        return Buffers(self.module)

    @cached_property
    def frozen_base(self) -> FrozenBase:
        """The frozen parameters as they are at the first access, which is collective."""
        return FrozenBase(self.module)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Keep sharded parameters gathered over all forward passes in a `with` block, which must not change them.

        For many passes without gradients, as of generation: each block is gathered at its first pass only. (Gathering
        earlier, before the first pass of the whole model, would break its lazy initialization.)
        """
        units = _units(self.module)
        for unit in units:
            unit.set_reshard_after_forward(False, recurse=False)
        try:
            yield
        finally:
            for unit in units:
                unit.reshard()
                unit.set_reshard_after_forward(self.reshards and unit is not self.module, recurse=False)

    @contextmanager
    def accumulating(self, *, last: bool) -> Iterator[None]:
        """Reduce gradients over ranks in the last micro-batch of a step only."""
        if self.strategy == "ddp" and not last:
            with self.forward.no_sync():  # type: ignore[operator]
                yield
            return
        if self.strategy in SHARDED:
            self.module.set_requires_gradient_sync(last)  # type: ignore[operator]
        yield

    @cached_property
    def _awaited(self) -> dict[str, nn.Parameter]:
        """Parameters that must get a gradient on every rank before their bucket is reduced."""
        learned = {name: each for name, each in self.module.named_parameters() if each.requires_grad}
        return learned if self.strategy == "ddp" else {}

    def check_gradients(self) -> None:
        """Check that every parameter has a gradient; DDP itself reports it at the next step only, without names.

        Raises:
            ConfigError: naming the parameters.
        """
        missing = [name for name, each in self._awaited.items() if each.grad is None]
        if missing:
            raise ConfigError(
                f"parallelism.strategy: ddp waits for a gradient of every parameter, but the loss has no part of "
                f"{', '.join(missing[:3])}{f' and {len(missing) - 3} more' if missing[3:] else ''}; set "
                "requires_grad_(False) there, leave them out of the model, or use fsdp"
            )

    def without_gradient(self) -> list[str]:
        """Return the trainable parameters that have no gradient now, on this rank."""
        reshard(self.module)
        return [name for name, each in self.module.named_parameters() if each.requires_grad and each.grad is None]

    @cached_property
    def shards(self) -> list[nn.Parameter]:
        """This rank's shards of all parameters, looked up once: walking a model costs a small one 2 % of a step."""
        return self.parameters()

    def scale_gradients(self, factor: Tensor) -> None:
        """Multiply all gradients by a number on this rank's device, equal on every rank."""
        gradients.scale((each.grad for each in self.shards if each.grad is not None), factor)

    def parameters(self) -> list[nn.Parameter]:
        """Return this rank's shards of the parameters; reshard those that a forward pass left gathered."""
        reshard(self.module)
        return list(self.module.parameters())

    def copy_to(self, other: nn.Module) -> None:
        """Copy all weights into an unsharded network of the same names, one tensor at a time. Collective if sharded."""
        into = other.state_dict()
        with torch.no_grad():
            for name, tensor in self._weights():
                into.pop(name).copy_(tensor)
        assert not into, f"there is nothing to copy into {', '.join(into)}"

    def on_host(self, *, keep: bool) -> dict[str, Tensor]:
        """Return all weights, unsharded, in host memory on ranks with `keep`, {} on others. Collective if sharded.

        A sharded model may be too large for one GPU, so one tensor is gathered at a time.
        """
        # Copies also host tensors: safetensors rejects two names that share memory.
        return {name: tensor.to("cpu", copy=True) for name, tensor in self._weights() if keep}

    def _weights(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, whole(tensor.detach())) for name, tensor in self.module.state_dict().items())


def choose_strategy(parallelism: Parallelism, world_size: int) -> str:
    """Resolve `auto` as far as possible without a model: `single` for one process, `ddp` for more.

    Raises:
        ConfigError: the settings contradict each other or the number of processes.
    """
    strategy = parallelism.strategy
    if strategy == "auto":
        if parallelism.cpu_offload:
            return "fsdp"
        return "single" if world_size == 1 else "ddp"
    if strategy == "single" and world_size > 1:
        raise ConfigError(f"parallelism.strategy: single runs one process, but there are {world_size}; use ddp or fsdp")
    if parallelism.cpu_offload and strategy not in SHARDED:
        raise ConfigError(f"parallelism.cpuOffload: true needs strategy fsdp or hsdp, not {strategy}")
    return strategy


def state_bytes(model: nn.Module, *, precision: str = "fp32", averaged: bool = False) -> int:
    """Return the bytes of a model's training state: a frozen parameter needs neither gradient nor optimizer state.

    Args:
        model: before it is distributed.
        precision: that computes, of `core.precision.resolved`.
        averaged: there is a moving average of the weights.
    """
    learning = BYTES_PER_TRAINABLE + (BYTES_PER_AVERAGE if averaged else 0)
    return sum(
        each.numel() * (learning if each.requires_grad else _frozen_size(each, precision))
        for each in model.parameters()
    )


def _frozen_size(parameter: nn.Parameter, precision: str) -> int:
    """Return the bytes of an element of a frozen parameter in memory."""
    return held_type(parameter, precision).itemsize if parameter.is_meta else parameter.element_size()


def strategy_by_memory(state: int, memory: int, world_size: int, local_size: int) -> str:
    """Choose the strategy that communicates least among those whose training state fits.

    Args:
        state: bytes of the training state of the whole model, see `state_bytes`.
        memory: bytes that one rank may use.
        world_size: number of ranks.
        local_size: ranks of a node.
    """
    room = USABLE_MEMORY * memory
    if state <= room:
        return "ddp"
    return "hsdp" if 1 < local_size < world_size and state / local_size <= room else "fsdp"


def parallelize(
    model: nn.Module,
    blocks: list[nn.Module],
    strategy: str,
    *,
    settings: Parallelism,
    precision: Precision,
    world: World,
    mesh: DeviceMesh | None = None,
    fill: Callable[[nn.Module], None] | None = None,
    entry_points: Sequence[str] = (),
) -> Parallel:
    """Move a newly built model to the device and wrap it; `blocks` are its units, in order of use, [] if it is one.

    `mesh`: the ranks of a sharded model; default: `mesh_of`. `fill`: fills a model whose parameters are on the meta
    device. `entry_points`: methods of the model besides `forward` that gather sharded parameters.

    The order is: recompute activations, compile each block, shard, fill, replicate. A compiled block then sees what is
    recomputed, and does not gather parameters itself; and a process fills only the shards that it holds.
    """
    if fill is not None:
        _set_types(model, precision)
    elif world.device.type != "cpu":
        model = model.to(world.device)
    model.train()  # models of transformers are loaded in `eval` mode
    checkpoint_activations(blocks or [model], settings.activation_checkpointing)
    if settings.compile:
        compile_blocks(blocks or [model], dynamic=settings.dynamic_shapes)
        for each in model.modules():
            if isinstance(each, Softmax) and world.device.type == "cuda":
                each.compile(dynamic=settings.dynamic_shapes)
    if strategy in SHARDED:
        mesh = mesh or mesh_of(strategy, world)
        _shard(model, blocks, mesh, settings=settings, precision=precision, device=world.device)
        from torch.distributed.fsdp import register_fsdp_forward_method

        for name in entry_points:
            register_fsdp_forward_method(model, name)
    if fill is not None:
        allocate(model, torch.device("cpu") if settings.cpu_offload else world.device)
        fill(model)
    forward = _replicate(model, world) if strategy == "ddp" else model
    return Parallel(strategy, forward, model, reshards=settings.fsdp.reshards)


def _set_types(model: nn.Module, precision: Precision) -> None:
    """Set the types of parameters without values: fp32 masters, and of frozen ones the type that computes.

    The config of a pretrained model may name bf16, in which small updates would be lost.
    """
    for each in model.parameters():
        if each.is_meta:
            each.data = each.data.to(held_type(each, precision.name))


def held_type(parameter: nn.Parameter, precision: str) -> torch.dtype:
    """Return the type of a deferred model's parameter in memory."""
    if not parameter.is_floating_point():
        return parameter.dtype
    return torch.bfloat16 if precision == "bf16" and not parameter.requires_grad else torch.float32


def compile_blocks(blocks: list[nn.Module], *, dynamic: bool = False) -> None:
    """Compile block by block: identical blocks compile once, so the time does not grow with the depth.

    Each shape gets its own code, of which PyTorch makes eight before it goes on without. `dynamic` makes one for all
    shapes; it depends on which shape came first, and a resumed run meets them in another order: its bits may differ.
    Hooks of a block stay outside of the code, so that they may give each block something else.

    Raises:
        ConfigError: there is no C++ compiler for the generated code.
    """
    if not (torch.cuda.is_available() or shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")):
        raise ConfigError("parallelism.compile: true needs a C++ compiler (g++) on a CPU; install one or leave it out")
    # The classes of transformers share one wrapper around their forward passes, and PyTorch counts codes by function.
    torch._dynamo.config.recompile_limit = 8 * max(len({type(block) for block in blocks}), 1)  # noqa: SLF001
    for block in blocks:
        block.forward = torch.compile(block.forward, dynamic=dynamic)  # type: ignore[method-assign]


def _replicate(model: nn.Module, world: World) -> nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    devices = [world.device.index] if world.device.type == "cuda" else None
    replica = DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)
    replica.broadcast_buffers = False  # `optimize` has ranks agree; as an argument it is deprecated since PyTorch 2.15
    return replica


def _shard(
    model: nn.Module,
    blocks: list[nn.Module],
    mesh: DeviceMesh,
    *,
    settings: Parallelism,
    precision: Precision,
    device: torch.device,
) -> None:
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    # Inputs stay fp32 (tour lengths, capacities); the model casts what it feeds to a layer.
    policy = MixedPrecisionPolicy(param_dtype=precision.dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    if precision.name == "fp32":
        policy = MixedPrecisionPolicy(cast_forward_inputs=False)
    offload = CPUOffloadPolicy(pin_memory=device.type == "cuda") if settings.cpu_offload else OffloadPolicy()
    if precision.name != "fp32":  # kernels of BatchNorm want weights of the type of its statistics
        for each in [each for each in model.modules() if isinstance(each, _BatchNorm)]:
            exact = MixedPrecisionPolicy(cast_forward_inputs=False)
            fully_shard(each, mesh=mesh, mp_policy=exact, offload_policy=offload)
    for block in blocks:
        fully_shard(
            block,
            mesh=mesh,
            mp_policy=policy,
            offload_policy=offload,
            reshard_after_forward=settings.fsdp.reshards,
        )
    fully_shard(model, mesh=mesh, mp_policy=policy, offload_policy=offload)


def mesh_of(strategy: str, world: World) -> DeviceMesh:
    """Arrange the ranks: all in one row, or for hsdp a row a node, which shards inside and is replicated across."""
    from torch.distributed.device_mesh import init_device_mesh

    shape: tuple[int, ...] = (world.size,)
    names: tuple[str, ...] = ("shard",)
    if strategy != "fsdp":
        shape, names = _nodes_by_ranks(world), ("replicate", "shard")
    with without_wakeup_preemption():
        return init_device_mesh(world.device.type, shape, mesh_dim_names=names)


def _nodes_by_ranks(world: World) -> tuple[int, int]:
    if world.local_size == 1 or world.size % world.local_size:
        raise ConfigError(
            f"parallelism.strategy: hsdp shards among the processes of a node, as many on each, but there are "
            f"{world.size} with {world.local_size} on this one; use fsdp or set procsPerNode to 2 or more"
        )
    return world.size // world.local_size, world.local_size


def reshard(model: nn.Module) -> None:
    """Free the parameters that a forward pass left gathered; those of the model are then this rank's shards."""
    for unit in _units(model):
        unit.reshard()


def _units(model: nn.Module) -> list[Any]:
    """Return the modules of a sharded model that gather their parameters together."""
    from torch.distributed.fsdp import FSDPModule

    return [each for each in model.modules() if isinstance(each, FSDPModule)]
