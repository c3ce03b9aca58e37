"""Rollouts: T steps of every environment under a fixed policy, and what PPO needs to know about them.

A step only acts and advances, because T steps run one after the other. Everything that can be computed for the whole
rollout at once (probabilities, values, episode statistics, advantages) is computed afterwards.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from torchyard_trainers.core.batching import split
from torchyard_trainers.core.device import can_sync
from torchyard_trainers.core.randomness import sample_keys, split_keys, stream_key, uniform
from torchyard_trainers.core.world import World
from torchyard_trainers.rl.advantages import advantages
from torchyard_trainers.rl.distributions import distribution_of
from torchyard_trainers.rl.environment import Environment, Outcome, State


class Playing(Protocol):
    """The settings of rollouts."""

    seed: int
    environments: int  # over all ranks
    horizon: int  # steps of each environment in a rollout
    gamma: float
    gae_lambda: float


class Policy(Protocol):
    """A policy that acts and a value network that judges, both on observations [B, A, D]."""

    def logits(self, observations: Tensor) -> Tensor:
        """Return the parameters of the distribution of actions [B, A, P]; for choices these are logits."""

    def values(self, observations: Tensor) -> Tensor:
        """Return expected discounted returns [B, A]."""


class Noise(NamedTuple):
    """The random numbers of T steps of n environments."""

    uniform: Tensor  # [T, n, draws] for the environment
    actions: Tensor  # [T, n, A, draws of an action] for sampling actions


class Trajectory(NamedTuple):
    """T steps of n environments with A agents."""

    observation: Tensor  # [T, n, A, D]
    action: Tensor  # [T, n, A] int64, or [T, n, A, numbers] float32
    logits: Tensor  # [T, n, A, P] of the policy that acted
    reward: Tensor  # [T, n, A]
    terminated: Tensor  # [T, n, A] bool
    truncated: Tensor  # [T, n, A] bool
    final_observation: Tensor | None  # [T, n, A, D]
    state: State  # after the last step


class Rollout(NamedTuple):
    """A trajectory with its advantages and targets. `facts` are sums over this rank's environments."""

    trajectory: Trajectory
    log_probability: Tensor  # [T, n, A] of the actions taken
    advantage: Tensor  # [T, n, A], not yet normalised
    target: Tensor  # [T, n, A] for the value
    running: Tensor  # [n, A] return so far of unfinished episodes
    facts: Tensor  # [len(FACTS)] float64
    value: Tensor  # [T, n, A] of the policy that acted


# Observations per forward pass of the value network; the images of a large rollout would fill a GPU.
VALUED_AT_ONCE = 2**17
# Integers of as many bytes: sums of them are exact.
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
FACTS = ("episodes", "return", "advantage", "advantageSquared", "target", "targetSquared")


def sample_ids_of(settings: Playing, ids: Tensor, first: int) -> Tensor:
    """Return a unique number for each step `first` to `first + horizon` of environments `ids` [n]: [T, n]."""
    steps = torch.arange(first, first + settings.horizon, device=ids.device)
    return steps[:, None] * settings.environments + ids


def draw_noise(settings: Playing, environment: Environment, sample_ids: Tensor) -> Noise:
    """Draw the noise of steps `sample_ids` [T, n]; it is a pure function of the seed and these ids."""
    numbers = split_keys(sample_keys(stream_key(settings.seed, "environment"), sample_ids), environment.draws)
    distribution = distribution_of(environment)
    shape = environment.agents, distribution.draws
    keys = split_keys(sample_keys(stream_key(settings.seed, "actions"), sample_ids), shape[0] * shape[1])
    return Noise(uniform(numbers), distribution.noise(keys).unflatten(-1, shape))


class Tick(NamedTuple):
    """One step of all environments: observation, action and outcome."""

    observation: Tensor
    action: Tensor
    logits: Tensor
    outcome: Outcome


def tick(policy: Policy, environment: Environment, state: State, numbers: Tensor, noise: Tensor) -> Tick:
    """Take one step with actions that are sampled from the policy."""
    observation = environment.observe(state)
    logits = policy.logits(observation)
    action = distribution_of(environment).sample(logits, noise)
    return Tick(observation, action, logits, environment.step(state, action, numbers))


def act(
    policy: Policy, environment: Environment, state: State, noise: Noise, *, step: Callable[..., Tick] = tick
) -> Trajectory:
    """Play from `state` for as many steps as `noise` has; shapes are static. `step` is `tick`, compiled or not."""
    ticks = []
    for numbers, each in zip(noise.uniform, noise.actions, strict=True):
        ticks.append(step(policy, environment, state, numbers, each))
        state = ticks[-1].outcome.state
    observation, action, logits, outcomes = zip(*ticks, strict=True)
    _, reward, terminated, truncated, final = zip(*outcomes, strict=True)
    return Trajectory(
        torch.stack(observation),
        torch.stack(action),
        torch.stack(logits),
        torch.stack(reward),
        torch.stack(terminated),
        torch.stack(truncated),
        torch.stack([environment.observe(each) for each in final]) if final[0] is not None else None,
        state,
    )


