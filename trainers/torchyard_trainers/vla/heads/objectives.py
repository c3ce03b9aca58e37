"""What a policy learns from demonstrations and how it acts: the objective of each head."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from torchyard_trainers.vla.heads import flow
from torchyard_trainers.vla.heads.act import ActionChunking
from torchyard_trainers.vla.heads.bins import middles, to_bins
from torchyard_trainers.vla.heads.diffusion import Diffusion
from torchyard_trainers.vla.heads.objective import Losses, Objective
from torchyard_trainers.vla.heads.own import OwnObjective
from torchyard_trainers.vla.observation import Demonstration, Observation
from torchyard_trainers.vla.settings import Settings


class FlowMatching:
    """The squared error of a velocity that carries noise to actions; see `flow`."""

    metric = "flowLoss"

    def __init__(self, settings: Settings, *, parts: int, size: int) -> None:
        """Learn actions of `parts` parts with a model whose actions have `size` parts, of which the last mean nothing.

        Args:
            settings: of the run.
            parts: of an action.
            size: of an action in the model.
        """
        self._chunk, self._steps, self._parts, self._size = settings.chunk, settings.flow_steps, parts, size

    def losses(self, model: Callable[..., Tensor], shown: Demonstration, keys: Tensor) -> Losses:
        """See `Objective`; the mean over several draws for each demonstration."""
        times = keys.shape[1]
        draws = flow.draw(keys.flatten(), self._chunk, self._size)
        actions = shown.actions.repeat_interleave(times, 0)
        padded = F.pad(actions, (0, self._size - self._parts))
        velocity = model(shown.observation, flow.noisy(padded, draws), draws.time)
        losses = flow.flow_loss(velocity[..., : self._parts], actions, draws.noise[..., : self._parts])
        return Losses(losses.unflatten(0, (-1, times)).mean(1), {})

    def act(self, model: nn.Module, seen: Observation, keys: Tensor) -> Tensor:
        """See `Objective`: integrate the velocity."""
        noise = flow.draw(keys, self._chunk, self._size).noise
        found: Tensor = model(seen, noise, steps=self._steps, size=self._parts)
        return found


class ActionTokens:
    """The cross-entropy of action tokens, mean over the parts of an action."""

    metric = "tokenLoss"

    def __init__(self, settings: Settings) -> None:
        """Learn tokens of `bins` bins."""
        self._bins = settings.bins

    def losses(self, model: Callable[..., Tensor], shown: Demonstration, _keys: Tensor) -> Losses:
        """See `Objective`; nothing is drawn."""
        logits, right = model(shown.observation), to_bins(shown.actions, self._bins)
        losses = F.cross_entropy(logits.flatten(0, -2), right.flatten(), reduction="none").view_as(right)
        return Losses(losses.mean(-1), {"tokenAccuracy": (logits.argmax(-1) == right).float().mean(-1)})

    def act(self, model: nn.Module, seen: Observation, _keys: Tensor) -> Tensor:
        """See `Objective`: the most likely tokens."""
        return middles(model(seen).argmax(-1), self._bins)


def objective_of(settings: Settings, config: Any, *, parts: int) -> Objective:
    """Return the objective of a run, whose actions have so many parts."""
    simple: dict[str, Callable[[Settings], Objective]] = {
        "tokens": ActionTokens,
        "act": ActionChunking,
        "policy": OwnObjective,
    }
    if settings.head in simple:
        return simple[settings.head](settings)
    if settings.head == "diffusion":
        return Diffusion(settings, parts=parts)
    return FlowMatching(settings, parts=parts, size=getattr(config, "max_action_dim", parts))
