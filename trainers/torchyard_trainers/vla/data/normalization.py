"""Normalisation of states and actions by statistics of the demonstrations."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Kind = Literal["min-max", "quantile", "mean-std", "none"]
# A range or deviation below this is a constant; dividing by it would turn rounding errors into signals.
LEAST = 1e-6
# Where 98 % of the values take less than this after normalisation, those outside of them take the rest. Of [-1, 1] that
# is a twentieth, and of deviations a tenth of what a normal distribution has.
FLAT = {"min-max": 0.1, "mean-std": 0.47}


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

    `quantile` maps the range of 98 % of the values, `q01` to `q99`, to [-1, 1]; others lie outside.

    A part that is constant in the demonstrations is shifted only.
    """
    if kind == "none":
        size = len(statistics["mean"])
        return Scaling([0.0] * size, [1.0] * size)
    if kind == "mean-std":
        shift, scale = statistics["mean"], statistics["std"]
    else:
        low, high = ("q01", "q99") if kind == "quantile" else ("min", "max")
        ends = list(zip(statistics[low], statistics[high], strict=True))
        shift, scale = [(one + other) / 2 for one, other in ends], [(other - one) / 2 for one, other in ends]
    return Scaling(list(shift), [each if each >= LEAST else 1.0 for each in scale])


def flattened(values: NDArray[np.float32], statistics: Mapping[str, Sequence[float]], kind: Kind) -> str:
    """Return which part of a vector a few outliers flatten under a kind of normalisation, with numbers; "" if none.

    Args:
        values: [n, d] vectors of the demonstrations.
        statistics: see `scaling`.
        kind: of normalisation.
    """
    if kind not in FLAT:
        return ""
    low, high = np.quantile(values.astype(np.float64), [0.01, 0.99], axis=0)
    width = (high - low) / np.asarray(scaling(statistics, kind).scale)
    flat = [part for part in range(len(width)) if 0 < width[part] < FLAT[kind]]
    if not flat:
        return ""
    part = min(flat, key=lambda each: width[each])
    return (
        f"98 % of the values of part {part} are from {low[part]:.4g} to {high[part]:.4g}, and all from "
        f"{statistics['min'][part]:.4g} to {statistics['max'][part]:.4g}: with normalization {kind} the former differ "
        f"by {width[part]:.2g} only"
    )


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


def as_json(kind: Kind, statistics: Mapping[str, Any], *, delta_parts: Sequence[bool] | None = None) -> str:
    """Return the content of `normalization.json`, which an exported policy needs beside its weights.

    Args:
        kind: of normalisation.
        statistics: by feature.
        delta_parts: of each part of an action, whether it is a change of the state; None: all are absolute.
    """
    tree: dict[str, Any] = {"schema": 1, "normalization": kind, "statistics": dict(statistics)}
    if delta_parts is not None:
        tree["deltaParts"] = list(delta_parts)
    return json.dumps(tree, indent=1) + "\n"
