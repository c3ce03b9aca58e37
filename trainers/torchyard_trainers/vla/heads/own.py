"""A policy of the user's: a module that computes losses of demonstrated actions, and actions."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.randomness import stream_key
from torchyard_trainers.rl.outside import blamed, class_of
from torchyard_trainers.vla.heads.objective import Losses
from torchyard_trainers.vla.observation import Demonstration, Observation
from torchyard_trainers.vla.settings import Settings

PAGE = "see 'Your own policy' in docs/vision-action.md"
LARGEST_IMAGE = 4096


def policy_class(name: str) -> Any:
    """Return the class of a policy, `MODULE:CLASS`.

    Raises:
        ConfigError: there is none, it is no module of torch, or it names no size of images.
    """
    at = f"trainer.params.policy: {name!r}"
    kind = class_of(name, at)
    if not isinstance(kind, type) or not issubclass(kind, nn.Module):
        raise ConfigError(f"{at} is no class of torch.nn.Module; {PAGE}")
    size = getattr(kind, "image_size", None)
    if type(size) is not int or not 1 <= size <= LARGEST_IMAGE:
        raise ConfigError(
            f"{at} has image_size {size!r}; set the class attribute image_size to the pixels of a side, 1 to "
            f"{LARGEST_IMAGE}"
        )
    return kind


def build_own(name: str, *, seed: int, **sizes: int) -> nn.Module:
    """Build a policy on the CPU, with the same weights in every process.

    Args:
        name: `MODULE:CLASS`.
        seed: of the run.
        sizes: arguments: parts of the `state` and of an `action`, actions of a `chunk`, images (`views`), and tokens
            of instructions (`vocabulary`).

    Raises:
        ConfigError: the class cannot be made.
    """
    kind = policy_class(name)
    torch.manual_seed(stream_key(seed, "weights") % 2**63)
    with blamed(f"trainer.params.policy: {name!r}", f"making it with {', '.join(sizes)}", PAGE):
        module: nn.Module = kind(**sizes)
    return module


class OwnObjective:
    """What a policy of the user's computes."""

    metric = "policyLoss"

    def __init__(self, settings: Settings) -> None:
        """Expect chunks of `chunk` actions."""
        self._at, self._chunk = f"trainer.params.policy: {settings.policy!r}", settings.chunk

    def losses(self, model: Callable[..., Tensor], shown: Demonstration, _keys: Tensor) -> Losses:
        """See `Objective`."""
        losses = model(shown.observation, shown.actions)
        self._check(losses, list(shown.valid.shape), "losses of demonstrated actions")
        return Losses(losses, {})

    def act(self, model: nn.Module, seen: Observation, _keys: Tensor) -> Tensor:
        """See `Objective`."""
        actions: Tensor = model(seen)
        self._check(actions, [len(seen.state), self._chunk], "actions")
        return actions

    def _check(self, values: Any, shape: list[int], what: str) -> None:
        if (
            not isinstance(values, Tensor)
            or list(values.shape[:2]) != shape
            or values.dim() != len(shape) + (what == "actions")
        ):
            given = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            parts = ", a" if what == "actions" else ""
            raise ConfigError(f"{self._at}: forward returned {given} as {what}, expected [m, H{parts}]; {PAGE}")
