"""Batch algebra: distributes the samples of one optimizer step over ranks and micro-batches. Pure.

The global batch G is a constant of the run, for any world size and any micro-batch: slots beyond G are
padding with weight 0, every rank has the same number of equally large micro-batches (sharded models gather parameters
in each of them, so ranks must agree), and the loss is divided by G, never by a local count.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Slots(NamedTuple):
    """One micro-batch of one rank: positions in the global batch, and which of them count."""

    positions: Sequence[int]  # 0 <= position < G; padding repeats a real position; a range if there is none
    weights: list[float]  # 1.0 for a sample, 0.0 for padding


def split(global_batch: int, world: int, rank: int, micro_batch: int | None = None) -> list[Slots]:
    """Return the micro-batches of `rank`: its samples are positions `[rank::world]` in that order.

    Args:
        global_batch: samples per optimizer step, over all ranks.
        world: number of ranks.
        rank: 0 <= rank < world.
        micro_batch: largest number of samples in one forward pass; None: all at once.
    """
    if min(global_batch, world) < 1 or (micro_batch is not None and micro_batch < 1):
        raise ValueError(
            f"global batch {global_batch}, world {world}, micro-batch {micro_batch}: each must be at least 1"
        )
    assert 0 <= rank < world
    per_rank = -(-global_batch // world)
    accumulation = 1 if micro_batch is None else -(-per_rank // micro_batch)
    size = -(-per_rank // accumulation)
    mine = range(rank, global_batch, world)
    spare = mine[-1] if mine else 0

    def padded(part: range) -> Slots:
        lacking = size - len(part)
        return Slots([*part] + [spare] * lacking if lacking else part, [1.0] * len(part) + [0.0] * lacking)

    return [padded(mine[at : at + size]) for at in range(0, size * accumulation, size)]
