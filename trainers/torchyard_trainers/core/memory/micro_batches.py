"""`microBatchSize: auto`: the largest micro-batch that fits, found by trying increasing sizes before the first step.

A size that is predicted to fail is not tried: a rank out of memory in the middle of a step would leave the others
waiting in a collective. The global batch does not change, so the step stays the same; the result is stored
beside the checkpoints, since another accumulation would have other bits.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from torchyard_trainers.core.batching import split
from torchyard_trainers.core.checkpoints.commits import write_atomically
from torchyard_trainers.core.checkpoints.files import read_record
from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import GpuMemoryError
from torchyard_trainers.core.graphs import eager_mode
from torchyard_trainers.core.memory.limits import Memory, memory_of
from torchyard_trainers.core.optimizers import as_one, set_rate
from torchyard_trainers.core.step import accumulate
from torchyard_trainers.core.workload import Session, Workload, ids_of_step
from torchyard_trainers.core.world import device_name, device_reason

FILE = "micro-batch.json"
# A trial is at most this many times as large as the last size that fitted: small sizes do not extrapolate well.
GROWTH = 8
# The last few percent are not worth a trial.
NEAR = 0.05


def division(work: Workload, session: Session) -> tuple[int, int]:
    """Return the most samples of a step that a process has, and its passes; 0: as many as its tokens need."""
    share = -(-work.global_batch // session.world.size)
    return share, 0 if session.packing is not None else -(-share // min(share, session.micro_batch or share))


def describe(work: Workload, session: Session, setting: str) -> str:
    """Return a line that says where a run trains and why there, and how its global batch is divided.

    Args:
        work: of the run.
        session: of the run.
        setting: `device` of the config.
    """
    world, size = session.world, session.world.size
    share, passes = division(work, session)
    if session.packing is not None:
        parts = f"in micro-batches of up to {session.packing.budget} tokens"
    else:
        parts = f"{'at most ' if work.global_batch % size else ''}{share} of each process in {passes} pass(es)"
    return (
        f"training on {device_name(world.device)} ({device_reason(setting, world.device)}): {size} process(es), "
        f"{session.parallel.strategy}, "
        f"{session.precision.name}; a step is {work.global_batch} samples, {parts}"
    )


def largest_that_fits(per_rank: int, most: int, share: Callable[[int, int], float]) -> int:
    """Return about the largest micro-batch that `per_rank` samples can be split into and that fits; 1 if none does.

    First, all samples are tried at once: there are then no gradients of an earlier micro-batch to keep, so
    that may fit where nothing that accumulates does. Memory grows linearly with the size, and equally steeply
    whether it accumulates or not: one more trial measures the cost of accumulating.

    Args:
        per_rank: samples of a step on a rank.
        most: the largest useful size.
        share: tries a size, as a single micro-batch (1) or after another one (2), and returns the fraction of memory
            that it used.
    """
    alone: dict[int, float] = {}
    if most >= per_rank:
        if _search(per_rank, lambda size: share(size, 1), alone, worth=per_rank) == per_rank:
            return per_rank
        if per_rank == 1 or alone[1] > 1.0:
            return 1
    within = min(most, per_rank - 1)
    fits = _search(within, lambda size: share(size, 2), {}, alone=alone, usable=lambda size: _even(per_rank, size))
    return max(fits, 1)


def _search(
    most: int,
    share: Callable[[int], float],
    tried: dict[int, float],
    *,
    worth: int = 0,
    alone: Mapping[int, float] = MappingProxyType({}),
    usable: Callable[[int], int] = lambda size: size,
) -> int:
    """Return about the largest size that fits; 0 if none does.

    Args:
        most: the largest.
        share: tries a size.
        tried: filled with the result of each size.
        worth: the search ends when this size is predicted not to fit.
        alone: results of single micro-batches, if these accumulate.
        usable: returns the largest usable size up to its argument.
    """
    near = 0.0 if worth else NEAR
    fits, fails, size = 0, most + 1, 1
    while fits < size < fails:
        tried[size] = share(size)
        if tried[size] > 1.0:
            fails = size
        else:
            fits = size
        reach = _reach(tried, alone)
        if not fits or fails - fits <= max(1.0, near * fits) or reach * (1 + NEAR) < worth:
            break
        fitted = max([fits, *(each for each, taken in alone.items() if taken <= 1.0)])
        size = usable(math.floor(min(reach, GROWTH * fitted, fails - 1)))
        if size < usable(fails - 1) and size <= (1 + near) * fits:  # close enough
            break
    return fits


def _reach(tried: Mapping[int, float], alone: Mapping[int, float]) -> float:
    """Return the size that would use all memory, extrapolated from the trials; infinite if they are too few."""
    line = tried if len(tried) > 1 else alone
    first, last = min(tried), max(line, default=1)
    rise = line[last] - line[min(line)] if line else 0.0
    return first + (1.0 - tried[first]) * (last - min(line)) / rise if rise > 0 else math.inf


def _even(per_rank: int, size: int) -> int:
    """Return the size of equally large micro-batches of at most `size`, as `batching.split` makes them."""
    return -(-per_rank // -(-per_rank // max(size, 1)))


def choose(
    work: Workload,
    session: Session,
    root: Path,
    *,
    settings: Parallelism,
    step: int,
    optimizer: torch.optim.Optimizer | None = None,
    memory: Memory | None = None,
) -> Session:
    """Return the session with the micro-batch that the whole gang will use. Collective.

    Args:
        work: restored, or after `begin`.
        session: its `micro_batch` is the maximum that the config, or an earlier round out of memory, allows.
        root: the checkpoint folder, which holds an earlier round's result.
        settings: sizes are tried only if `micro_batch_size` is `auto` and samples are independent.
        step: the step whose samples are used.
        optimizer: of the run; if it is restored, its state must not be allocated twice.
        memory: bytes of this rank, unless its device reports them.

    Raises:
        GpuMemoryError: a trial needed more than predicted; it names the size that fitted.
    """
    if session.packing is not None:
        return session
    world = session.world
    per_rank = -(-work.global_batch // world.size)
    most = min(per_rank, session.micro_batch or per_rank)
    asked = per_rank if settings.micro_batch_size == "auto" else settings.micro_batch_size
    splits = divisible(work, session.parallel.module)
    if not splits and most < min(asked, per_rank):
        session.reporter.warn(
            f"a GPU ran out of memory, so micro-batches have {most} samples at most: each sees fewer others, which is "
            "not the run that it was before; set parallelism.microBatchSize, or use strategy fsdp or a larger GPU"
        )
    if settings.micro_batch_size != "auto" or not splits:
        return session
    conditions = _conditions(session, settings, per_rank)
    known = world.from_leader(lambda: _remembered(root / FILE, conditions))
    if known is None:
        session.reporter.phase("compile")
        memory = memory or memory_of(world.device, world.local_size, settings.memory_fraction)
        optimizer = optimizer if optimizer is not None and optimizer.state else _with_state(work, session)
        known = _try(work, session, optimizer, most, step=step, memory=memory, compiled=settings.compile)
        text = json.dumps({"schema": 1, "microBatch": known, "conditions": conditions})
        world.from_leader(lambda: _remember(root / FILE, text))
    size = min(known, most)
    return session if size >= per_rank else replace(session, micro_batch=size)


def _try(
    work: Workload,
    session: Session,
    optimizer: torch.optim.Optimizer,
    most: int,
    *,
    step: int,
    memory: Memory,
    compiled: bool,
) -> int:
    """Tries sizes with everything allocated that a step needs: optimizer state, gradients, activations."""
    world, limit = session.world, memory.limit
    ids = ids_of_step(work, step)
    fitted = 0

    def share(size: int, count: int) -> float:
        nonlocal fitted
        (slots,) = split(min(size * world.size, work.global_batch), world.size, world.rank)
        memory.start()
        try:
            # Two at most: the second one runs with gradients present, and a third would be the same.
            accumulate(work, session, ids, [slots, slots._replace()][-count:])
        except torch.OutOfMemoryError as error:
            raise GpuMemoryError(
                f"GPU out of memory while micro-batches of {size} were tried; {fitted} fit", fitted
            ) from error
        peak = memory.peak()
        optimizer.zero_grad(set_to_none=True)
        taken = max(world.gather(peak / limit))
        fitted = size if taken <= 1.0 else fitted
        return taken

    # Compiling a shape that is tried once would take longer than all trials; compiled blocks need less memory.
    with eager_mode(compiled=compiled), session.parallel.buffers.kept():
        if session.parallel.strategy == "ddp":
            # Its buckets are rebuilt at the second forward pass, and for a moment there are twice as many: once
            # in a run, and no part of what a size takes.
            share(1, 1)
            share(1, 1)
        found = largest_that_fits(-(-work.global_batch // world.size), most, share)
    if not fitted:
        session.reporter.warn(
            "a micro-batch of 1 needs more than the free memory; set activationCheckpointing or strategy fsdp"
        )
    return found


def divisible(work: Workload, model: nn.Module) -> bool:
    """Whether smaller micro-batches compute the same step: not if a loss depends on other samples."""
    return not work.mixes_samples and not any(isinstance(each, _BatchNorm) for each in model.modules())


def _with_state(work: Workload, session: Session) -> torch.optim.Optimizer:
    """Create another optimizer of the same parameters with its state: a step at rate 0 changes no parameter."""
    parameters = session.parallel.parameters()
    optimizer = as_one(work.optimizer(session.parallel.module))
    for group in optimizer.param_groups:
        set_rate(group, 0.0)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return optimizer


def _conditions(session: Session, settings: Parallelism, per_rank: int) -> dict[str, Any]:
    """Return the settings that a stored result depends on; with others, sizes are tried again."""
    device = session.world.device
    return {
        "samplesPerRank": per_rank,
        "strategy": session.parallel.strategy,
        "precision": session.precision.name,
        "activationCheckpointing": settings.activation_checkpointing,
        "cpuOffload": settings.cpu_offload,
        "memoryFraction": settings.memory_fraction,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    }


def _remember(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text)


def _remembered(path: Path, conditions: dict[str, Any]) -> int | None:
    try:
        found = read_record(path)
    except (FileNotFoundError, ValueError):
        return None
    return int(found["microBatch"]) if found.get("conditions") == conditions else None
