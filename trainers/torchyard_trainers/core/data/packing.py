"""Packing by tokens: distributes the samples of a step over ranks and micro-batches by their lengths. Pure.

Every rank knows the lengths of all samples of the step, so all compute the same plan, and nothing about it has to be
saved or sent. The plan changes with the world size, the step does not: each sample counts once.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchyard_trainers.core.batching import Slots
from torchyard_trainers.core.data.source import Source
from torchyard_trainers.core.exits import ConfigError


def pack(lengths: Sequence[int], world: int, rank: int, budget: int) -> list[Slots]:
    """Return the micro-batches of `rank`: as few as possible, with at most `budget` tokens each.

    All ranks get the same number of them, and the micro-batches that ranks compute at the same time are about equally
    long. A rank without samples for one of them repeats the shortest sample of the step with weight 0.

    Args:
        lengths: tokens of each sample of the step.
        world: number of ranks.
        rank: 0 <= rank < world.
        budget: tokens of a micro-batch; at least the longest sample.

    Raises:
        ValueError: a sample is longer than the budget.
    """
    longest = max(lengths)
    if longest > budget:
        raise ValueError(f"a sample of {longest} tokens is longer than a micro-batch of {budget} tokens")
    rounds = max(1, -(-sum(lengths) // (budget * world)))
    while (bins := _balanced(lengths, rounds * world, budget) or _tight(lengths, rounds * world, budget)) is None:
        rounds += 1
    # Sorted by tokens, each `world` of them in a row belong to one round.
    bins.sort(key=lambda each: (-sum(lengths[position] for position in each), each))
    spare = min(range(len(lengths)), key=lambda position: (lengths[position], position))
    mine = [bins[number * world + (rank if number % 2 == 0 else world - 1 - rank)] for number in range(rounds)]
    return [Slots(sorted(each), [1.0] * len(each)) if each else Slots([spare], [0.0]) for each in mine]


@dataclass(frozen=True)
class Packing:
    """Micro-batches by tokens: their budget, and the length of every sample of the data."""

    budget: int
    lengths: Sequence[int]

    def micro_batches(self, ids: Sequence[int], world: int, rank: int) -> list[Slots]:
        """Return the micro-batches of `rank` for a step with these samples."""
        return pack([int(self.lengths[each]) for each in ids], world, rank, self.budget)


def packing_of(source: Source | None, budget: int | None, *, divisible: bool) -> Packing | None:
    """Return how micro-batches are packed by tokens; None without a budget.

    Args:
        source: of the workload.
        budget: `parallelism.microBatchTokens`.
        divisible: whether a step does not depend on which samples share a micro-batch.

    Raises:
        ConfigError: lengths are not known, a sample does not fit, or samples depend on each other.
    """
    if budget is None:
        return None
    field = f"parallelism.microBatchTokens: {budget}"
    lengths = source.lengths() if source is not None else None
    if lengths is None:
        raise ConfigError(f"{field}, but the samples of this workload have no lengths; set microBatchSize instead")
    if not divisible:
        raise ConfigError(f"{field}, but losses of this workload depend on other samples; set microBatchSize instead")
    if (longest := max(lengths)) > budget:
        raise ConfigError(f"{field}, but the longest sample has {longest} tokens; raise it, or shorten the samples")
    return Packing(budget, lengths)


def _by_length(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda position: (-lengths[position], position))


def _balanced(lengths: Sequence[int], count: int, budget: int) -> list[list[int]] | None:
    """Return `count` bins of samples, long ones put first, each into the shortest; None if one exceeds the budget."""
    bins: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, number) for number in range(count)]
    for position in _by_length(lengths):
        load, number = loads[0]
        if load + lengths[position] > budget:
            return None
        bins[number].append(position)
        heapq.heapreplace(loads, (load + lengths[position], number))
    return bins


def _tight(lengths: Sequence[int], count: int, budget: int) -> list[list[int]] | None:
    """Put each sample, long ones first, into the first bin that can hold it; None if that takes over `count` bins."""
    bins: list[list[int]] = []
    left: list[int] = []
    for position in _by_length(lengths):
        number = next((number for number, free in enumerate(left) if free >= lengths[position]), len(bins))
        if number == len(bins):
            if number == count:
                return None
            bins.append([])
            left.append(budget)
        bins[number].append(position)
        left[number] -= lengths[position]
    return bins + [[] for _ in range(count - len(bins))]


def concatenated(documents: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return documents as one row: `tokens`, `positions` that restart at each, and the number of its `document`.

    Attention must not cross documents; models of transformers see from the positions where each begins.
    """
    device = documents[0].device
    sizes = torch.tensor([len(each) for each in documents], device=device)
    number = torch.arange(len(documents), device=device).repeat_interleave(sizes)
    begins = sizes.cumsum(0) - sizes
    positions = torch.arange(int(sizes.sum()), device=device) - begins[number]
    return {"tokens": torch.cat(list(documents))[None], "positions": positions[None], "document": number[None]}
