"""`dataset PATH`: what a LeRobot dataset holds, and which of its frames cannot be used."""

from pathlib import Path
from statistics import median
from typing import Any

from torchyard_trainers.core.data.frames import Videos, decode_image
from torchyard_trainers.core.data.lerobot import Episode, Frames, LeRobot, open_lerobot
from torchyard_trainers.core.exits import DataError

PROBLEMS = 20  # that are listed; the others are counted


def inspect(folder: Path) -> dict[str, Any]:
    """Return episodes, lengths, features, statistics and problems of a dataset.

    All numbers of all frames are checked, and of each camera the first and the last image of every episode is decoded.

    Raises:
        DataError: the metadata cannot be read.
    """
    dataset = open_lerobot(folder)
    lengths = [each.length for each in dataset.episodes]
    frames = Frames(dataset, _vectors(dataset))
    problems = [text for episode in dataset.episodes for text in _problems(dataset, frames, episode)]
    missing = [name for name in _vectors(dataset) if not dataset.statistics.get(name)]
    problems += [f"the statistics lack {name!r}; compute them with LeRobot" for name in missing]
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
        "statistics": {name: dict(dataset.statistics[name]) for name in _vectors(dataset) if name not in missing},
        "problems": problems[:PROBLEMS],
        "problemCount": len(problems),
    }


def _vectors(dataset: LeRobot) -> list[str]:
    """Return the features of the robot that are vectors of numbers."""
    return [
        name
        for name, each in dataset.features.items()
        if len(each["shape"]) == 1 and each["dtype"].startswith("float") and name != "timestamp"
    ]


def _problems(dataset: LeRobot, frames: Frames, episode: Episode) -> list[str]:
    try:
        frames.of(episode)
    except DataError as error:
        return [str(error)]
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
