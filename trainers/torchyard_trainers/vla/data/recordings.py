"""Demonstrations of LeRobot datasets as a `Source`: one dataset, or a mixture of several."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchyard_trainers.core.data.lerobot import open_lerobot
from torchyard_trainers.core.data.mixture import Concatenated, Mixture
from torchyard_trainers.core.data.robot_features import ACTION, STATE
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.vocabulary import Vocabulary
from torchyard_trainers.vla.data.deltas import Deltas
from torchyard_trainers.vla.data.episodes import Episodes, split_episodes
from torchyard_trainers.vla.data.instructions import Instructions
from torchyard_trainers.vla.data.normalization import Kind, Scaling, as_json, flattened, scaling
from torchyard_trainers.vla.data.statistics import MOST_FRAMES, Statistics, statistics_of
from torchyard_trainers.vla.observation import Demonstration, Observation
from torchyard_trainers.vla.settings import Settings

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
    """Samples of one or several datasets; see `core.data.source.Source`."""

    def __init__(
        self,
        parts: Sequence[Episodes],
        kind: Kind,
        *,
        weights: Sequence[float] | None = None,
        vocabulary: Vocabulary | None = None,
        statistics: Mapping[str, Statistics] | None = None,
    ) -> None:
        """Join datasets.

        Args:
            parts: at least one; all have cameras, states and actions of the same kind.
            kind: of normalisation.
            weights: of the parts; None: each frame occurs once.
            vocabulary: of the model, which encodes the instructions; None: that of their words.
            statistics: of STATE and ACTION; None: those of the parts.

        Raises:
            DataError: the statistics of a part are missing.
            ConfigError: the parts differ in what a policy sees or does.
        """
        _check_alike(parts)
        self.parts, self._kind = parts, kind
        self._rows: Any = Mixture(parts, weights) if weights is not None else _joined(parts)  # type: ignore[arg-type]
        self.state_size, self.action_size = parts[0].state_size, parts[0].action_size
        self.statistics = statistics or {name: statistics_of(parts, name, kind) for name in (STATE, ACTION)}
        texts = list(dict.fromkeys(text for part in parts for text in part.tasks))
        self._places = {text: place for place, text in enumerate(texts)}
        self.instructions = Instructions(texts, vocabulary=vocabulary)
        self.fingerprint: str = self._rows.fingerprint

    @property
    def views(self) -> int:
        """Images that the model sees at once."""
        return len(self.parts[0].cameras) * len(self.parts[0].back)

    @property
    def deltas(self) -> Deltas | None:
        """Which parts of an action are changes of the state; None: none."""
        return self.parts[0].deltas

    def __len__(self) -> int:
        return len(self._rows)

    def lengths(self) -> None:
        """All samples are equally long."""

    def read(self, ids: Sequence[int]) -> Batch:
        """Return samples, not normalised.

        Raises:
            DataError: a frame cannot be used; the message names file, episode, frame and field.
        """
        images, state, actions, valid, tasks = zip(*(self._rows.row(number) for number in ids), strict=True)
        tokens, mask = self.instructions.of(torch.tensor([self._places[each] for each in tasks]))
        return Batch(*(torch.from_numpy(np.stack(each)) for each in (images, state, actions, valid)), tokens, mask)

    def demonstrations(self, batch: Batch) -> Demonstration:
        """Return samples normalised, on their device."""
        seen = self.observation(batch.images, batch.state, batch.tokens, batch.mask)
        return Demonstration(seen, self.scaling(ACTION).normalize(batch.actions), batch.valid)

    def observation(self, images: Tensor, state: Tensor, tokens: Tensor, mask: Tensor | None) -> Observation:
        """Return what a policy sees of images [m, cameras, S, S, 3] uint8 and states [m, d] in their units."""
        pixels = images.permute(0, 1, 4, 2, 3).float() / 127.5 - 1
        return Observation(pixels, self.scaling(STATE).normalize(state), tokens, mask)

    def instruct(self, text: str, many: int) -> tuple[Tensor, Tensor | None]:
        """Return the tokens and mask [many, T] of an instruction of the datasets."""
        return self.instructions.of(torch.full((many,), self._places[text]))

    def commands(self, actions: Tensor, state: Tensor) -> Tensor:
        """Return normalised actions [m, H, a] as the robot takes them, from states [m, d] in their units."""
        restored = self.scaling(ACTION).restore(actions)
        return restored if self.deltas is None else self.deltas.absolute(restored, state)

    def scaling(self, name: str) -> Scaling:
        """Return what normalises STATE or ACTION."""
        size = self.state_size if name == STATE else self.action_size
        return scaling(self.statistics[name] if self._kind != "none" else {"mean": [0.0] * size}, self._kind)

    def assets(self) -> dict[str, Path | str]:
        """Return files that an exported policy needs: statistics, and what encodes instructions."""
        parts = self.deltas.parts.astype(bool).tolist() if self.deltas is not None else None
        content = as_json(self._kind, self.statistics, delta_parts=parts)
        return {"normalization.json": content, **self.instructions.assets()}

    def warnings(self) -> list[str]:
        """Return what a few outliers do to state and actions, seen in some of the episodes."""
        if self._kind == "none":
            return []
        found = []
        for part in self.parts:
            for name, feature in part.names.items():
                values = np.concatenate(list(part.vectors(name, MOST_FRAMES // 10, episodes=_LOOKED_AT)))
                if text := flattened(values, self.statistics[name], self._kind):
                    found.append(
                        f"{part.dataset.folder}: field {feature!r}: {text}; use trainer.params.normalization quantile, "
                        "or leave out the frames with the others"
                    )
        return found


def open_recordings(
    settings: Settings, image_size: int, vocabulary: Vocabulary | None
) -> tuple[Recordings, Recordings]:
    """Return the frames to learn from and those held out, of each dataset its last episodes.

    Raises:
        DataError: a dataset cannot be used.
        ConfigError: a parameter does not fit it.
    """
    assert settings.data is not None or settings.mixture
    folders = {settings.data: 1.0} if settings.data is not None else settings.mixture
    opened = [(open_lerobot(Path(folder)), weight) for folder, weight in folders.items()]
    opened.sort(key=lambda each: each[0].fingerprint)  # neither names nor their order matter
    pairs = [
        [
            Episodes(
                dataset,
                episodes,
                cameras=settings.cameras,
                fields=settings.fields,
                image_size=image_size,
                chunk=settings.chunk,
                action_seconds=settings.action_seconds,
                image_deltas=settings.image_deltas,
                delta_actions=settings.delta_actions,
                absolute_parts=settings.absolute_parts,
            )
            for episodes in split_episodes(dataset, settings.hold_out)
        ]
        for dataset, _ in opened
    ]
    kind: Any = settings.normalization
    weights = [weight for _, weight in opened] if len(opened) > 1 else None
    train = Recordings([first for first, _ in pairs], kind, weights=weights, vocabulary=vocabulary)
    rest = [second for _, second in pairs]
    return train, Recordings(rest, kind, vocabulary=vocabulary, statistics=train.statistics)


def evenly(size: int, count: int) -> list[int]:
    """Return `count` different positions below `size`, evenly spaced."""
    return [number * size // count for number in range(count)]


def _joined(parts: Sequence[Episodes]) -> Any:
    return parts[0] if len(parts) == 1 else Concatenated(parts)  # type: ignore[arg-type]


def _check_alike(parts: Sequence[Episodes]) -> None:
    """Check that a policy can learn from all parts.

    Raises:
        ConfigError: naming the parts and what differs.
    """
    first = parts[0]
    for other in parts[1:]:
        pair = f"trainer.params.mixture: {first.dataset.folder} and {other.dataset.folder}"
        if first.cameras != other.cameras:
            raise ConfigError(
                f"{pair} have other cameras ({', '.join(first.cameras)} and {', '.join(other.cameras)}); set "
                "trainer.params.cameras to names that both have"
            )
        for what, one, two in (
            ("state", first.state_size, other.state_size),
            ("action", first.action_size, other.action_size),
        ):
            if one != two:
                raise ConfigError(
                    f"{pair} differ in the parts of their {what} ({one} and {two}); leave one of them out"
                )
        if first.deltas is not None and other.deltas is not None and (first.deltas.parts != other.deltas.parts).any():
            raise ConfigError(
                f"{pair} name the parts of an action differently; set trainer.params.absoluteParts by number"
            )
