"""Where the parameters of a transformers model are in published files, which name and divide some of them otherwise.

The experts of a mixture, for example, are one parameter in memory, and one or two tensors for each expert in a file.
"""

import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Piece(NamedTuple):
    """A tensor of a file, and the part of a parameter that it is."""

    name: str
    at: tuple[int, slice] | None = None  # expert, and rows of its matrix; None: the whole parameter


def published(language: Any, shapes: Mapping[str, Sequence[int]]) -> dict[str, list[Piece]]:
    """Return the pieces of each parameter that files name or divide otherwise; [] if they are computed from it.

    Args:
        language: a model of transformers, which knows the layout of its family.
        shapes: of its parameters, by name.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import PrefixChange, revert_weight_conversion

    known = get_model_conversion_mapping(language, add_legacy=False)
    conversions = [each for each in known if not isinstance(each, PrefixChange)]
    if not conversions:
        return {}
    family: Any = SimpleNamespace(_weight_conversions=conversions, config=language.config)
    found = {}
    for name, shape in shapes.items():
        rows = _rows(shape)
        try:
            parts = revert_weight_conversion(family, {name: rows})
        except (RuntimeError, ValueError, IndexError):  # it is more than a division into rows
            parts = {}
        pieces = _pieces(parts, rows)
        if pieces != [Piece(name)]:
            found[name] = pieces
    return found


def _rows(shape: Sequence[int]) -> Tensor:
    """Return the numbers of a parameter's rows, in its shape but for the last dimensions, which have the size 1."""
    divided = shape[:2] if len(shape) == 3 else shape[:1]
    return torch.arange(math.prod(divided), dtype=torch.int32).view(*divided, *[1] * (len(shape) - len(divided)))


def _pieces(parts: Mapping[str, Tensor], rows: Tensor) -> list[Piece]:
    """Return where the rows of a parameter went; [] if they are not a piece of it any more."""
    if len(parts) == 1:
        return [Piece(name) for name, part in parts.items() if torch.equal(part, rows)]
    pieces = []
    for name, part in parts.items():
        numbers = part.flatten().tolist()
        if rows.dim() != 3 or part.dim() != 2 or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            return []
        expert, first = divmod(numbers[0], rows.shape[1])
        pieces.append(Piece(name, (expert, slice(first, first + len(numbers)))))
    return pieces
