"""Rows of an embedding for tokens that a model did not have: near the mean of the others, as transformers makes them.

`resize_token_embeddings` draws new rows from a normal distribution with the mean of the old ones and 1e-9 of their
covariance (Hewitt 2021, nlp.stanford.edu/~johnhew/vocab-expansion.html). The same distribution is drawn here without
the covariance: a sum of the centred rows with normal weights has it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchyard_trainers.core.randomness import stream_key

EPSILON = 1e-9
ROWS = 4096  # that are read at once


def fill_grown(local: Tensor, part: Sequence[slice], stored: Any, added: range, name: str) -> None:
    """Fill this process's part of a parameter: rows of a file, and those of added tokens.

    Args:
        local: the part, [rows, ...].
        part: where it is in the whole parameter.
        stored: slice of safetensors, with as many rows as the parameter or fewer.
        added: rows that get new values; those behind the rows of the file do, too.
        name: of the tensor, which seeds the new rows: they are the same in every process.
    """
    first = min(added.start, stored.get_shape()[0])
    rows, rest = part[0], tuple(part[1:])
    end = max(rows.start, min(rows.stop, first))
    if end > rows.start:
        local[: end - rows.start].copy_(stored[(slice(rows.start, end), *rest)])
    begin, stop = max(rows.start, first), min(rows.stop, added.stop)
    if stop > begin:
        new = new_rows(stored, first, added.stop - first, name)
        local[begin - rows.start : stop - rows.start].copy_(new[(slice(begin - first, stop - first), *rest)])
    behind = max(rows.start, added.stop)  # rows of a padded vocabulary
    if rows.stop > behind:
        known = max(behind, min(rows.stop, stored.get_shape()[0]))
        local[behind - rows.start : known - rows.start].copy_(stored[(slice(behind, known), *rest)])
        local[known - rows.start :].zero_()


def new_rows(stored: Any, first: int, count: int, name: str) -> Tensor:
    """Return `count` rows [count, ...] like the first `first` ones of a tensor in a file, in float32."""
    spans = [slice(begin, min(begin + ROWS, first)) for begin in range(0, first, ROWS)]
    total = torch.stack([stored[each].double().sum(0) for each in spans]).sum(0)
    mean = total / first
    generator = torch.Generator().manual_seed(stream_key(0, f"new rows of {name}") % 2**63)
    noise = torch.zeros(count, *mean.shape, dtype=torch.float64)
    for span in spans:
        centred = stored[span].double() - mean
        weights = torch.randn(count, len(centred), generator=generator, dtype=torch.float64)
        noise += torch.tensordot(weights, centred, 1)
    return (mean + noise * (EPSILON / first) ** 0.5).float()
