"""Policy and value of an agent: two networks beside each other, the same for all agents or one for each."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchyard_trainers.core.device import works_on_cpu
from torchyard_trainers.rl.distributions import is_continuous
from torchyard_trainers.rl.environment import Environment
from torchyard_trainers.rl.normalization import Normalization
from torchyard_trainers.vecrl.params import Settings

CHANNELS = (16, 32, 32)
STRIDES = (2, 2, 1)  # a picture of 20 x 20 becomes 5 x 5: the first layers would take nearly all time and memory


class Policy(nn.Module):
    """Actor and critic; observations are [B, A, D] for A agents, of any dtype."""

    def __init__(self, settings: Settings, environment: Environment) -> None:
        super().__init__()
        self.actor = network(settings, environment, environment.actions, gain=0.01)
        if is_continuous(environment):
            self.actor.append(Deviation(environment.actions, players_of(settings, environment)))
        self.critic = network(settings, environment, 1, gain=1.0)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return the parameters of the distribution of actions [B, A, P] and values [B, A], float32."""
        return self.logits(observations), self.values(observations)

    def logits(self, observations: Tensor) -> Tensor:
        """Return unnormalised log-probabilities [B, A, actions], or means and log-deviations, float32."""
        return self.actor(observations.float()).float()

    def values(self, observations: Tensor) -> Tensor:
        """Return expected discounted returns [B, A], float32."""
        return self.critic(observations.float()).float().squeeze(-1)


def network(settings: Settings, environment: Environment, outputs: int, *, gain: float) -> nn.Sequential:
    """Build a network [B, A, D] -> [B, A, outputs] with orthogonal weights; `gain` is that of the last layer."""
    players = players_of(settings, environment)
    parts: list[nn.Module] = [Normalization(environment.observed)] if settings.normalize_observations else []
    inputs = environment.observed
    if settings.model != "mlp":
        assert environment.planes is not None
        if not settings.normalize_observations and (brightest := getattr(environment, "brightest", 1)) > 1:
            parts.append(Brightness(brightest))
        picture = (Picture if settings.model == "cnn" else Frames)(environment.planes, players)
        parts.append(picture)
        inputs += picture.features - math.prod(environment.planes)
    for _ in range(settings.layers):
        parts += [Linear(inputs, settings.width, players, gain=math.sqrt(2)), nn.Tanh()]
        inputs = settings.width
    return nn.Sequential(*parts, Linear(inputs, outputs, players, gain=gain))


def players_of(settings: Settings, environment: Environment) -> int:
    """Return how many agents have weights of their own; 1: all have the same."""
    return environment.agents if settings.policies == "independent" else 1


class Deviation(nn.Module):
    """Puts the logarithms of deviations, which do not depend on the observation, behind the means of actions.

    [B, A, numbers] -> [B, A, 2 numbers] float32; all deviations are 1 at first, as in CleanRL.
    """

    def __init__(self, numbers: int, players: int) -> None:
        super().__init__()
        self.logarithm = nn.Parameter(torch.zeros(players, numbers))

    def forward(self, mean: Tensor) -> Tensor:
        """See the class."""
        return torch.cat([mean.float(), self.logarithm.float().expand_as(mean)], -1)


class Brightness(nn.Module):
    """Pictures whose brightest number is 1."""

    def __init__(self, brightest: int) -> None:
        super().__init__()
        self.brightest = brightest

    def forward(self, observations: Tensor) -> Tensor:
        """See the class."""
        return observations / self.brightest


