"""Statistics of states and actions of one or several datasets: those of the metadata, or measured."""

from collections.abc import Mapping, Sequence

import numpy as np

from torchyard_trainers.core.data.lerobot import KINDS, QUANTILES, statistics_fault
from torchyard_trainers.core.data.robot_features import ACTION
from torchyard_trainers.core.exits import DataError
from torchyard_trainers.vla.data.episodes import Episodes
from torchyard_trainers.vla.data.normalization import Kind

MOST_FRAMES = 200_000
"""Frames of a dataset that are measured: of a larger one, evenly spaced episodes."""
_MOST_VECTORS = 2_000_000

Statistics = Mapping[str, Sequence[float]]


def statistics_of(parts: Sequence[Episodes], name: str, kind: Kind) -> Statistics:
    """Return the statistics of STATE or ACTION, over the frames of all datasets.

    Those of the metadata are used where they are what is learned. Delta actions, and quantiles that the metadata of a
    dataset lacks or that several datasets have, are measured in the frames that train.

    Raises:
        DataError: the metadata cannot normalise.
    """
    every = [part.dataset.statistics.get(part.names[name], {}) for part in parts]
    if kind == "none":
        return every[0] if len(parts) == 1 and parts[0].deltas is None else {}
    lacks = any(each not in one for one in every for each in QUANTILES)
    if parts[0].deltas is not None and name == ACTION:
        return _measured(parts, name)
    if kind == "quantile" and (lacks or len(parts) > 1):
        return _measured(parts, name)
    for part in parts:
        if fault := statistics_fault(part.dataset, part.names[name], quantiles=kind == "quantile"):
            raise DataError(f"{part.dataset.folder}: {fault}")
    return every[0] if len(parts) == 1 else _joined(every, [len(part) for part in parts])


def _joined(every: Sequence[Statistics], counts: Sequence[int]) -> Statistics:
    """Return the statistics of several sets of frames as of one, by the formulas of LeRobot's `aggregate_stats`."""
    share = (np.array(counts) / sum(counts))[:, None]
    low, high, means, deviations = (np.stack([np.array(each[kind]) for each in every]) for kind in KINDS)
    mean = (means * share).sum(0)
    variance = ((deviations**2 + (means - mean) ** 2) * share).sum(0)
    return {
        "min": low.min(0).tolist(),
        "max": high.max(0).tolist(),
        "mean": mean.tolist(),
        "std": np.sqrt(variance).tolist(),
        "count": [float(sum(counts))],
    }


def _measured(parts: Sequence[Episodes], name: str) -> Statistics:
    chunk = parts[0].chunk if parts[0].deltas is not None and name == ACTION else 1
    frames = min(MOST_FRAMES, _MOST_VECTORS // chunk) // len(parts)
    values = np.concatenate([each for part in parts for each in part.vectors(name, frames)]).astype(np.float64)
    low, high = np.quantile(values, [0.01, 0.99], axis=0)
    return {
        "min": values.min(0).tolist(),
        "max": values.max(0).tolist(),
        "mean": values.mean(0).tolist(),
        "std": values.std(0).tolist(),
        "q01": low.tolist(),
        "q99": high.tolist(),
        "count": [len(values)],
    }
