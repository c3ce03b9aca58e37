"""What leaves of a trained policy: the actor's scores as a program, and a page on which it plays."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchyard_trainers.core.export.program import CASES, Page, Program
from torchyard_trainers.core.randomness import sample_keys, split_keys, stream_key, uniform
from torchyard_trainers.rl.distributions import distribution_of, is_continuous
from torchyard_trainers.rl.environment import Environment
from torchyard_trainers.rl.gym import Gymnasium
from torchyard_trainers.rl.normalization import MOST, Normalization
from torchyard_trainers.vecrl.params import Settings
from torchyard_trainers.vecrl.policy import STRIDES, Linear, Picture, Policy

PROGRAM = "policy"
# Cases are taken from this many games, and this many steps apart, so that they differ.
GAMES, APART = 25, 4
TRACED_STEPS = 64


class Scores(nn.Module):
    """The actor alone: observations [n, A, D] -> logits [n, A, actions]."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.actor = policy.actor

    def forward(self, observations: Tensor) -> Tensor:
        """See the class."""
        return self.actor(observations.float())


class Actions(Scores):
    """The actor of real numbers alone: observations [n, A, D] -> the likeliest action [n, A, numbers].

    It is within the bounds of the environment, if those are known.
    """

    def __init__(self, policy: Policy, environment: Environment) -> None:
        super().__init__(policy)
        self.numbers = environment.actions
        self.bounds = environment.bounds if isinstance(environment, Gymnasium) else None

    def forward(self, observations: Tensor) -> Tensor:
        """See the class."""
        mean = super().forward(observations)[..., : self.numbers]
        return mean if self.bounds is None else self.bounds.applied(mean)


@torch.no_grad()
def program(policy: Policy, environment: Environment, settings: Settings, cases: int) -> Program:
    """Return the actor with `cases` observations of all agents of an environment, from games that it plays."""
    keys = sample_keys(stream_key(settings.seed, "export", held_out=True), torch.arange(GAMES))
    state = environment.reset(uniform(split_keys(keys, environment.draws)))
    distribution = distribution_of(environment)
    choices, seen = environment.agents * distribution.draws, []
    for step in range(-(-cases // GAMES) * APART):
        observation = environment.observe(state)
        if step % APART == 0:
            seen.append(observation)
        draws = split_keys(split_keys(keys, 1, offset=step + 1)[:, 0], environment.draws + choices)
        noise = distribution.noise(draws[:, environment.draws :]).unflatten(-1, (environment.agents, -1))
        action = distribution.sample(policy.logits(observation), noise)
        state = environment.step(state, action, uniform(draws[:, : environment.draws])).state
    inputs = {"observation": torch.cat(seen)[:cases]}
    if is_continuous(environment):
        return Program(Actions(policy, environment).eval(), inputs, ("action",))
    return Program(Scores(policy).eval(), inputs, ("logits",))


def page(policy: Policy, environment: Environment, settings: Settings) -> Page:
    """Return the page of an environment: the shared frame, the player, and the rules in JavaScript."""
    own = Path(__file__).with_name("page")
    frame = Path(__file__).parents[1] / "core" / "export" / "page"
    files = {name: frame / name for name in ("index.html", "style.css", "frame.js")}
    files |= {"play.js": own / "play.js", "world.js": own / f"{settings.environment}.js"}
    facts = {
        "environment": settings.environment,
        "agents": environment.agents,
        "draws": environment.draws,
        "layers": [
            fact for name, layer in policy.actor.named_children() for fact in _described(f"actor.{name}", layer)
        ],
        "trace": trace(environment, settings),
        **{name: getattr(settings, name) for name in ("grid", "food", "view", "arms") if getattr(settings, name)},
    }
    # A case holds all agents: so many cases are a thousand observations.
    smaller = {"weights.bin": "trainer.params.width", "golden.bin": "trainer.params.view"}
    return Page(PROGRAM, files, facts, cases=-(-CASES // environment.agents), smaller=smaller)


def trace(environment: Environment, settings: Settings) -> dict[str, list[Any]]:
    """Record a random episode of one copy, so that another implementation can be compared with it.

    `observations[i]` are the flattened observations of all agents before `actions[i]`: numbers, or a string of digits.
    `numbers[0]` is the reset's and `numbers[i + 1]` that of step i.
    """
    keys = sample_keys(stream_key(settings.seed, "trace", held_out=True), torch.arange(TRACED_STEPS + 1))
    numbers = uniform(split_keys(keys, environment.draws))
    choices = (uniform(split_keys(split_keys(keys, 1)[:, 0], environment.agents)) * environment.actions).long()
    state = environment.reset(numbers[:1])
    observations = []
    for step in range(TRACED_STEPS):
        seen = environment.observe(state).flatten().tolist()
        observations.append("".join(map(str, seen)) if isinstance(seen[0], int) else seen)
        state = environment.step(state, choices[step : step + 1], numbers[step + 1 : step + 2]).state
    return {"numbers": numbers.tolist(), "actions": choices[:-1].tolist(), "observations": observations}


def _described(name: str, layer: nn.Module) -> list[dict[str, Any]]:
    """Describe a layer's kind and weights for play.js."""
    if isinstance(layer, Linear):
        return [{"kind": "linear", "name": name}]
    if isinstance(layer, Picture):
        names = [f"{name}.convolutions.{number}" for number in range(len(layer.convolutions))]
        sizes = {"planes": layer.planes, "players": layer.players, "strides": STRIDES}
        return [{"kind": "picture", "convolutions": names, **sizes}]
    if isinstance(layer, Normalization):
        return [{"kind": "normalize", "name": name, "most": MOST}]
    assert isinstance(layer, nn.Tanh)
    return [{"kind": "tanh"}]