class Linear(nn.Module):
    """An affine map [B, A, inputs] -> [B, A, outputs] with weights [players, outputs, inputs].

    One player's weights serve all agents; else there are as many players as agents, and each has its own.
    """

    def __init__(self, inputs: int, outputs: int, players: int, *, gain: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(players, outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(players, outputs))
        for weight in self.weight:
            nn.init.orthogonal_(weight, gain)

    def forward(self, inputs: Tensor) -> Tensor:
        """See the class."""
        inputs = _fed_to(self.weight, inputs)
        if len(self.weight) == 1:
            return F.linear(inputs, self.weight[0], self.bias[0])
        return torch.einsum("bai,aoi->bao", inputs, self.weight) + self.bias


class Picture(nn.Module):
    """Three 3 x 3 convolutions with ReLU over the planes an observation begins with; the rest of it is kept as it is.

    [B, A, C * H * W + rest] -> [B, A, features + rest], edges padded with zeros.
    """

    channels, sides, strides, padding = CHANNELS, (3, 3, 3), STRIDES, 1

    def __init__(self, planes: tuple[int, int, int], players: int) -> None:
        super().__init__()
        self.planes, self.players = planes, players
        counts, padding = (planes[0], *self.channels), self.padding
        layers = list(zip(counts, self.channels, self.sides, self.strides, strict=False))
        self.convolutions = nn.ModuleList(
            nn.Conv2d(players * before, players * after, side, stride=stride, padding=padding, groups=players)
            for before, after, side, stride in layers
        )
        height, width = planes[1:]
        for _, _, side, stride in layers:
            height, width = ((size + 2 * padding - side) // stride + 1 for size in (height, width))
        self.features = self.channels[-1] * height * width
        for convolution in self.convolutions:
            for weight in convolution.weight.chunk(players):
                nn.init.orthogonal_(weight, math.sqrt(2))
            nn.init.zeros_(convolution.bias)

    def forward(self, observations: Tensor) -> Tensor:
        """See the class."""
        batch, agents, _ = observations.shape
        size = math.prod(self.planes)
        picture = observations[..., :size].reshape(-1, self.players * self.planes[0], *self.planes[1:])
        # Channels together, as a GPU's convolutions want them: else it turns every picture before and after each.
        picture = _fed_to(self.convolutions[0].weight, picture).to(memory_format=torch.channels_last)
        for convolution in self.convolutions:
            picture = F.relu(self._convolved(convolution, picture))
        features = picture.reshape(batch, agents, self.features)
        return torch.cat([features, observations[..., size:].to(features.dtype)], -1)

    def _convolved(self, convolution: nn.Conv2d, picture: Tensor) -> Tensor:
        return convolved(convolution, picture)


class Frames(Picture):
    """The three convolutions of DQN (Mnih 2015), for pictures of at least 36 x 36; edges are not padded."""

    channels, sides, strides, padding = (32, 64, 64), (8, 4, 3), (4, 2, 1), 0

    def _convolved(self, convolution: nn.Conv2d, picture: Tensor) -> Tensor:
        found: Tensor = convolution(picture)
        return found


def convolved(convolution: nn.Conv2d, picture: Tensor) -> Tensor:
    """Convolve as a layer of `Picture` does, on a GPU in a way that is fast there: [B, C, H, W] to [B, O, h, w].

    Kernels for few channels are slow. A convolution of stride 2 is one of stride 1 and 2 x 2 weights over blocks of
    2 x 2 cells, which have four times the channels; zeros fill up the weights. Compiled and in bf16, forward and
    backward pass of the 65,536 pictures of a step took 7.9 ms on an H200, 26.5 before.
    """
    if convolution.stride == (1, 1) or works_on_cpu(picture):
        return convolution(picture)
    weight, players = convolution.weight, convolution.groups
    _, _, height, width = picture.shape
    picture = F.pad(picture, (0, width % 2, 0, height % 2))
    cells = picture.permute(0, 2, 3, 1).unflatten(3, (players, -1)).unflatten(2, (-1, 2)).unflatten(1, (-1, 2))
    blocks = cells.permute(0, 1, 3, 5, 2, 4, 6).flatten(3)  # [B, H / 2, W / 2, players * 2 * 2 * channels]
    blocks = F.pad(blocks, (0, 0, 1, 0, 1, 0)).permute(0, 3, 1, 2)
    parts = F.pad(weight, (1, 0, 1, 0)).unflatten(3, (2, 2)).unflatten(2, (2, 2))
    weight = parts.permute(0, 3, 5, 1, 2, 4).flatten(1, 3).contiguous(memory_format=torch.channels_last)
    return F.conv2d(blocks, weight, convolution.bias, groups=players)


def _fed_to(weight: Tensor, inputs: Tensor) -> Tensor:
    """Sharded weights are gathered in the precision of the step; whole ones are cast by autocast, with their inputs."""
    return inputs if torch.is_autocast_enabled(inputs.device.type) else inputs.to(weight.dtype)
