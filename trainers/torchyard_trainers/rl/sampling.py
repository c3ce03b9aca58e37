"""Sampling from large vocabularies: one random number a choice, which belongs to the sample and not to a process."""

import math

import torch
from torch import Tensor

from torchyard_trainers.core.randomness import sample_keys, split_keys, stream_key

_KEY_BITS = 63
_FRACTION_BITS = 52  # half a step is added, so that 0 and 1 are excluded: 53 bits are all that a float64 has
CHUNK = 2**23  # probabilities in float64 that are computed at once: 64 MiB


def draws_of(seed: int, stream: str, ids: Tensor, first: int, count: int, *, held_out: bool = False) -> Tensor:
    """Return uniform numbers in (0, 1) for `count` positions of samples, from position `first` on: [n, count] float64.

    A number depends on the seed, the stream, the sample and the position only. With the 23 bits of float32, choices
    below a probability of 1e-7 could not be distinguished; a vocabulary has many of them.

    Args:
        seed: of the run.
        stream: what the numbers are for.
        ids: [n] int64, numbers of the samples.
        first: the first position.
        count: of positions.
        held_out: draw what no training stream can draw.
    """
    keys = split_keys(sample_keys(stream_key(seed, stream, held_out=held_out), ids), count, offset=first)
    return ((keys >> (_KEY_BITS - _FRACTION_BITS)).double() + 0.5) * 2.0**-_FRACTION_BITS


def restrict(logits: Tensor, *, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """Return logits [n, V] with -inf for choices that are not sampled.

    Args:
        logits: divided by the temperature already.
        top_k: keep as many of the most probable choices, and those as probable as the last of them; 0: all.
        top_p: keep the most probable choices that together reach this probability, at least one; 1: all.
    """
    if 0 < top_k < logits.shape[-1]:
        least = logits.topk(top_k, -1).values[..., -1:]
        logits = logits.masked_fill(logits < least, -math.inf)
    if top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        probabilities = ordered.softmax(-1)
        # A choice is left out if those before it reach `top_p` already; the first never is.
        left_out = probabilities.cumsum(-1) - probabilities >= top_p
        left_out[..., 0] = False
        logits = logits.masked_fill(torch.zeros_like(left_out).scatter(-1, order, left_out), -math.inf)
    return logits


def choose(logits: Tensor, draw: Tensor) -> Tensor:
    """Return one choice for each row of logits [n, V], by the inverse of their distribution: [n] int64.

    Args:
        logits: -inf for choices that must not be made.
        draw: [n] uniform in (0, 1).
    """
    assert draw.shape == logits.shape[:1], f"{tuple(draw.shape)}, {tuple(logits.shape)}"
    rows = max(1, CHUNK // logits.shape[-1])
    parts = zip(logits.split(rows), draw.double().split(rows), strict=True)
    return torch.cat([_choose(some, each) for some, each in parts])


def _choose(logits: Tensor, draw: Tensor) -> Tensor:
    below = logits.double().softmax(-1).cumsum(-1)
    # The sums end near 1; relative to where they end, no draw is beyond the last possible choice.
    found = torch.searchsorted(below, (draw * below[:, -1])[:, None], right=True)[:, 0]
    possible = (logits > -math.inf).long() * torch.arange(logits.shape[-1], device=logits.device)
    return torch.minimum(found, possible.amax(-1))
