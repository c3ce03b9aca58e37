"""Diffusion policy (Chi 2023) on hidden states of PaliGemma: noise schedule, loss, and how it acts.

Noise is added to actions in `noiseSteps` steps of the squared cosine schedule, and a U-Net predicts it, or the actions
(`prediction: sample`). Formulas are those of LeRobot's diffusion policy and its schedulers: DDPM with all steps, DDIM
(Song 2021, without noise) with fewer.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchyard_trainers.core.device import only_memory
from torchyard_trainers.core.randomness import split_keys, uniform
from torchyard_trainers.vla.heads.flow import normal
from torchyard_trainers.vla.heads.objective import Losses
from torchyard_trainers.vla.heads.unet import DiffusionHead
from torchyard_trainers.vla.observation import Demonstration, Observation
from torchyard_trainers.vla.paligemma import HeadPolicy
from torchyard_trainers.vla.settings import Settings

_LARGEST_BETA = 0.999
Denoise = Callable[[Tensor, int], Tensor]  # noise, or actions, in points [m, H, a] after so many steps


class Schedule:
    """How much of an action is left after each of `steps` steps of noise.

    Attributes:
        left: [steps] float64, the cumulative products of 1 - beta.
    """

    def __init__(self, steps: int) -> None:
        """Make the squared cosine schedule (Nichol 2021), `squaredcos_cap_v2` of diffusers."""

        def share(time: float) -> float:
            return math.cos((time + 0.008) / 1.008 * math.pi / 2) ** 2

        betas = [min(1 - share((step + 1) / steps) / share(step / steps), _LARGEST_BETA) for step in range(steps)]
        self.steps = steps
        self.left = (1 - torch.tensor(betas, dtype=torch.float64)).cumprod(0)

    def noisy(self, actions: Tensor, noise: Tensor, steps: Tensor) -> Tensor:
        """Return actions [m, H, a] with noise [m, H, a] after numbers of steps [m] below `steps`."""
        left = self.left.to(actions.device, torch.float32)[steps, None, None]
        return left.sqrt() * actions + (1 - left).sqrt() * noise

    def remove(self, denoise: Denoise, noise: Tensor, count: int, *, sample: bool = False) -> Tensor:
        """Return actions [m, H, a] in [-1, 1] that noise becomes.

        Args:
            denoise: predicts the noise, or with `sample` the actions.
            noise: [m, 1 + steps, H, a] for DDPM, which adds noise in each step; [m, 1, H, a] for DDIM.
            count: steps; DDPM makes all.
            sample: see `denoise`.
        """
        points, stride = noise[:, 0], self.steps // count
        ahead = [step * stride for step in reversed(range(count))]
        for place, step in enumerate(ahead[:2] if only_memory() else ahead):
            before = step - stride
            left = float(self.left[step])
            left_before = float(self.left[before]) if before >= 0 else 1.0
            predicted = denoise(points, step)
            if sample:
                clean = predicted.clamp(-1, 1)
                predicted = (points - left**0.5 * predicted) / (1 - left) ** 0.5
            else:
                clean = ((points - (1 - left) ** 0.5 * predicted) / left**0.5).clamp(-1, 1)
            if count < self.steps:
                points = left_before**0.5 * clean + (1 - left_before) ** 0.5 * predicted
                continue
            alpha = left / left_before
            of_clean, of_points = left_before**0.5 * (1 - alpha), alpha**0.5 * (1 - left_before)
            points = (of_clean * clean + of_points * points) / (1 - left)
            if before >= 0:
                points = points + ((1 - left_before) / (1 - left) * (1 - alpha)) ** 0.5 * noise[:, 1 + place]
        return points


class DiffusionPolicy(HeadPolicy):
    """PaliGemma with a U-Net that predicts noise."""

    def __init__(self, vlm: Any, *, state: int, action: int, horizon: int) -> None:
        """Wrap `PaliGemmaForConditionalGeneration`; `state` and `action` are sizes, and `horizon` actions a chunk."""
        head = DiffusionHead(vlm.config.text_config.hidden_size, state=state, action=action)
        super().__init__(vlm, head, action=action, horizon=horizon)

    def forward(
        self,
        seen: Observation,
        points: Tensor,
        steps: Tensor | None = None,
        *,
        schedule: Schedule | None = None,
        count: int = 0,
        sample: bool = False,
    ) -> Tensor:
        """Return what is predicted of points, or the actions that noise becomes, [m k, H, a] float32.

        Args:
            seen: of m episodes.
            points: [m k, H, a], k in a row for each episode; noise of `Schedule.remove`, if `steps` is None.
            steps: [m k] int64, how many steps of noise the points have.
            schedule: that removes noise.
            count: of its steps.
            sample: the actions are predicted, not the noise.
        """
        condition = self.head.condition(*self.context(seen))
        if steps is not None:
            times = len(points) // len(condition)
            predicted: Tensor = self.head(condition.repeat_interleave(times, 0), points, steps)
            return predicted
        assert schedule is not None

        def denoise(at: Tensor, step: int) -> Tensor:
            result: Tensor = self.head(condition, at, torch.full((len(at),), step, device=at.device))
            return result

        return schedule.remove(denoise, points, count, sample=sample)


class Diffusion:
    """The squared error of predicted noise, or of predicted actions."""

    metric = "diffusionLoss"

    def __init__(self, settings: Settings, *, parts: int) -> None:
        """Learn actions of `parts` parts."""
        self._chunk, self._parts, self._count = (
            settings.chunk,
            parts,
            settings.denoising_steps,
        )
        self.schedule = Schedule(settings.noise_steps)
        self._sample = settings.prediction == "sample"

    def losses(self, model: Callable[..., Tensor], shown: Demonstration, keys: Tensor) -> Losses:
        """See `Objective`; the mean over several draws for each demonstration."""
        times = keys.shape[1]
        draws = uniform(split_keys(keys.flatten(), 1 + self._chunk * self._parts))
        steps = (draws[:, 0] * self.schedule.steps).long()
        noise = normal(draws[:, 1:]).reshape(-1, self._chunk, self._parts)
        actions = shown.actions.repeat_interleave(times, 0)
        predicted = model(shown.observation, self.schedule.noisy(actions, noise, steps), steps)
        losses = (predicted - (actions if self._sample else noise)).square().mean(-1)
        return Losses(losses.unflatten(0, (-1, times)).mean(1), {})

    def act(self, model: nn.Module, seen: Observation, keys: Tensor) -> Tensor:
        """See `Objective`: remove noise."""
        many = 1 + (self._count if self._count == self.schedule.steps else 0)
        draws = normal(uniform(split_keys(keys, many * self._chunk * self._parts)))
        noise = draws.reshape(-1, many, self._chunk, self._parts)
        actions: Tensor = model(seen, noise, schedule=self.schedule, count=self._count, sample=self._sample)
        return actions
