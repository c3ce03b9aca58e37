"""Evaluation of a data set, spread over the ranks: one implementation for all workloads."""

import math
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor

from torchyard_trainers.core.batching import split
from torchyard_trainers.core.workload import Session

T = TypeVar("T")

Z95 = 1.959964  # of a normal distribution: 95 % are nearer to the mean than so many standard deviations

# Returns a number for each of the items at these positions: [m], or [m, k] for k numbers each.
Measure = Callable[[list[int]], Tensor]


def over_ranks(
    session: Session, measure: Measure, count: int, *, at_once: int | None = None, casts: bool = True
) -> Tensor:
    """Return what `measure` returns for each of `count` items: [count] or [count, k] float64, on the CPU. Collective.

    All ranks call `measure` equally often, and each time with equally many items, as a sharded model requires; the
    results of items that only fill a batch are dropped. Every result reaches every rank exactly.

    Args:
        session: the session of the evaluated model.
        measure: gets positions below `count`; runs without gradients.
        count: items, at least 1.
        at_once: the most items of one call; None: all of the rank.
        casts: `measure` runs the model, in the precision of training and equally under every strategy. False: it
            computes something else, in the precision of its tensors.
    """
    positions: list[int] = []
    found: list[Tensor] = []
    for batch, real in _batches(session, count, at_once):
        values = _measured(session, measure, batch, casts=casts)
        assert len(values) == len(batch), f"{len(values)} results for {len(batch)} items"
        positions += batch[:real]
        found.append(values[:real].detach().double().cpu())
    values = torch.cat(found)
    shape, width = values.shape[1:], values.shape[1:].numel()
    places = [position * width + part for position in positions for part in range(width)]
    return session.world.merge(count * width, places, values.flatten()).reshape(count, *shape)


def wilson(successes: float, trials: int) -> tuple[float, float]:
    """Return the ends of the 95 % confidence interval of a rate (Wilson 1927), which holds near 0 and 1 as well."""
    share, square = successes / trials, Z95 * Z95
    middle = (share + square / (2 * trials)) / (1 + square / trials)
    half = Z95 / (1 + square / trials) * math.sqrt(share * (1 - share) / trials + square / (4 * trials * trials))
    return max(0.0, middle - half), min(1.0, middle + half)


def each_over_ranks(session: Session, find: Callable[[int], T], count: int) -> list[T]:
    """Return what `find` returns for each of `count` items, any picklable value; like `over_ranks`. Collective."""
    mine: dict[int, T] = {}
    for (position,), _ in _batches(session, count, 1):
        mine[position] = _measured(session, find, position, casts=True)
    every = {position: value for part in session.world.gather(mine) for position, value in part.items()}
    return [every[position] for position in range(count)]


def _batches(session: Session, count: int, at_once: int | None) -> Iterator[tuple[list[int], int]]:
    """Yield the positions of each batch of this rank, and how many of them are not filling."""
    for slots in split(count, session.world.size, session.world.rank, at_once):
        yield list(slots.positions), int(sum(slots.weights))
        session.reporter.goes_on()


A = TypeVar("A")


@torch.no_grad()
def _measured(session: Session, measure: Callable[[A], T], items: A, *, casts: bool) -> T:
    """Run `measure`. Autocast does not depend on the strategy, unlike in training, where FSDP casts instead."""
    if not casts:
        return measure(items)
    with session.precision.casting():
        return measure(items)
