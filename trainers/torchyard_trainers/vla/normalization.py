"""Normalisation of states and actions by statistics of the demonstrations."""

import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

Kind = Literal["min-max", "mean-std", "none"]
# A range or deviation below this is a constant; dividing by it would turn rounding errors into signals.
LEAST = 1e-6


class Scaling(NamedTuple):
    """A linear map of a vector: (value - shift) / scale, [d] each."""

    shift: Tensor
    scale: Tensor

    def normalize(self, values: Tensor) -> Tensor:
        """Return values [..., d] normalised."""
        return (values - self.shift.to(values.device)) / self.scale.to(values.device)

    def restore(self, values: Tensor) -> Tensor:
        """Return normalised values [..., d] in their units."""
        return values * self.scale.to(values.device) + self.shift.to(values.device)


def scaling(statistics: Mapping[str, Any], kind: Kind) -> Scaling:
    """Return the map for a vector with these statistics: `mean`, `std`, `min` and `max`, [d] each.

    A part that is constant in the demonstrations is shifted only.
    """
    if kind == "none":
        size = len(statistics["mean"])
        return Scaling(torch.zeros(size), torch.ones(size))
    values = {name: torch.as_tensor(statistics[name], dtype=torch.float64) for name in ("mean", "std", "min", "max")}
    if kind == "mean-std":
        shift, scale = values["mean"], values["std"]
    else:
        shift, scale = (values["max"] + values["min"]) / 2, (values["max"] - values["min"]) / 2
    return Scaling(shift.float(), torch.where(scale < LEAST, torch.ones_like(scale), scale).float())


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
