"""`dataset PATH`: what a LeRobot dataset holds, and which of its frames cannot be used."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchyard_trainers.core.data.frames import Videos, decode_image
from torchyard_trainers.core.data.lerobot import Episode, LeRobot, open_lerobot, statistics_fault
from torchyard_trainers.core.data.lerobot_frames import Frames
from torchyard_trainers.core.data.robot_features import lacking
from torchyard_trainers.core.exits import DataError

PROBLEMS = 20  # that are listed; the others are counted
NEAR = 1e-3  # of a part's range: statistics are of float32 numbers, and were added up in another order


def inspect(folder: Path) -> dict[str, Any]:
    """Return episodes, lengths, features, statistics and problems of a dataset.

    All numbers of all frames are checked, and the statistics against them; of each camera the first and the last image
    of every episode is decoded.

    Raises:
        DataError: the metadata cannot be read.
    """
    dataset = open_lerobot(folder)
    lengths = [each.length for each in dataset.episodes]
    names = _vectors(dataset)
    frames, seen = Frames(dataset, names), {name: _Seen() for name in names}
    problems = [text for episode in dataset.episodes for text in _problems(dataset, frames, episode, seen)]
    problems += _gaps(frames, dataset.episodes) if not problems else []
    faults = {name: statistics_fault(dataset, name) for name in names}
    problems += [fault for fault in faults.values() if fault]
    if not problems:  # all frames were seen
        problems = [text for name in names if (text := seen[name].fault(name, dataset.statistics[name]))]
    problems = lacking(dataset) + problems
    if len(lengths) == 1:
        problems.append(f"{folder}: has one episode; record another one, since training holds some out to evaluate")
    return {
        "path": str(folder),
        "version": dataset.version,
        "fps": dataset.fps,
        "episodes": len(lengths),
        "frames": sum(lengths),
        "seconds": sum(lengths) / dataset.fps,
        "lengths": {"min": min(lengths), "median": median(lengths), "max": max(lengths)},
        "tasks": [dataset.tasks[number] for number in sorted(dataset.tasks)],
        "features": {name: {"dtype": each["dtype"], "shape": each["shape"]} for name, each in dataset.features.items()},
        "statistics": {name: dict(dataset.statistics[name]) for name in names if not faults[name]},
        "problems": problems[:PROBLEMS],
        "problemCount": len(problems),
    }


class _Seen:
    """The range and mean of a vector over the frames so far."""

    def __init__(self) -> None:
        self._least, self._most, self._sum, self._count = np.array(np.inf), np.array(-np.inf), np.array(0.0), 0

    def add(self, values: NDArray[Any]) -> None:
        """Count frames [n, d]."""
        exact = values.astype(np.float64)
        self._least, self._most = np.minimum(self._least, exact.min(0)), np.maximum(self._most, exact.max(0))
        self._sum, self._count = self._sum + exact.sum(0), self._count + len(exact)

    def fault(self, name: str, stated: Mapping[str, list[float]]) -> str:
        """Return how the statistics differ from the frames, "" if they do not."""
        near = NEAR * (self._most - self._least) + 1e-6
        measured = {"min": self._least, "max": self._most, "mean": self._sum / max(self._count, 1)}
        for kind, found in measured.items():
            wrong = np.flatnonzero(np.abs(np.array(stated[kind]) - found) > near)
            if len(wrong):
                at = int(wrong[0])
                return (
                    f"statistics: {kind!r} of {name!r}, part {at}, is {stated[kind][at]:g}, but that of the frames is "
                    f"{found[at]:g}; compute the statistics again with LeRobot"
                )
        return ""


def _gaps(frames: Frames, episodes: Sequence[Episode]) -> list[str]:
    """Return where `index`, the number of a frame in the dataset, does not go on from one episode to the next."""
    found, following = [], 0
    for episode in episodes:
        index = frames.of(episode)["index"]
        if index[0] != following:
            found.append(
                f"{episode.file}, episode {episode.number}, frame 0, field 'index': is {index[0]}, expected "
                f"{following}; number the frames of the dataset again"
            )
        following = int(index[-1]) + 1
    return found


def _vectors(dataset: LeRobot) -> list[str]:
    """Return the features of the robot that are vectors of numbers."""
    return [
        name
        for name, each in dataset.features.items()
        if len(each["shape"]) == 1 and each["dtype"].startswith("float") and name != "timestamp"
    ]


def _problems(dataset: LeRobot, frames: Frames, episode: Episode, seen: Mapping[str, _Seen]) -> list[str]:
    try:
        columns = frames.of(episode)
    except DataError as error:
        return [str(error)]
    for name, each in seen.items():
        each.add(columns[name])
    found, videos = [], Videos()
    for camera in dataset.cameras:
        for frame in sorted({0, episode.length - 1}):
            place = f"{episode.file}, episode {episode.number}, frame {frame}, field {camera!r}"
            try:
                if camera in episode.videos:
                    file, start = episode.videos[camera]
                    second = start + frame / dataset.fps
                    videos.frame(dataset.folder / file, second, 0.5 / dataset.fps, place)
                else:
                    decode_image(frames.image(episode, frame, camera), place)
            except DataError as error:
                found.append(str(error))
                break
    return found
