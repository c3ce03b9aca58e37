"""Data order: the samples of a step as a pure function of (fingerprint, seed, step). No state, no file, O(1) memory.

A finite set is visited in a keyed permutation that changes every epoch; an endless (procedural) one has increasing
ids, and each sample is created from its id.
"""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

ROUNDS = 6

Numbers = NDArray[np.uint64]


def order_key(fingerprint: str, seed: int) -> int:
    """Hash a fingerprint of the data and a seed to a 64-bit key."""
    return int.from_bytes(hashlib.blake2b(f"{fingerprint}/{seed}".encode(), digest_size=8).digest(), "big")


def samples_of_step(step: int, global_batch: int, *, size: int | None = None, key: int = 0) -> Sequence[int]:
    """Return the global sample ids of a step, in order.

    Args:
        step: 0 for the first optimizer step.
        global_batch: samples per step.
        size: samples in the set; None: endless, ids never repeat.
        key: from `order_key`; only used for a finite set.
    """
    first, end = step * global_batch, (step + 1) * global_batch
    if size is None:
        return range(first, end)
    ids: list[int] = []
    for epoch in range(first // size, (end - 1) // size + 1):
        begun = epoch * size
        offsets = np.arange(max(first, begun) - begun, min(end, begun + size) - begun, dtype=np.uint64)
        ids += permutation(size, order_key(str(key), epoch))(offsets).tolist()
    return ids


def permutation(size: int, key: int) -> Callable[[Numbers], Numbers]:
    """Return a keyed bijection of [0, size): a Feistel network on an even power of two, with cycle walking."""
    half_bits = np.uint64(max(1, -(-max(1, (size - 1).bit_length()) // 2)))
    mask = (np.uint64(1) << half_bits) - np.uint64(1)
    round_keys = [np.uint64(order_key(str(key), number)) for number in range(ROUNDS)]

    def encipher(values: Numbers) -> Numbers:
        left, right = values >> half_bits, values & mask
        for round_key in round_keys:
            left, right = right, left ^ (_mix(right ^ round_key) & mask)
        return (left << half_bits) | right

    def image(indices: Numbers) -> Numbers:
        assert (indices < size).all()
        values = encipher(indices)
        while (outside := values >= size).any():
            values[outside] = encipher(values[outside])
        return values

    return image


def _mix(values: Numbers) -> Numbers:
    """splitmix64's finaliser (Steele, Lea, Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return values ^ (values >> np.uint64(31))
