"""Random numbers that belong to a sample, not to a process.

Every number is a hash of where it is used: (seed, stream, sample id, ...). World size, micro-batch and restarts cannot
move it, there is no generator state to save, and it is made where the model lives with no host round trip. 32-bit
arithmetic in int64 tensors, since torch has no unsigned multiply on all devices; the mixer is lowbias32 (Wellons 2018,
bias 0.17 of 1000).
"""

import hashlib

import torch
from torch import Tensor

_MASK = 0xFFFF_FFFF
_STRIDE = 0x9E37_79B9


def stream_key(seed: int, stream: str) -> int:
    """Give a 64-bit key for one use of randomness in a run, e.g. (1, "train")."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{stream}".encode(), digest_size=8).digest(), "big")


def mix(value: Tensor) -> Tensor:
    """Hash int64 values below 2**32 to int64 values below 2**32, elementwise."""
    value = (value ^ (value >> 16)) * 0x7FEB_352D & _MASK
    value = (value ^ (value >> 15)) * 0x846C_A68B & _MASK
    return value ^ (value >> 16)


def sample_keys(key: int, ids: Tensor) -> Tensor:
    """Give one 32-bit key per global sample id; ids up to 2**62. Shape as `ids`, int64.

    The halves of the stream's key go in before and after a mix: with one half alone, two streams would be the same
    sequence in another order of ids, and a run could train on instances of its evaluation set.
    """
    low, high = ids & _MASK, ids >> 32
    return mix(mix(low ^ (key & _MASK)) ^ (high * _STRIDE & _MASK) ^ (key >> 32))


def split_keys(keys: Tensor, count: int, offset: int = 0) -> Tensor:
    """Give `count` keys for each key: [...] -> [..., count]."""
    branch = torch.arange(offset, offset + count, device=keys.device)
    return mix(mix(keys).unsqueeze(-1) ^ (branch * _STRIDE & _MASK))


def uniform(keys: Tensor) -> Tensor:
    """Turn keys into float32 numbers strictly between 0 and 1 (23 bits: both ends stay out after rounding)."""
    return ((mix(keys) >> 9).float() + 0.5) * 2.0**-23


def gumbel(keys: Tensor) -> Tensor:
    """Turn keys into standard Gumbel noise: argmax(logits + noise) is a sample of the softmax."""
    return -torch.log(-torch.log(uniform(keys)))
