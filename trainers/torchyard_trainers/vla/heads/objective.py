"""The interface of a head: the loss of demonstrations, and a way to act."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from torchyard_trainers.vla.observation import Demonstration, Observation


class Losses(NamedTuple):
    """Losses of action steps [m, H], and statistics of the same shape."""

    loss: Tensor
    statistics: Mapping[str, Tensor]


class Objective(Protocol):
    """A loss of demonstrations, and a way to act."""

    metric: str  # name of the loss of held-out demonstrations

    def losses(self, model: Callable[..., Tensor], shown: Demonstration, keys: Tensor) -> Losses:
        """Return the losses of demonstrations; random numbers follow from keys [m, draws]."""

    def act(self, model: nn.Module, seen: Observation, keys: Tensor) -> Tensor:
        """Return normalised actions [m, H, a]; random numbers follow from keys [m]."""