def evaluate_trajectory(
    policy: Policy,
    environment: Environment,
    trajectory: Trajectory,
    *,
    running: Tensor,
    weights: Tensor,
    settings: Playing,
    reward: Tensor | None = None,
) -> Rollout:
    """Compute values, advantages, targets and the summed facts of a trajectory.

    Args:
        policy: the policy that acted.
        environment: the environment it acted in.
        trajectory: T steps of n environments.
        running: [n, A] return so far of the episodes that were unfinished before the first step.
        weights: [n] 1 for an environment, 0 for padding.
        settings: of the run.
        reward: [T, n, A] that is learned from; None: that of the trajectory.
    """
    values = values_of(policy, torch.cat([trajectory.observation, environment.observe(trajectory.state)[None]]))
    value, following = values[:-1], values[1:]
    if trajectory.final_observation is not None:
        final = final_values(policy, trajectory.truncated, trajectory.final_observation)
        following = torch.where(trajectory.truncated, final, following)
    chosen = distribution_of(environment).judge(trajectory.logits, trajectory.action).log_probability
    judged = judge(trajectory, value, following, running=running, weights=weights, settings=settings, reward=reward)
    return Rollout(trajectory, chosen, *judged, value)


class Rewards(Protocol):
    """What a trajectory must have to be judged; all are [T, n, A]."""

    reward: Tensor
    terminated: Tensor
    truncated: Tensor


class Judged(NamedTuple):
    """The last fields of a `Rollout`."""

    advantage: Tensor
    target: Tensor
    running: Tensor
    facts: Tensor


def judge(
    trajectory: Rewards,
    value: Tensor,
    following: Tensor,
    *,
    running: Tensor,
    weights: Tensor,
    settings: Playing,
    reward: Tensor | None = None,
) -> Judged:
    """Compute the advantages and targets of a trajectory, and its summed facts.

    Args:
        trajectory: T steps of n environments.
        value: of the state before each step, [T, n, A].
        following: of the state that each step reached, before a reset, [T, n, A].
        running: [n, A] return so far of the episodes that were unfinished before the first step.
        weights: [n] 1 for an environment, 0 for padding.
        settings: of the run.
        reward: [T, n, A] that is learned from; None: that of the trajectory, of which returns are always sums.
    """
    advantage = advantages(
        trajectory.reward if reward is None else reward,
        value,
        following,
        trajectory.terminated,
        trajectory.truncated,
        gamma=settings.gamma,
        decay=settings.gae_lambda,
    )
    target = advantage + value
    ended = trajectory.terminated | trajectory.truncated
    returns, running = returns_of(trajectory.reward, ended, running)
    counted = weights[:, None].double()
    found = (ended, returns * ended, advantage, advantage.square(), target, target.square())
    sums = torch.stack([(fact.double().sum(0) * counted).sum() for fact in found])
    return Judged(advantage, target, running, sums)


def values_of(policy: Policy, observations: Tensor) -> Tensor:
    """Return the values of observations [T, n, A, D], in chunks of `VALUED_AT_ONCE`: [T, n, A]."""
    times = max(1, VALUED_AT_ONCE // observations[0, ..., 0].numel())
    return torch.cat(
        [policy.values(part.flatten(0, 1)).unflatten(0, part.shape[:2]) for part in observations.split(times)]
    )


def final_values(policy: Policy, truncated: Tensor, final_observation: Tensor) -> Tensor:
    """Return the values of the final observations of truncated steps: [T, n, A]; other entries are arbitrary."""
    if not can_sync(truncated):  # selecting the few truncated ones would synchronise with the GPU
        return values_of(policy, final_observation)
    cut = truncated.any(-1)
    values = torch.zeros(truncated.shape)
    values[cut] = policy.values(final_observation[cut])
    return values


def returns_of(reward: Tensor, ended: Tensor, running: Tensor) -> tuple[Tensor, Tensor]:
    """Return the return so far after each step [T, n, A], and that of unfinished episodes at the end [n, A]."""
    sums = torch.empty_like(reward)
    for time in range(len(reward)):
        running = running + reward[time]
        sums[time] = running
        running = running.masked_fill(ended[time], 0)
    return sums, running


def metrics_of(facts: Mapping[str, float], count: int) -> dict[str, float]:
    """Convert the facts of a rollout, summed over all ranks, to metrics; no mean return if no episode ended.

    Args:
        facts: by the names of `FACTS`.
        count: steps of all agents in the rollout.
    """
    variance = facts["targetSquared"] / count - (facts["target"] / count) ** 2
    error = facts["advantageSquared"] / count - (facts["advantage"] / count) ** 2
    metrics = {"rolloutEpisodes": facts["episodes"]}
    if facts["episodes"]:
        metrics["episodeReturn"] = facts["return"] / facts["episodes"]
    if variance > 0:
        metrics["explainedVariance"] = 1 - error / variance
    return metrics


def order_of(settings: Playing, world: World, epoch: int) -> Tensor:
    """Return a permutation of the time steps of each environment of this rank for an epoch: [n, horizon]."""
    (slots,) = split(settings.environments, world.size, world.rank)
    ids = torch.tensor(slots.positions, device=world.device) + epoch * settings.environments
    keys = split_keys(sample_keys(stream_key(settings.seed, "order"), ids), settings.horizon)
    return keys.argsort(-1)


def rows_of(world: World, environments: Tensor) -> Tensor:
    """Return the rows of environments [m] in the rollout of this rank, which has those at [rank::size]."""
    return (environments - world.rank).clamp(min=0) // world.size


def gather_rows(own: Tensor, world: World, count: int) -> Tensor:
    """Return the rows [rank::world] of all ranks in one tensor on every rank: [n, ...] -> [count, ...]."""
    if world.size == 1:
        return own.clone()  # a CUDA graph writes its next rollout to the same memory
    real = len(range(world.rank, count, world.size))
    bits = own.view(_BITS[own.itemsize]) if own.is_floating_point() else own
    whole = torch.zeros(count, *own.shape[1:], dtype=torch.int64, device=own.device)
    whole[world.rank :: world.size] = bits[:real].long()
    return world.total(whole).to(bits.dtype).view(own.dtype)
