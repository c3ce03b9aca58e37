"""One optimizer step: accumulate, agree, clip, check, update."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from torchyard_trainers.core.batching import Slots, split
from torchyard_trainers.core.data.loader import Loader, on_device, share_of_cores
from torchyard_trainers.core.device import only_shapes
from torchyard_trainers.core.exits import ConfigError, DataError, Exit, GpuMemoryError, exit_code
from torchyard_trainers.core.gradients import LORA, never_learned
from torchyard_trainers.core.optimizers import set_rate
from torchyard_trainers.core.workload import LossOutput, Mean, MicroBatch, Session, Workload, ids_of_step

# Suffix of a column that holds the divisor of another one; alone, that of all columns without one of their own.
COUNT = "/count"


@dataclass(frozen=True)
class Totals:
    """Metrics and flags of one step, reduced over all ranks and equal on each of them."""

    metrics: dict[str, float]
    flags: dict[str, bool]
    fault: str  # which value was not finite, so that no update was made; "" if none
    overflowed: bool = False  # gradients did in fp16, so that the scaler made no update
    spike: str = ""  # why a finite loss or gradient norm was not trusted, so that no update was made
    own_loss: float = 0.0  # sum over the samples of this rank
    probe: tuple[float, ...] = ()  # summed over all ranks


class Sums(NamedTuple):
    """Loss, statistics and counts, summed over the samples of this rank."""

    names: tuple[str, ...]
    values: torch.Tensor  # [names] float64

    def means(self, totals: Sequence[float], global_batch: int) -> dict[str, float]:
        """Return the means that the totals of all ranks stand for; what has a count of 0 is left out.

        Args:
            totals: the sums of all ranks, by name.
            global_batch: divides what has no count.
        """
        known = dict(zip(self.names, totals, strict=True))
        most = known.get(COUNT, global_batch)
        sums = {name: total for name, total in known.items() if not name.endswith(COUNT)}
        divisors = {name: known.get(name + COUNT, most) for name in sums}
        return {name: total / divisors[name] for name, total in sums.items() if divisors[name]}


def optimize(
    work: Workload,
    session: Session,
    optimizer: torch.optim.Optimizer,
    step: int,
    flags: Mapping[str, bool],
    *,
    rehearse: bool = False,
    data: Iterable[Any] | None = None,
    judge: Callable[[float, float], str] = lambda _loss, _norm: "",
    probe: torch.Tensor | None = None,
) -> Totals:
    """Run one optimizer step. One reduction carries loss, statistics and flags (true if they are on any rank).

    Non-finite values never reach the weights: the update is skipped and `fault` says why.

    DDP rebuilds its gradient buckets after its first backward pass, and for three or more ranks the layout decides
    the order of summation. `rehearse` runs that first pass and discards its result, so that a step has the same
    bits before and after a restart.

    Buffers that the passes change are equal on all ranks afterwards; a step without an update leaves them unchanged.
    `data` is what the workload's source read for the micro-batches of this step; None: it is read here. `judge` returns
    why a loss and gradient norm are a spike, whose update is not made. `probe`: further float64 numbers, on the device,
    that the reduction sums over all ranks.

    Raises:
        GpuMemoryError: the micro-batch is too large.
        DataError: the loss is divided by a count, and the count of the global batch is 0.
        ConfigError: adapters get no gradient.
    """
    world, parallel, precision = session.world, session.parallel, session.precision
    ids = ids_of_step(work, step)
    micro_batches = micro_batches_of(work, session, ids)
    before = parallel.buffers.copy()
    try:
        if rehearse and parallel.strategy == "ddp" and world.size > 2:
            with parallel.buffers.kept():
                accumulate(work, session, ids, micro_batches[-1:], step)
            optimizer.zero_grad(set_to_none=True)
        sums = accumulate(work, session, ids, micro_batches, step, data=data)
    except RuntimeError as error:
        if exit_code(error) is not Exit.GPU_MEMORY:
            raise
        raise _out_of_memory(session, micro_batches) from error
    _check_learning(session)
    raised = torch.tensor([float(flag) for flag in flags.values()], dtype=torch.float64, device=sums.values.device)
    further = raised.new_empty(0) if probe is None else probe
    totals = world.total(torch.cat([sums.values, raised, further]))
    if COUNT in sums.names:
        # The backward passes divided by the samples; before clipping, divide by the count, which is known only now.
        parallel.scale_gradients(work.global_batch / totals[sums.names.index(COUNT)].clamp(min=1.0))
    norm = precision.clip(parallel.shards, optimizer, work.max_grad_norm)
    own = sums.values[sums.names.index("loss")].reshape(1)
    *counts, grad_norm, own_loss = torch.cat([totals, norm.double().reshape(1), own]).tolist()
    metrics = sums.means(counts[: len(sums.names)], work.global_batch)
    if "loss" not in metrics:
        raise DataError(f"step {step + 1}: nothing in the global batch counts toward the loss; check what is masked")
    sound = math.isfinite(metrics["loss"]) and (math.isfinite(grad_norm) or precision.overflows)
    spike = judge(metrics["loss"], grad_norm) if sound and math.isfinite(grad_norm) else ""
    if sound and not spike:
        precision.step(optimizer)
        if session.average is not None:
            session.average.update(step)
    else:
        precision.skip()
        parallel.buffers.put_back(before)
    parallel.buffers.agree(world)
    optimizer.zero_grad(set_to_none=True)
    beyond = len(sums.names) + len(flags)
    on = dict(zip(flags, (count > 0 for count in counts[len(sums.names) : beyond]), strict=True))
    fault = "" if sound else f"loss {metrics['loss']}, gradient norm {grad_norm}"
    overflowed = sound and not math.isfinite(grad_norm)
    return Totals(metrics | {"gradNorm": grad_norm}, on, fault, overflowed, spike, own_loss, tuple(counts[beyond:]))


def _check_learning(session: Session) -> None:
    """Check once that every trainable parameter has a gradient on some rank. Collective at the first step of a round.

    Raises:
        ConfigError: adapters have none, so that what is exported would not be what was trained.
    """
    parallel = session.parallel
    if "gradients" in parallel.checks or only_shapes():
        return
    parallel.checks.add("gradients")
    trainable = [name for name, each in parallel.module.named_parameters() if each.requires_grad]
    names = never_learned(session.world.gather(parallel.without_gradient()), trainable)
    if not names:
        return
    shown = f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if names[3:] else ''}"
    if any(LORA in name for name in names):
        raise ConfigError(
            f"adapters get no gradient, as the loss has no part of them: {shown}; leave their layers out of the targets"
        )
    session.reporter.warn(
        f"{len(names)} trainable parameters got no gradient in the first step, and stay as they are: {shown}; set "
        "requires_grad_(False) there, or leave them out of the model"
    )


def micro_batches_of(work: Workload, session: Session, ids: Sequence[int]) -> list[Slots]:
    """Return the micro-batches of this rank for a step with these samples."""
    world = session.world
    if session.packing is not None:
        return session.packing.micro_batches(ids, world.size, world.rank)
    return split(work.global_batch, world.size, world.rank, session.micro_batch)


def accumulate(
    work: Workload,
    session: Session,
    ids: Sequence[int],
    micro_batches: Sequence[Slots],
    step: int = 0,
    *,
    data: Iterable[Any] | None = None,
) -> Sums:
    """Run forward and backward over this rank's micro-batches; return the sums of loss and statistics.

    Args:
        work: the workload.
        session: its model.
        ids: the sample ids of the step.
        micro_batches: of this rank.
        step: of the optimizer.
        data: what the workload's source read for each micro-batch; None: it is read here.

    Raises:
        ConfigError: a parameter got no gradient, for which ddp would wait.
    """
    device, world_size = session.world.device, session.world.size
    names: tuple[str, ...] = ()
    sums: torch.Tensor | None = None
    ahead = iter(data) if data is not None else _read(work, session, ids, micro_batches)
    for slots in micro_batches:
        batch = micro_batch_of(ids, slots, device)._replace(step=step, data=next(ahead, None))
        _seed_generators(device, step * work.global_batch + slots.positions[0])
        with session.parallel.accumulating(last=slots is micro_batches[-1]):
            with session.precision.forward():
                terms = work.loss(session, batch)
            assert terms.loss.shape == (), f"a loss is one number, not {tuple(terms.loss.shape)}"
            session.precision.backward(terms.loss * (world_size / work.global_batch))
        columns = dict(_columns(terms))
        names, values = tuple(columns), torch.stack([each.detach().double() for each in columns.values()])
        sums = values if sums is None else sums + values
        # A CUDA graph cannot be recorded in the next pass while the loss of this one is referenced.
        del terms, columns
    assert sums is not None, "a rank has samples of its own, or padding"
    session.parallel.check_gradients()
    return Sums(names, sums)


def _read(work: Workload, session: Session, ids: Sequence[int], micro_batches: Sequence[Slots]) -> Iterator[Any]:
    if work.source is None:
        return
    for slots in micro_batches:
        with session.data_wait:
            data = work.source.read([ids[position] for position in slots.positions])
        yield on_device(data, session.world.device)


def _columns(terms: LossOutput) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what is summed over all samples, by name."""
    yield "loss", terms.loss
    for name, value in terms.statistics.items():
        yield name, value.total if isinstance(value, Mean) else value
        if isinstance(value, Mean):
            yield name + COUNT, value.count
    if terms.count is not None:
        yield COUNT, terms.count


