"""Data order: the samples of a step as a pure function of (fingerprint, seed, step). No state, no file, O(1) memory.

A finite set is walked in a keyed permutation that is new every epoch; an endless (procedural) one is counted through,
and each sample is made from its number.
"""

import hashlib
from collections.abc import Callable, Sequence

ROUNDS = 6


def order_key(fingerprint: str, seed: int) -> int:
    """Mix what a run's data depends on into one 64-bit key."""
    return int.from_bytes(hashlib.blake2b(f"{fingerprint}/{seed}".encode(), digest_size=8).digest(), "big")


def samples_of_step(step: int, global_batch: int, *, size: int | None = None, key: int = 0) -> Sequence[int]:
    """Give the global sample ids of a step, in order.

    Args:
        step: 0 for the first optimizer step.
        global_batch: samples a step.
        size: samples in the set; None: endless, ids never repeat.
        key: from `order_key`; only used for a finite set.
    """
    first = step * global_batch
    if size is None:
        return range(first, first + global_batch)
    ids = []
    permutations: dict[int, Callable[[int], int]] = {}
    for position in range(first, first + global_batch):
        epoch, offset = divmod(position, size)
        if epoch not in permutations:
            permutations[epoch] = permutation(size, order_key(str(key), epoch))
        ids.append(permutations[epoch](offset))
    return ids


def permutation(size: int, key: int) -> Callable[[int], int]:
    """Give a keyed bijection of [0, size): a Feistel network on an even power of two, walked until it lands inside."""
    half_bits = max(1, -(-max(1, (size - 1).bit_length()) // 2))
    mask = (1 << half_bits) - 1
    round_keys = [order_key(str(key), number) for number in range(ROUNDS)]

    def encipher(value: int) -> int:
        left, right = value >> half_bits, value & mask
        for round_key in round_keys:
            left, right = right, left ^ (_mix(right ^ round_key) & mask)
        return (left << half_bits) | right

    def image(index: int) -> int:
        assert 0 <= index < size
        value = encipher(index)
        while value >= size:
            value = encipher(value)
        return value

    return image


def _mix(value: int) -> int:
    """splitmix64's finaliser (Steele, Lea, Flood 2014)."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    value = (value ^ (value >> 30)) * 0xBF58_476D_1CE4_E5B9 & 0xFFFF_FFFF_FFFF_FFFF
    value = (value ^ (value >> 27)) * 0x94D0_49BB_1331_11EB & 0xFFFF_FFFF_FFFF_FFFF
    return value ^ (value >> 31)
