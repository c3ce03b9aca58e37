"""Normalisation of states and actions by statistics of the demonstrations."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from torch import Tensor

Kind = Literal["min-max", "mean-std", "none"]
# A range or deviation below this is a constant; dividing by it would turn rounding errors into signals.
LEAST = 1e-6


class Scaling(NamedTuple):
    """A linear map of vectors: (value - shift) / scale, d numbers each."""

    shift: Sequence[float]
    scale: Sequence[float]

    def normalize(self, values: Tensor) -> Tensor:
        """Return values [..., d] normalised."""
        return (values - values.new_tensor(self.shift)) / values.new_tensor(self.scale)

    def restore(self, values: Tensor) -> Tensor:
        """Return normalised values [..., d] in their units."""
        return values * values.new_tensor(self.scale) + values.new_tensor(self.shift)


def scaling(statistics: Mapping[str, Sequence[float]], kind: Kind) -> Scaling:
    """Return the map for a vector with these statistics: `mean`, `std`, `min` and `max`, d numbers each.

    A part that is constant in the demonstrations is shifted only.
    """
    if kind == "none":
        size = len(statistics["mean"])
        return Scaling([0.0] * size, [1.0] * size)
    if kind == "mean-std":
        shift, scale = statistics["mean"], statistics["std"]
    else:
        ends = list(zip(statistics["min"], statistics["max"], strict=True))
        shift, scale = [(high + low) / 2 for low, high in ends], [(high - low) / 2 for low, high in ends]
    return Scaling(list(shift), [each if each >= LEAST else 1.0 for each in scale])


def measured(values: Tensor) -> dict[str, list[float]]:
    """Return the statistics of vectors [n, d]."""
    exact = values.double()
    return {
        "min": exact.amin(0).tolist(),
        "max": exact.amax(0).tolist(),
        "mean": exact.mean(0).tolist(),
        "std": exact.std(0, correction=0).tolist(),
        "count": [len(exact)],
    }


def as_json(kind: Kind, statistics: Mapping[str, Any]) -> str:
    """Return the content of `normalization.json`, which an exported policy needs beside its weights."""
    return json.dumps({"schema": 1, "normalization": kind, "statistics": dict(statistics)}, indent=1) + "\n"
