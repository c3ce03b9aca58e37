"""Compare ranks that must hold the same bits: weights of replicas, and losses of the same samples. Collective.

Only ranks with the same hardware are compared: other devices round differently, and nothing is wrong with that.
"""

import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from torchyard_trainers.core.exits import HardwareError, PeerError
from torchyard_trainers.core.step import accumulate, micro_batches_of
from torchyard_trainers.core.workload import Session, Workload, ids_of_step
from torchyard_trainers.core.world import World, device_name

# The largest below 2**20: no power of two is divisible by it, so that a flipped bit is seen wherever it is; and the sum
# of the squares of thousands of ranks is exact in float64.
_PRIME = 1_048_573
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Verdict(NamedTuple):
    """What differs, and the ranks that may be at fault; no ranks: nothing differs."""

    ranks: tuple[int, ...] = ()
    text: str = ""


def are_comparable(session: Session) -> bool:
    """Return whether every rank computes the same bits from the same numbers."""
    world = session.world
    if session.parallel.strategy != "ddp" or world.size == 1:
        return False
    name = device_name(world.device).partition(" ")[2] or torch.backends.cpu.get_cpu_capability()
    return len(set(world.gather((world.device.type, name)))) == 1


def probe(session: Session) -> Tensor:
    """Return two numbers whose sums over all ranks tell whether their weights are the same: see `is_alike`.

    They are part of a sum that is computed anyway. Two different sets of weights look alike once in a million times.
    """
    bits = _fingerprints(session.parallel.module)[1].sum() % _PRIME
    return torch.stack([bits, bits * bits]).double()


def is_alike(sums: Sequence[float], size: int) -> bool:
    """Return whether all ranks have given the same probe: then the mean of the squares is the square of the mean."""
    return not sums or size * sums[1] == sums[0] * sums[0]


def different_weights(session: Session) -> Verdict:
    """Compare the weights of replicas by sums of their bits, which a single flipped bit changes."""
    names, sums = _fingerprints(session.parallel.module)
    everyone = session.world.gather(tuple(sums.tolist()))
    usual, count = Counter(everyone).most_common(1)[0]
    if count == len(everyone):
        return Verdict()
    odd = [rank for rank, each in enumerate(everyone) if each != usual]
    ranks = tuple(odd) if count > len(odd) else tuple(range(len(everyone)))
    first = next(index for index, values in enumerate(zip(*everyone, strict=True)) if len(set(values)) > 1)
    who = _named(session.world, ranks)
    return Verdict(ranks, f"the weights of {who} differ from those of the others in {names[first]}")


def different_losses(work: Workload, session: Session, step: int, own: float) -> Verdict | None:
    """Have each rank compute the losses of its samples again, and those of the next rank's, and compare the bits.

    Args:
        work: the workload.
        session: its model, before the update of the step.
        step: 0 is the first.
        own: the sum of the losses of this rank's samples.

    Returns:
        None if ranks hold samples of their own, such as rollouts, so that another rank cannot compute their loss.
    """
    if has_own_samples(work):
        return None
    world = session.world
    following = replace(session, world=replace(world, rank=(world.rank + 1) % world.size))
    again, other = (_loss_of(work, each, step) for each in (session, following))
    losses = world.gather((own, again, other))
    ranks = tuple(rank for rank, (first, second, _) in enumerate(losses) if not _same(first, second))
    if ranks:
        return Verdict(ranks, f"{_named(world, ranks)} computed two losses from the same weights and samples")
    pairs = [rank for rank, each in enumerate(losses) if not _same(each[2], losses[(rank + 1) % world.size][0])]
    suspects = Counter(each for rank in pairs for each in (rank, (rank + 1) % world.size))
    ranks = tuple(sorted(rank for rank, count in suspects.items() if count == max(suspects.values())))
    text = f"{_named(world, ranks)} computes another loss than the others from the same weights and samples"
    return Verdict(ranks, text if ranks else "")


def _loss_of(work: Workload, session: Session, step: int) -> float:
    """Return the sum of the losses of a rank's samples, without a trace in the model."""
    ids = ids_of_step(work, step)
    with session.parallel.buffers.kept():
        sums = accumulate(work, session, ids, micro_batches_of(work, session, ids), step)
    session.parallel.module.zero_grad(set_to_none=True)
    return sums.values[sums.names.index("loss")].item()


def has_own_samples(work: Workload) -> bool:
    """Return whether a workload prepares samples on each rank, as rollouts are."""
    return type(work).prepare is not Workload.prepare


def fault_of(world: World, verdict: Verdict) -> HardwareError | PeerError:
    """Return the error that this rank ends with: the hardware's where it is suspected."""
    if world.rank in verdict.ranks or not verdict.ranks:
        return HardwareError(f"{verdict.text}; test the memory and the GPU of this node")
    return PeerError(verdict.text)


def named(world: World, ranks: Sequence[int], hosts: Sequence[str]) -> str:
    """Return ranks with the names of their machines."""
    shown = " or ".join(f"rank {rank} on {hosts[rank]}" for rank in ranks[:3])
    return shown + (f" or {len(ranks) - 3} more" if len(ranks) > 3 else "") if world.size > 1 else f"{hosts[0]}"


def _named(world: World, ranks: Sequence[int]) -> str:
    return named(world, ranks, world.gather(socket.gethostname()))


def _same(one: float, other: float) -> bool:
    return one == other or (one != one and other != other)  # noqa: PLR0124 - NaN is what it is on both


@torch.no_grad()
def _fingerprints(module: torch.nn.Module) -> tuple[list[str], Tensor]:
    """Return the names of all parameters, and the sum of the bits of each as whole numbers, [parameters] int64."""
    named = dict(module.named_parameters())
    return list(named), torch.stack([_sum_of_bits(each.detach()) for each in named.values()])


def _sum_of_bits(values: Tensor) -> Tensor:
    flat = values.contiguous().view(-1)
    whole = 8 // values.element_size()
    # Sums of 64 bits at once need no conversion: a tenth of the time on a CPU.
    fits = flat.numel() % whole == 0 and flat.storage_offset() % whole == 0
    return flat.view(torch.int64 if fits else _INTEGERS.get(values.element_size(), torch.int8)).sum(dtype=torch.int64)
