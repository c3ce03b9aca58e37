"""The U-Net of a diffusion policy (Chi 2023, as in LeRobot): convolutions over the actions of a chunk.

Each block is scaled and shifted by a condition (FiLM, Perez 2018): the step of noise, the state, and what learned
queries read from the hidden states of a vision-language model. LeRobot has keypoints of a ResNet in their place.
"""

import math

import torch
from torch import Tensor, nn

from torchyard_trainers.vla.heads.attention import Attention

WIDEST = 512  # units of what reads, and channels of the first level; the others have twice and four times as many
QUERIES = 8  # that read the hidden states
STEP_SIZE = 128  # of the description of a step of noise
_GROUPS, _KERNEL = 8, 5


class DiffusionHead(nn.Module):
    """Noise in an action chunk, from hidden states of images and instruction, and the state."""

    def __init__(self, context: int, *, state: int, action: int) -> None:
        """Make a head.

        Args:
            context: size of the hidden states, a multiple of 16.
            state: parts of the robot's state.
            action: parts of an action.
        """
        super().__init__()
        width = min(context, WIDEST)
        self.context_in, self.queries, self.reader = (
            nn.Linear(context, width),
            nn.Embedding(QUERIES, width),
            Attention(width),
        )
        self.step_in = nn.Sequential(
            nn.Linear(STEP_SIZE, 4 * STEP_SIZE), nn.Mish(), nn.Linear(4 * STEP_SIZE, STEP_SIZE)
        )
        first, condition = min(context // 2, WIDEST), QUERIES * width + state + STEP_SIZE
        sizes = [first, 2 * first, 4 * first]

        def two(one: int, other: int) -> nn.ModuleList:
            return nn.ModuleList([_Block(one, other, condition), _Block(other, other, condition)])

        levels = list(zip([action, *sizes[:-1]], sizes, strict=True))
        self.down = nn.ModuleList(two(one, other) for one, other in levels)
        self.shrink = nn.ModuleList(nn.Conv1d(size, size, 3, 2, 1) for size in sizes[:-1])
        self.middle = two(sizes[-1], sizes[-1])
        self.up = nn.ModuleList(two(2 * other, one) for one, other in reversed(levels[1:]))
        self.grow = nn.ModuleList(nn.ConvTranspose1d(one, one, 4, 2, 1) for one, _ in reversed(levels[1:]))
        self.last, self.noise_out = _Convolution(first, first), nn.Conv1d(first, action, 1)

    @property
    def layers(self) -> list[nn.Module]:
        """The units of sharding: blocks of the U-Net."""
        return [block for pair in (*self.down, self.middle, *self.up) for block in pair]

    def condition(self, context: Tensor, mask: Tensor | None, state: Tensor) -> Tensor:
        """Return what all steps of noise share, [m, QUERIES w + d].

        Args:
            context: [m, T, c].
            mask: [m, T] bool, true for hidden states that count; None: all.
            state: [m, d].
        """
        kind = self.noise_out.weight.dtype
        context = self.context_in(context.to(kind))
        asked = self.queries.weight.expand(len(state), -1, -1)
        return torch.cat([self.reader(asked, context, context, mask).flatten(1), state.to(kind)], 1)

    def forward(self, condition: Tensor, points: Tensor, steps: Tensor) -> Tensor:
        """Return the noise in points, or the actions, [m, H, a] float32.

        Args:
            condition: [m, c], see `condition`.
            points: [m, H, a]; H is a multiple of 4.
            steps: [m] int64, how many steps of noise they have.
        """
        kind = self.noise_out.weight.dtype
        condition = torch.cat([self.step_in(waves(steps, STEP_SIZE).to(kind)), condition], 1)
        hidden, skips = points.to(kind).transpose(1, 2), []
        for number, pair in enumerate(self.down):
            for block in pair:
                hidden = block(hidden, condition)
            skips.append(hidden)
            if number < len(self.shrink):
                hidden = self.shrink[number](hidden)
        for block in self.middle:
            hidden = block(hidden, condition)
        for pair, grow in zip(self.up, self.grow, strict=True):
            hidden = torch.cat([hidden, skips.pop()], 1)
            for block in pair:
                hidden = block(hidden, condition)
            hidden = grow(hidden)
        noise: Tensor = self.noise_out(self.last(hidden)).transpose(1, 2)
        return noise.float()


class _Convolution(nn.Sequential):
    def __init__(self, one: int, other: int) -> None:
        super().__init__(nn.Conv1d(one, other, _KERNEL, padding=_KERNEL // 2), nn.GroupNorm(_GROUPS, other), nn.Mish())


class _Block(nn.Module):
    """Two convolutions, the first of which is scaled and shifted, beside a residual."""

    def __init__(self, one: int, other: int, condition: int) -> None:
        super().__init__()
        self.first, self.second = _Convolution(one, other), _Convolution(other, other)
        self.film = nn.Sequential(nn.Mish(), nn.Linear(condition, 2 * other))
        self.residual = nn.Conv1d(one, other, 1) if one != other else nn.Identity()

    def forward(self, hidden: Tensor, condition: Tensor) -> Tensor:
        scale, shift = self.film(condition)[..., None].chunk(2, 1)
        result: Tensor = self.second(scale * self.first(hidden) + shift) + self.residual(hidden)
        return result


def waves(steps: Tensor, width: int) -> Tensor:
    """Return sines and cosines of steps [m] with frequencies from 1 to 1 / 10,000, [m, width]."""
    half = width // 2
    rates = torch.exp(torch.arange(half, device=steps.device) * (-math.log(10_000) / (half - 1)))
    angles = steps[:, None].float() * rates
    return torch.cat([angles.sin(), angles.cos()], -1)
