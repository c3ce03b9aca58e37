"""Demonstrations of a LeRobot dataset as a `Source`: images, state, and the actions that follow."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchyard_trainers.core.data.frames import Videos, decode_image, fitted
from torchyard_trainers.core.data.lerobot import Episode, LeRobot, open_lerobot, statistics_fault
from torchyard_trainers.core.data.lerobot_frames import Frames
from torchyard_trainers.core.data.robot_features import ACTION, STATE, no_camera, robot_features
from torchyard_trainers.core.exits import ConfigError, DataError
from torchyard_trainers.core.vocabulary import Vocabulary
from torchyard_trainers.vla.instructions import Instructions
from torchyard_trainers.vla.normalization import Kind, Scaling, as_json, flattened, scaling
from torchyard_trainers.vla.observation import Demonstration, Observation
from torchyard_trainers.vla.params import Settings

# A time between frames is meant where it is this far from a frame, in frames.
_NEAR = 0.01
_LOOKED_AT = 64  # episodes whose numbers are looked at for outliers, at most


class Batch(NamedTuple):
    """m frames with what follows them, as read in a worker process.

    Attributes:
        images: [m, cameras, S, S, 3] uint8.
        state: [m, d].
        actions: [m, H, a].
        valid: [m, H] bool, false after the end of the episode.
        tokens: [m, T] int64, the instructions, padded on the right.
        mask: [m, T] bool; None: all instructions are equally long.
    """

    images: Tensor
    state: Tensor
    actions: Tensor
    valid: Tensor
    tokens: Tensor
    mask: Tensor | None


class Recordings:
    """The frames of some episodes of a dataset: every frame is a sample."""

    def __init__(
        self,
        dataset: LeRobot,
        episodes: Sequence[Episode],
        *,
        cameras: Sequence[str],
        fields: Mapping[str, str] | None = None,
        image_size: int,
        chunk: int,
        kind: Kind,
        action_seconds: float | None = None,
        image_deltas: Sequence[float] = (0.0,),
        vocabulary: Vocabulary | None = None,
    ) -> None:
        """Read frames of `episodes`.

        Args:
            dataset: with a state and actions.
            episodes: of the dataset.
            cameras: features that are images, in the order in which the model sees them; (): all.
            fields: names of the features that are `state` and `action`; None: LeRobot's.
            image_size: pixels of a side that images are fitted into.
            chunk: actions that follow.
            kind: of normalisation.
            action_seconds: between two actions of a chunk; None: one frame.
            image_deltas: seconds, 0 or less, of the images that the model sees of each camera; those before the
                episode's first frame are its first one.
            vocabulary: of the model, which encodes the instructions; None: that of their words.

        Raises:
            DataError: a feature is missing or of another kind, or its statistics are.
            ConfigError: a time is not that of a frame.
        """
        self._dataset, self._episodes, self._size = dataset, list(episodes), image_size
        self._cameras = list(cameras) or dataset.cameras
        if not self._cameras:
            raise DataError(no_camera(dataset))
        for name in self._cameras:
            if name not in dataset.cameras:
                raise DataError(f"{dataset.folder}: no camera {name!r}; it has {', '.join(dataset.cameras) or 'none'}")
        self._names = robot_features(dataset, fields or {})
        self.state_size, self.action_size = (dataset.width(name) for name in self._names.values())
        for name in self._names.values():
            if kind != "none" and (fault := statistics_fault(dataset, name, quantiles=kind == "quantile")):
                raise DataError(f"{dataset.folder}: {fault}")
        self._kind: Kind = kind
        stride = 1 if action_seconds is None else _frames_of(action_seconds, dataset.fps, "actionSeconds")
        if stride < 1:
            raise ConfigError(f"trainer.params.actionSeconds: {action_seconds} is less than one frame")
        self._ahead = np.arange(chunk) * stride
        self._back = [_frames_of(each, dataset.fps, "imageDeltas") for each in image_deltas]
        if max(self._back) > 0:
            raise ConfigError(f"trainer.params.imageDeltas: {max(image_deltas)} is in the future; use 0 or less")
        self._videos = Videos()
        self._ends = np.cumsum([each.length for each in self._episodes])
        self._places = {task: place for place, task in enumerate(sorted(dataset.tasks))}
        self.instructions = Instructions([dataset.tasks[task] for task in self._places], vocabulary=vocabulary)
        self.fingerprint = f"{dataset.fingerprint}-{self._episodes[0].number}-{self._episodes[-1].number}"

    @property
    def views(self) -> int:
        """Images that the model sees at once."""
        return len(self._cameras) * len(self._back)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def lengths(self) -> None:
        """All samples are equally long."""

    def read(self, ids: Sequence[int]) -> Batch:
        """Return samples, not normalised.

        Raises:
            DataError: a frame cannot be used; the message names file, episode, frame and field.
        """
        parts = [self._sample(number) for number in ids]
        images, state, actions, valid, tasks = zip(*parts, strict=True)
        tokens, mask = self.instructions.of(torch.tensor([self._places[each] for each in tasks]))
        return Batch(
            torch.from_numpy(np.stack(images)),
            torch.from_numpy(np.stack(state)),
            torch.from_numpy(np.stack(actions)),
            torch.from_numpy(np.stack(valid)),
            tokens,
            mask,
        )

    def demonstrations(self, batch: Batch) -> Demonstration:
        """Return samples normalised, on their device."""
        images = batch.images.permute(0, 1, 4, 2, 3).float() / 127.5 - 1
        seen = Observation(images, self.scaling(STATE).normalize(batch.state), batch.tokens, batch.mask)
        return Demonstration(seen, self.scaling(ACTION).normalize(batch.actions), batch.valid)

    def scaling(self, name: str) -> Scaling:
        """Return what normalises STATE or ACTION."""
        size = self.state_size if name == STATE else self.action_size
        return scaling(self._dataset.statistics.get(self._names[name], {"mean": [0.0] * size}), self._kind)

    def assets(self) -> dict[str, Path | str]:
        """Return files that an exported policy needs: statistics, and what encodes instructions."""
        own = {name: self._dataset.statistics.get(feature, {}) for name, feature in self._names.items()}
        return {"normalization.json": as_json(self._kind, own), **self.instructions.assets()}

    def warnings(self) -> list[str]:
        """Return what a few outliers do to state and actions, seen in some of the episodes."""
        if self._kind == "none":
            return []
        step = -(-len(self._episodes) // _LOOKED_AT)
        rows = [self._frames.of(episode) for episode in self._episodes[::step]]
        found = {
            name: flattened(np.concatenate([each[name] for each in rows]), self._dataset.statistics[name], self._kind)
            for name in self._names.values()
        }
        return [
            f"{self._dataset.folder}: field {name!r}: {text}; use trainer.params.normalization quantile, or leave out "
            "the frames with the others"
            for name, text in found.items()
            if text
        ]

    @cached_property
    def _frames(self) -> Frames:
        return Frames(self._dataset, list(self._names.values()))

    def _sample(self, number: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], int]:
        place = int(np.searchsorted(self._ends, number, side="right"))
        episode = self._episodes[place]
        frame = number - int(self._ends[place]) + episode.length
        rows = self._frames.of(episode)
        ahead = frame + self._ahead
        valid = ahead < episode.length
        actions = rows[self._names[ACTION]][np.minimum(ahead, episode.length - 1)]
        images = [self._image(episode, max(0, frame + back), camera) for camera in self._cameras for back in self._back]
        return np.stack(images), rows[self._names[STATE]][frame], actions, valid, int(rows["task_index"][frame])

    def _image(self, episode: Episode, frame: int, camera: str) -> NDArray[np.uint8]:
        place = f"{episode.file}, episode {episode.number}, frame {frame}, field {camera!r}"
        if camera not in episode.videos:
            return fitted(decode_image(self._frames.image(episode, frame, camera), place), self._size)
        file, start = episode.videos[camera]
        second = start + frame / self._dataset.fps
        shown = self._videos.frame(self._dataset.folder / file, second, 0.5 / self._dataset.fps, place)
        return fitted(shown, self._size)


def open_recordings(
    settings: Settings, folder: Path, image_size: int, vocabulary: Vocabulary | None
) -> tuple[Recordings, Recordings]:
    """Return the frames to learn from and those held out.

    Raises:
        DataError: the dataset cannot be used.
        ConfigError: a parameter does not fit it.
    """
    dataset = open_lerobot(folder)
    kind: Any = settings.normalization
    first, second = (
        Recordings(
            dataset,
            episodes,
            cameras=settings.cameras,
            fields=settings.fields,
            image_size=image_size,
            chunk=settings.chunk,
            kind=kind,
            action_seconds=settings.action_seconds,
            image_deltas=settings.image_deltas,
            vocabulary=vocabulary,
        )
        for episodes in split_episodes(dataset, settings.hold_out)
    )
    return first, second


def evenly(size: int, count: int) -> list[int]:
    """Return `count` different positions below `size`, evenly spaced."""
    return [number * size // count for number in range(count)]


def split_episodes(dataset: LeRobot, share: float) -> tuple[list[Episode], list[Episode]]:
    """Return the episodes to learn from and those held out: the last ones, at least one of each.

    Raises:
        DataError: there is only one episode.
    """
    if len(dataset.episodes) < 2:
        raise DataError(
            f"{dataset.folder}: has one episode; record another one, since some are held out to measure flowLoss"
        )
    held_out = min(max(1, round(share * len(dataset.episodes))), len(dataset.episodes) - 1)
    return list(dataset.episodes[:-held_out]), list(dataset.episodes[-held_out:])


def _frames_of(seconds: float, fps: float, name: str) -> int:
    frames = round(seconds * fps)
    if abs(seconds * fps - frames) > _NEAR:
        raise ConfigError(
            f"trainer.params.{name}: {seconds} s is not a whole number of frames at {fps:g} frames per second; use "
            f"{frames / fps:g}"
        )
    return frames
