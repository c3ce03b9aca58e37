"""A flow head of our own: a small transformer over the actions of a chunk that attends to a vision-language model."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchyard_trainers.vla.heads.attention import Attention

LAYERS = 4
WIDEST = 1024  # units of a head; a narrower language model has a head as wide as itself
_SHORTEST = 4e-3  # shortest and longest period of a time, as in pi0
_LONGEST = 4.0


class FlowHead(nn.Module):
    """Velocity of an action chunk from all hidden states of images and instruction, not from their mean."""

    def __init__(self, context: int, *, state: int, action: int, horizon: int) -> None:
        """Make a head.

        Args:
            context: size of the hidden states.
            state: parts of the robot's state.
            action: parts of an action.
            horizon: actions of a chunk.
        """
        super().__init__()
        width = min(context, WIDEST)
        self.context_in = nn.Linear(context, width)
        self.state_in = nn.Linear(state, width)
        self.action_in = nn.Linear(action, width)
        self.time_in = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.register_buffer("places", waves(torch.arange(horizon + 1) / 1e3, width), persistent=False)
        self.layers = nn.ModuleList(_Layer(width) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(width)
        self.action_out = nn.Linear(width, action)

    def forward(self, context: Tensor, mask: Tensor | None, state: Tensor, points: Tensor, time: Tensor) -> Tensor:
        """Return the velocity at points of the flow, [m, H, a] float32.

        Args:
            context: [m, T, c].
            mask: [m, T] bool, true for hidden states that count; None: all.
            state: [m, d].
            points: [m, H, a].
            time: [m] float32 in [0, 1].
        """
        kind = self.action_out.weight.dtype  # sharded weights have the type that computes only inside a forward pass
        width = self.action_out.in_features
        hidden = torch.cat([self.state_in(state.to(kind))[:, None], self.action_in(points.to(kind))], 1)
        hidden = hidden + self.places.to(kind) + self.time_in(waves(time, width).to(kind))[:, None]
        context = self.context_in(context.to(kind))
        for layer in self.layers:
            hidden = layer(hidden, context, mask)
        found: Tensor = self.action_out(self.norm(hidden[:, 1:]))
        return found.float()


class _Layer(nn.Module):
    """Attention among the actions, attention to the context, and a perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own_norm, self.own = nn.LayerNorm(width), Attention(width)
        self.cross_norm, self.cross = nn.LayerNorm(width), Attention(width)
        self.norm = nn.LayerNorm(width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: Tensor, context: Tensor, mask: Tensor | None) -> Tensor:
        normal = self.own_norm(hidden)
        hidden = hidden + self.own(normal, normal, normal)
        hidden = hidden + self.cross(self.cross_norm(hidden), context, context, mask)
        result: Tensor = hidden + self.perceptron(self.norm(hidden))
        return result


def waves(time: Tensor, width: int) -> Tensor:
    """Return sines and cosines of times [m], with periods in a geometric row from 0.004 to 4: [m, width]."""
    half = width // 2
    share = torch.arange(half, device=time.device) / max(half - 1, 1)
    angles = time.float()[:, None] * (2 * math.pi / (_SHORTEST * (_LONGEST / _SHORTEST) ** share))
    return F.pad(torch.cat([angles.sin(), angles.cos()], -1), (0, width - 2 * half))
