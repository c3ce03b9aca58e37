"""Random numbers that belong to a sample, not to a process.

Every number is a hash of its purpose: (seed, stream, sample id, ...). World size, micro-batch and restarts cannot
change it, there is no generator state to save, and it is computed on the model's device without a host round trip.

A key has 63 bits, in an int64 tensor whose sign bit stays 0, so that a shift needs no mask. Every function that derives
one key from another is a bijection: two samples of a stream never share a key. The top bit is set for held-out streams
only, so that no sample of a training stream is part of an evaluation set, whatever the seeds.
"""

import hashlib

import torch
from torch import Tensor

_BITS = 63
_MASK = 2**_BITS - 1
_SAMPLE_BITS = _BITS - 1
_SAMPLE_MASK = 2**_SAMPLE_BITS - 1
_STRIDE = 0x1E37_79B9_7F4A_7C15


def stream_key(seed: int, stream: str, *, held_out: bool = False) -> int:
    """Return a key for one use of randomness in a run, e.g. (1, "train"): two halves of 62 bits and the bit `held_out`.

    Args:
        seed: of the run.
        stream: its purpose.
        held_out: create samples that no training stream can create.
    """
    digest = hashlib.blake2b(f"{seed}/{stream}".encode(), digest_size=16).digest()
    return int.from_bytes(digest, "big") & (2 ** (2 * _SAMPLE_BITS) - 1) | held_out << (2 * _SAMPLE_BITS)


def sample_keys(key: int, ids: Tensor) -> Tensor:
    """Return one key per global sample id below 2**62; shape as `ids`, int64.

    The two halves of the stream's key enter before and after a mix: with one half alone, two streams would be the same
    sequence in another order of ids.
    """
    first, second, held_out = key & _SAMPLE_MASK, key >> _SAMPLE_BITS & _SAMPLE_MASK, key >> (2 * _SAMPLE_BITS)
    inner = mix(ids ^ first, _SAMPLE_MASK)
    return mix(inner ^ second, _SAMPLE_MASK) | held_out << _SAMPLE_BITS


def split_keys(keys: Tensor, count: int, offset: int = 0) -> Tensor:
    """Return `count` keys for each key: [...] -> [..., count]; different keys have different ones at each place."""
    branch = torch.arange(offset, offset + count, device=keys.device)
    return mix(mix(keys).unsqueeze(-1) ^ (branch * _STRIDE & _MASK))


def uniform(keys: Tensor) -> Tensor:
    """Convert keys of `sample_keys` or `split_keys` to float32 numbers strictly between 0 and 1.

    23 bits: both ends are excluded after rounding.
    """
    return ((keys >> (_BITS - 23)).float() + 0.5) * 2.0**-23


def gumbel(keys: Tensor) -> Tensor:
    """Convert keys to standard Gumbel noise: argmax(logits + noise) is a sample of the softmax."""
    return -torch.log(-torch.log(uniform(keys)))


def normal(keys: Tensor) -> Tensor:
    """Convert keys to numbers of the standard normal distribution, at most 5.3 away from 0."""
    return torch.special.ndtri(uniform(keys))


def mix(value: Tensor, mask: int = _MASK) -> Tensor:
    """Permute the int64 values 0 to `mask`, one less than a power of two, elementwise.

    splitmix64's finaliser (Stafford's variant 13) on fewer bits: an odd factor modulo a power of two and a shift
    to the right are bijections at any width.
    """
    value = (value ^ (value >> 30)) * _signed(0xBF58_476D_1CE4_E5B9) & mask
    value = (value ^ (value >> 27)) * _signed(0x94D0_49BB_1331_11EB) & mask
    return value ^ (value >> 31)


def _signed(factor: int) -> int:
    """Return the factor as int64: products wrap around, so adding a multiple of 2**64 does not change them."""
    return factor - 2**64
