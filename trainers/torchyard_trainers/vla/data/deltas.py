"""Delta actions: what an action changes of the state at which its chunk begins, as openpi and LeRobot compute them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from torchyard_trainers.core.data.lerobot import LeRobot
from torchyard_trainers.core.data.robot_features import ACTION, STATE
from torchyard_trainers.core.exits import ConfigError

A = TypeVar("A", bound=Any)  # an array of numpy, or a tensor


class Deltas(NamedTuple):
    """Which parts of an action are changes, [a]: 1, or 0 of those that are absolute."""

    parts: NDArray[np.float32]

    def relative(self, actions: NDArray[np.float32], state: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return absolute actions [..., a] as changes from states [..., d], which have as many parts or more."""
        return actions - state[..., : len(self.parts)] * self.parts

    def absolute(self, actions: A, state: A) -> A:
        """Return actions [m, H, a] for the robot from changes of states [m, d]: tensors."""
        parts = actions.new_tensor(self.parts)
        result: A = actions + (state[..., : len(self.parts)] * parts)[:, None]
        return result


def deltas_of(dataset: LeRobot, names: Mapping[str, str], absolute: Sequence[str]) -> Deltas:
    """Return the parts of a dataset's actions that are changes of its state.

    Args:
        dataset: of the actions.
        names: of the features that are STATE and ACTION.
        absolute: parts that stay absolute, by their numbers or the names in the metadata.

    Raises:
        ConfigError: the state has fewer parts than an action, or there is no such part.
    """
    width, states = dataset.width(names[ACTION]), dataset.width(names[STATE])
    if states < width:
        raise ConfigError(
            f"trainer.params.deltaActions: true, but the actions of {dataset.folder} have {width} parts and its state "
            f"{states}; a delta is the change of a part of the state: remove it"
        )
    given = dataset.features[names[ACTION]].get("names")
    words = given.get("motors", []) if isinstance(given, Mapping) else given  # as some versions nest them
    known = [str(each) for each in words] if isinstance(words, list) and len(words) == width else []
    parts = np.ones(width, np.float32)
    for each in absolute:
        if each in known:
            parts[known.index(each)] = 0
        elif each.isdecimal() and int(each) < width:
            parts[int(each)] = 0
        else:
            names_of = f" and {', '.join(known)}" if known else ""
            raise ConfigError(
                f"trainer.params.absoluteParts: {each!r} is no part of an action of {dataset.folder}; use 0 to "
                f"{width - 1}{names_of}"
            )
    return Deltas(parts)