def loader_of(work: Workload, session: Session) -> Loader:
    """Return what reads the samples of this rank's micro-batches from the workload's source."""
    world = session.world

    def batches(step: int, micro_batch: int | None) -> list[list[int]]:
        ids = ids_of_step(work, step)
        micro_batches = micro_batches_of(work, replace(session, micro_batch=micro_batch), ids)
        return [[ids[position] for position in slots.positions] for slots in micro_batches]

    workers = share_of_cores() if work.read_workers is None else work.read_workers
    return Loader(work.source, batches, work.total_steps, world.device, workers=workers, wait=session.data_wait)


def _seed_generators(device: torch.device, position: int) -> None:
    """Seed the generators from the position in the run, so that dropout is reproducible and no RNG state is saved."""
    torch.default_generator.manual_seed(position)
    if device.type == "cuda":
        torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(position)


def micro_batch_of(ids: Sequence[int], slots: Slots, device: torch.device) -> MicroBatch:
    """Return a micro-batch on the device; a range of ids is created there, without a copy from the host."""
    positions = slots.positions
    if isinstance(ids, range) and isinstance(positions, range) and positions:
        span = ids[positions.start], ids[positions[-1]] + 1
        return MicroBatch(torch.arange(*span, positions.step, device=device), torch.ones(len(positions), device=device))
    return MicroBatch(
        torch.tensor([ids[position] for position in positions], device=device),
        torch.tensor(slots.weights, device=device),
    )


def _out_of_memory(session: Session, micro_batches: Sequence[Slots]) -> GpuMemoryError:
    """Return the error for micro-batches that do not fit."""
    packing = session.packing
    if packing is None:
        return out_of_memory(len(micro_batches[0].positions))
    smaller = packing.budget // 2 if packing.budget // 2 >= max(packing.lengths) else 0
    advice = f"set parallelism.microBatchTokens: {smaller}" if smaller else "shorten the samples or use strategy fsdp"
    return GpuMemoryError(f"GPU out of memory with micro-batches of {packing.budget} tokens; {advice}", smaller)


def out_of_memory(used: int) -> GpuMemoryError:
    """Return the error for micro-batches of `used` samples that do not fit; it suggests half of that."""
    smaller = used // 2
    advice = f"set parallelism.microBatchSize: {smaller}" if smaller else "use strategy fsdp or a larger GPU"
    return GpuMemoryError(f"GPU out of memory with micro-batches of {used}; {advice}", smaller)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> float:
    """Set the rate of every parameter group, times the `lr_scale` that a group may have; return `rate`."""
    for group in optimizer.param_groups:
        set_rate(group, rate * group.get("lr_scale", 1.0))
    return rate
