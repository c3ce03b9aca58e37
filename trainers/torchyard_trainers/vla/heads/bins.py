"""Action tokens: each part of a normalised action, in [-1, 1], is one of equal bins, as in RT-2 and OpenVLA."""

import torch
from torch import Tensor


def to_bins(values: Tensor, bins: int) -> Tensor:
    """Return the numbers of the bins that values are in, int64 of the same shape; values outside are moved to an end.

    Args:
        values: normalised to [-1, 1].
        bins: of equal width.
    """
    return ((values.float() + 1) * (bins / 2)).floor().clamp(0, bins - 1).long()


def middles(numbers: Tensor, bins: int) -> Tensor:
    """Return the middles of bins, float32 in (-1, 1): at most 1 / bins away from the values."""
    return (numbers.to(torch.float32) + 0.5) * (2 / bins) - 1
