"""Rollouts: T steps of every environment under a fixed policy, and what PPO needs to know of them.

What is done in each step is kept small, since T steps follow one another: act and advance. All that can be computed for
the whole rollout at once (probabilities, values, statistics of episodes, advantages) is computed afterwards.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torchyard_trainers.core.device import reads_freely
from torchyard_trainers.core.randomness import gumbel, sample_keys, split_keys, stream_key, uniform
from torchyard_trainers.vecrl.advantages import advantages
from torchyard_trainers.vecrl.environment import Environment, Outcome, State
from torchyard_trainers.vecrl.params import Settings
from torchyard_trainers.vecrl.policy import Policy


class Luck(NamedTuple):
    """All that is random in T steps of n environments."""

    numbers: Tensor  # [T, n, draws] uniform: for the environment
    noise: Tensor  # [T, n, A, actions] Gumbel: for the choice of actions


class Path(NamedTuple):
    """What happened in T steps of n environments with A agents."""

    observation: Tensor  # [T, n, A, D]
    action: Tensor  # [T, n, A] int64
    logits: Tensor  # [T, n, A, actions] of the policy that acted
    reward: Tensor  # [T, n, A]
    terminated: Tensor  # [T, n, A] bool
    truncated: Tensor  # [T, n, A] bool
    reached: Tensor | None  # [T, n, A, D]
    state: State  # after the last step


class Rollout(NamedTuple):
    """A path, judged. `facts` are sums over this rank's environments."""

    path: Path
    log_probability: Tensor  # [T, n, A] of the actions taken
    advantage: Tensor  # [T, n, A], not yet normalised
    target: Tensor  # [T, n, A] for the value
    running: Tensor  # [n, A] return so far of the episodes that go on
    facts: Tensor  # [len(FACTS)] float64


# Observations; pictures of a large rollout would fill a GPU.
VALUED_AT_ONCE = 2**17
FACTS = ("episodes", "return", "advantage", "advantageSquared", "target", "targetSquared")


def moments_of(settings: Settings, ids: Tensor, first: int) -> Tensor:
    """Number the steps `first` to `first + horizon` of environments `ids` [n], each of them by itself: [T, n]."""
    steps = torch.arange(first, first + settings.horizon, device=ids.device)
    return steps[:, None] * settings.environments + ids


def luck(settings: Settings, environment: Environment, moments: Tensor) -> Luck:
    """Draw what is random at `moments` [T, n], a function of those."""
    numbers = split_keys(sample_keys(stream_key(settings.seed, "environment"), moments), environment.draws)
    choices = environment.agents * environment.actions
    noise = split_keys(sample_keys(stream_key(settings.seed, "actions"), moments), choices)
    return Luck(uniform(numbers), gumbel(noise).unflatten(-1, (environment.agents, environment.actions)))


class Tick(NamedTuple):
    """One step of all environments: what was seen, done, and came of it."""

    observation: Tensor
    action: Tensor
    logits: Tensor
    outcome: Outcome


def tick(policy: Policy, environment: Environment, state: State, numbers: Tensor, noise: Tensor) -> Tick:
    """Take one step; actions are sampled as argmax of logits and Gumbel noise."""
    observation = environment.observe(state)
    logits = policy.logits(observation)
    action = (logits + noise).argmax(-1)
    return Tick(observation, action, logits, environment.step(state, action, numbers))


def act(
    policy: Policy, environment: Environment, state: State, luck: Luck, *, step: Callable[..., Tick] = tick
) -> Path:
    """Play on from `state`; shapes and work are static. `step` is `tick`, or `tick` compiled."""
    ticks = []
    for numbers, noise in zip(luck.numbers, luck.noise, strict=True):
        ticks.append(step(policy, environment, state, numbers, noise))
        state = ticks[-1].outcome.state
    observation, action, logits, outcomes = zip(*ticks, strict=True)
    _, reward, terminated, truncated, reached = zip(*outcomes, strict=True)
    return Path(
        torch.stack(observation),
        torch.stack(action),
        torch.stack(logits),
        torch.stack(reward),
        torch.stack(terminated),
        torch.stack(truncated),
        torch.stack(reached) if reached[0] is not None else None,
        state,
    )


def judge(
    policy: Policy, environment: Environment, path: Path, *, running: Tensor, weights: Tensor, settings: Settings
) -> Rollout:
    """Value a path and sum up its facts.

    Args:
        policy: the one that acted.
        environment: the one it acted in.
        path: T steps of n environments.
        running: [n, A] return so far of the episodes that were going on before.
        weights: [n] 1 for an environment, 0 for padding.
        settings: of the run.
    """
    everything = torch.cat([path.observation, environment.observe(path.state)[None]])
    values = values_of(policy, everything)
    value, following = values[:-1], values[1:]
    if path.reached is not None:
        following = torch.where(path.truncated, values_reached(policy, path.truncated, path.reached), following)
    advantage = advantages(
        path.reward,
        value,
        following,
        path.terminated,
        path.truncated,
        gamma=settings.gamma,
        decay=settings.gae_lambda,
    )
    target = advantage + value
    chosen = F.log_softmax(path.logits, -1).gather(-1, path.action[..., None])[..., 0]
    ended = path.terminated | path.truncated
    returns, running = returns_of(path.reward, ended, running)
    counted = weights[:, None].double()
    found = (ended, returns * ended, advantage, advantage.square(), target, target.square())
    sums = torch.stack([(fact.double().sum(0) * counted).sum() for fact in found])
    return Rollout(path, chosen, advantage, target, running, sums)


def values_of(policy: Policy, observations: Tensor) -> Tensor:
    """Value observations [T, n, A, D], as many times at once as memory allows: [T, n, A]."""
    times = max(1, VALUED_AT_ONCE // observations[0, ..., 0].numel())
    return torch.cat(
        [policy.values(part.flatten(0, 1)).unflatten(0, part.shape[:2]) for part in observations.split(times)]
    )


def values_reached(policy: Policy, truncated: Tensor, reached: Tensor) -> Tensor:
    """Value what truncated steps reached: [T, n, A], any number for others."""
    if not reads_freely(truncated):  # to pick out the few would make the host wait
        return values_of(policy, reached)
    cut = truncated.any(-1)
    values = torch.zeros(truncated.shape)
    values[cut] = policy.values(reached[cut])
    return values


def returns_of(reward: Tensor, ended: Tensor, running: Tensor) -> tuple[Tensor, Tensor]:
    """Sum rewards up within episodes: return so far after each step [T, n, A], and of those that go on [n, A]."""
    sums = torch.empty_like(reward)
    for time in range(len(reward)):
        running = running + reward[time]
        sums[time] = running
        running = running.masked_fill(ended[time], 0)
    return sums, running
