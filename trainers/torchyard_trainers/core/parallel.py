"""Strategies as functions on a plain module: `single`, `ddp`, `fsdp`. A setting, never three programs.

Losses are sums over the rank's samples divided by the *global* count; both wrappers average gradients over ranks, so
the loop multiplies by the world size. Then every strategy at every size computes the same step.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchyard_trainers.core.activations import checkpoint_activations
from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.world import World

# Mixed-precision AdamW: fp32 weights, gradients and two moments, all of them 4 bytes.
BYTES_PER_PARAMETER = 16
USABLE_GPU_MEMORY = 0.85


@dataclass(frozen=True)
class Parallel:
    """A model spread over the world. Call `forward` to train, `module` to evaluate."""

    strategy: str
    forward: nn.Module
    module: nn.Module

    @contextmanager
    def accumulating(self, *, last: bool) -> Iterator[None]:
        """Reduce gradients over ranks in the last micro-batch of a step only."""
        if self.strategy == "ddp" and not last:
            with self.forward.no_sync():  # type: ignore[operator]
                yield
            return
        if self.strategy == "fsdp":
            self.module.set_requires_gradient_sync(last)  # type: ignore[operator]
        yield

    def full_state(self) -> dict[str, Tensor]:
        """Give a copy of all weights, unsharded, on every rank. Collective under fsdp."""
        return {name: _whole(tensor).detach().clone() for name, tensor in self.module.state_dict().items()}


def choose_strategy(parallelism: Parallelism, world_size: int) -> str:
    """Resolve `auto` before anything is built: one process is `single`, more are `ddp`."""
    strategy = parallelism.strategy
    if strategy == "auto":
        return "single" if world_size == 1 else "ddp"
    if strategy == "single" and world_size > 1:
        raise ConfigError(f"parallelism.strategy: single runs one process, but there are {world_size}; use ddp or fsdp")
    return strategy


def outgrows_one_gpu(model: nn.Module, world: World) -> bool:
    """Whether training state of the whole model leaves no room on one GPU, so that it must be sharded."""
    if world.device.type != "cuda" or world.size == 1:
        return False
    needed = BYTES_PER_PARAMETER * sum(parameter.numel() for parameter in model.parameters())
    return needed > USABLE_GPU_MEMORY * torch.cuda.get_device_properties(world.device).total_memory


def spread(
    model: nn.Module,
    blocks: list[nn.Module],
    strategy: str,
    *,
    settings: Parallelism,
    precision: Precision,
    world: World,
) -> Parallel:
    """Move a freshly built model to the device and wrap it; `blocks` are its units of sharding, in order of use.

    The order is: recompute activations, compile each block, replicate or shard. A compiled block then knows what is
    computed again, and gathers no parameters by itself.
    """
    model = model.to(world.device)
    checkpoint_activations(blocks, settings.activation_checkpointing)
    if settings.compile:
        compile_blocks(blocks)
    if strategy == "ddp":
        return Parallel(strategy, _replicate(model, world), model)
    if strategy == "fsdp":
        _shard(model, blocks, settings, precision, world)
    return Parallel(strategy, model, model)


def compile_blocks(blocks: list[nn.Module]) -> None:
    """Compile block by block: equal blocks are compiled once, so the time does not grow with the depth.

    Each shape gets code of its own. Code for all shapes at once would depend on which came first, and a resumed run
    meets them in another order: its bits would differ.

    Raises:
        ConfigError: there is no compiler for the code that is generated.
    """
    if not (torch.cuda.is_available() or shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")):
        raise ConfigError("parallelism.compile: true needs a C++ compiler (g++) on a CPU; install one or leave it out")
    for block in blocks:
        block.compile(dynamic=False)


def _replicate(model: nn.Module, world: World) -> nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    devices = [world.device.index] if world.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)


def _shard(
    model: nn.Module, blocks: list[nn.Module], settings: Parallelism, precision: Precision, world: World
) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(world.device.type, (world.size,))
    # Inputs stay fp32 (tour lengths, capacities); the model casts what it feeds to a layer.
    policy = MixedPrecisionPolicy(param_dtype=precision.dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    if precision.name == "fp32":
        policy = MixedPrecisionPolicy(cast_forward_inputs=False)
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=settings.fsdp.reshard_after_forward)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
