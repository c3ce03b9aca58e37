"""Frames of one LeRobot dataset as samples: images, state, and the actions that follow."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchyard_trainers.core.data.frames import Videos, decode_image, fitted
from torchyard_trainers.core.data.lerobot import Episode, LeRobot
from torchyard_trainers.core.data.lerobot_frames import Frames
from torchyard_trainers.core.data.robot_features import ACTION, STATE, no_camera, robot_features
from torchyard_trainers.core.exits import ConfigError, DataError
from torchyard_trainers.vla.data.deltas import Deltas, deltas_of

# A time between frames is meant where it is this far from a frame, in frames.
_NEAR = 0.01


class Sample(NamedTuple):
    """A frame with what follows it.

    Attributes:
        images: [cameras, S, S, 3] uint8.
        state: [d].
        actions: [H, a]; of delta parts, the change from the state.
        valid: [H] bool, false after the end of the episode.
        task: the text of its instruction.
    """

    images: NDArray[np.uint8]
    state: NDArray[np.float32]
    actions: NDArray[np.float32]
    valid: NDArray[np.bool_]
    task: str


class Episodes:
    """Some episodes of a dataset: every frame is a sample."""

    def __init__(
        self,
        dataset: LeRobot,
        episodes: Sequence[Episode],
        *,
        cameras: Sequence[str] = (),
        fields: Mapping[str, str] | None = None,
        image_size: int,
        chunk: int,
        action_seconds: float | None = None,
        image_deltas: Sequence[float] = (0.0,),
        delta_actions: bool = False,
        absolute_parts: Sequence[str] = (),
    ) -> None:
        """Read frames of `episodes`.

        Args:
            dataset: with a state and actions.
            episodes: of the dataset.
            cameras: features that are images, in the order in which the model sees them; (): all.
            fields: names of the features that are `state` and `action`; None: LeRobot's.
            image_size: pixels of a side that images are fitted into.
            chunk: actions that follow.
            action_seconds: between two actions of a chunk; None: one frame.
            image_deltas: seconds, 0 or less, of the images that the model sees of each camera; those before the
                episode's first frame are its first one.
            delta_actions: whether an action is the change from the state at the frame.
            absolute_parts: numbers or names of the parts of an action that are none.

        Raises:
            DataError: a feature is missing or of another kind.
            ConfigError: a time is not that of a frame, or the parts of an action are no change of the state.
        """
        self.dataset, self._episodes, self._size = dataset, list(episodes), image_size
        self.cameras = list(cameras) or dataset.cameras
        if not self.cameras:
            raise DataError(no_camera(dataset))
        for name in self.cameras:
            if name not in dataset.cameras:
                raise DataError(f"{dataset.folder}: no camera {name!r}; it has {', '.join(dataset.cameras) or 'none'}")
        self.names = robot_features(dataset, fields or {})
        self.state_size, self.action_size = (dataset.width(name) for name in self.names.values())
        self.deltas: Deltas | None = deltas_of(dataset, self.names, absolute_parts) if delta_actions else None
        stride = 1 if action_seconds is None else _frames_of(action_seconds, dataset.fps, "actionSeconds")
        if stride < 1:
            raise ConfigError(f"trainer.params.actionSeconds: {action_seconds} is less than one frame")
        self.chunk, self._ahead = chunk, np.arange(chunk) * stride
        self.back = [_frames_of(each, dataset.fps, "imageDeltas") for each in image_deltas]
        if max(self.back) > 0:
            raise ConfigError(f"trainer.params.imageDeltas: {max(image_deltas)} is in the future; use 0 or less")
        self._videos = Videos()
        self._ends = np.cumsum([each.length for each in self._episodes])
        self.fingerprint = f"{dataset.fingerprint}-{self._episodes[0].number}-{self._episodes[-1].number}"

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def tasks(self) -> list[str]:
        """The texts of the dataset's tasks."""
        return [self.dataset.tasks[number] for number in sorted(self.dataset.tasks)]

    def row(self, number: int) -> Sample:
        """Return a sample.

        Raises:
            DataError: a frame cannot be used; the message names file, episode, frame and field.
        """
        place = int(np.searchsorted(self._ends, number, side="right"))
        episode = self._episodes[place]
        frame = number - int(self._ends[place]) + episode.length
        rows = self._frames.of(episode)
        ahead = frame + self._ahead
        state, actions = rows[self.names[STATE]][frame], rows[self.names[ACTION]]
        chunk = actions[np.minimum(ahead, episode.length - 1)]
        if self.deltas is not None:
            chunk = self.deltas.relative(chunk, state)
        images = [self._image(episode, max(0, frame + back), camera) for camera in self.cameras for back in self.back]
        task = self.dataset.tasks[int(rows["task_index"][frame])]
        return Sample(np.stack(images), state, chunk, ahead < episode.length, task)

    def where(self, number: int) -> str:
        """Return the place of a sample for messages."""
        place = int(np.searchsorted(self._ends, number, side="right"))
        episode = self._episodes[place]
        frame = number - int(self._ends[place]) + episode.length
        return f"{self.dataset.folder}, episode {episode.number}, frame {frame}"

    def vectors(self, name: str, frames: int, *, episodes: int | None = None) -> Iterator[NDArray[np.float32]]:
        """Yield STATE or the valid actions of chunks [n, d], as the model learns them, of evenly spaced episodes.

        Args:
            name: STATE or ACTION.
            frames: that are read, at most, but at least those of one episode.
            episodes: that are read, at most; None: any number.
        """
        many = len(self._episodes)
        step = max(-(-len(self) // frames), -(-many // episodes) if episodes is not None else 1)
        for episode in self._episodes[::step]:
            rows = self._frames.of(episode)
            values = rows[self.names[name]]
            if name == STATE or self.deltas is None:
                yield values
                continue
            states = rows[self.names[STATE]]
            for ahead in self._ahead[self._ahead < episode.length]:
                yield self.deltas.relative(values[ahead:], states[: episode.length - ahead])

    @cached_property
    def _frames(self) -> Frames:
        return Frames(self.dataset, list(self.names.values()))

    def _image(self, episode: Episode, frame: int, camera: str) -> NDArray[np.uint8]:
        place = f"{episode.file}, episode {episode.number}, frame {frame}, field {camera!r}"
        if camera not in episode.videos:
            return fitted(decode_image(self._frames.image(episode, frame, camera), place), self._size)
        file, start = episode.videos[camera]
        second = start + frame / self.dataset.fps
        shown = self._videos.frame(self.dataset.folder / file, second, 0.5 / self.dataset.fps, place)
        return fitted(shown, self._size)


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
