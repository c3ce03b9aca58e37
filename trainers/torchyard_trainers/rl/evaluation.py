"""Evaluation: the first episode of each agent, greedy or sampled, in environments that no training run ever uses."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchyard_trainers.core.device import can_sync, only_memory
from torchyard_trainers.core.evaluation import over_ranks
from torchyard_trainers.core.graphs import Graphed
from torchyard_trainers.core.randomness import sample_keys, split_keys, stream_key, uniform
from torchyard_trainers.core.workload import Session
from torchyard_trainers.rl.distributions import distribution_of
from torchyard_trainers.rl.environment import Environment, State
from torchyard_trainers.rl.rollout import Policy

# The episodes are the same for every seed, so that policies of different runs can be compared.
EVALUATION_SEED = 1234
STEPS_AT_ONCE = 25  # between two checks whether all episodes are over: each check synchronises with the GPU


class Episodes(NamedTuple):
    """The first episodes of n environments with A agents, up to the current step."""

    state: State
    total: Tensor  # [n, A] return
    steps: Tensor  # [n, A] length so far, float32
    over: Tensor  # [n, A] bool
    died: Tensor  # [n, A] bool: over, and not cut off


class Played(NamedTuple):
    """What came of episodes, [episodes] float64 each."""

    quality: Tensor  # the environment's measure
    length: Tensor  # steps


class Evaluator:
    """Plays episodes under a policy whose weights change in place."""

    def __init__(
        self,
        policy: Policy,
        environment: Environment,
        *,
        graphs: bool = False,
        everywhere: Callable[[bool], bool] = bool,
    ) -> None:
        """Evaluate `policy` in `environment`, both on the same device.

        Args:
            policy: acts by the likeliest of its actions.
            environment: whose episodes are played.
            graphs: use CUDA graphs.
            everywhere: returns whether a value is true on all ranks; a policy that all ranks must call equally often
                needs it.
        """
        self.policy, self._environment, self._everywhere = policy, environment, everywhere
        self._advance = Graphed(self._played, wanted=graphs)

    def episodes(self, session: Session, episodes: int, *, at_once: int | None = None, sampled: bool = False) -> Played:
        """Return the environment's measure of each of `episodes` episodes, and their lengths. Collective.

        Every agent's first episode counts, however long it takes: counting episodes in the order in which they end
        would favour short ones. Episodes are cut off at the environment's limit.

        Args:
            session: of the run.
            episodes: of all ranks.
            at_once: environments that a rank plays together; None: all of its own.
            sampled: draw actions from the policy, as in training, in place of taking the most likely ones.
        """
        agents = self._environment.agents
        copies = -(-episodes // agents)
        device = session.world.device

        def measure(ids: list[int]) -> Tensor:
            return self._first_episodes(torch.tensor(ids, device=device), sampled=sampled)

        found = over_ranks(session, measure, copies, at_once=at_once)
        return Played(*found.flatten(0, 1)[:episodes].unbind(-1))

    def _first_episodes(self, ids: Tensor, *, sampled: bool) -> Tensor:
        """Play environments `ids` [n] until every first episode is over; return quality and length, [n, A, 2]."""
        environment = self._environment
        none = torch.zeros(len(ids), environment.agents, dtype=torch.bool, device=ids.device)
        (start,) = evaluation_draws(ids, 0, 1, environment.draws)
        episodes = Episodes(environment.reset(start), none.float(), none.float(), none, none)
        steps = math.gcd(environment.limit, STEPS_AT_ONCE)
        distribution = distribution_of(environment)
        choices = environment.agents * distribution.draws
        for first in range(1, environment.limit + 1, steps):
            episodes = self._advance(  # no name holds the numbers of one pass while those of the next are drawn
                episodes,
                evaluation_draws(ids, first, steps, environment.draws),
                distribution.noise(evaluation_keys(ids, first, steps, choices, "actions")) if sampled else None,
            )
            if self._everywhere(bool(episodes.over.all())) or only_memory():
                break
        return torch.stack([environment.quality(episodes.total, episodes.died), episodes.steps], -1)

    def _played(self, episodes: Episodes, numbers: Tensor, noise: Tensor | None) -> Episodes:
        """Take one step for each row of `numbers` [steps, n, draws] and of `noise` [steps, n, A draws], if any."""
        state, total, steps, over, died = episodes
        distribution, agents = distribution_of(self._environment), self._environment.agents
        for number, each in enumerate(numbers):
            logits = self.policy.logits(self._environment.observe(state))
            if noise is None:
                action = distribution.mode(logits)
            else:
                action = distribution.sample(logits, noise[number].unflatten(-1, (agents, -1)))
            state, reward, terminated, truncated, _ = self._environment.step(state, action, each)
            total, steps = total + reward.masked_fill(over, 0), steps + ~over
            died = died | (terminated & ~over)
            over = over | terminated | truncated
            if (can_sync(over) and self._everywhere(bool(over.all()))) or (only_memory() and number):
                break
        return Episodes(state, total, steps, over, died)


def evaluation_draws(ids: Tensor, first: int, steps: int, draws: int) -> Tensor:
    """Return the uniform numbers of `steps` steps from `first` on, for episodes `ids` [n]: [steps, n, draws]."""
    return uniform(evaluation_keys(ids, first, steps, draws))


def evaluation_keys(ids: Tensor, first: int, steps: int, count: int, purpose: str = "evaluation") -> Tensor:
    """Return `count` random keys for each of `steps` steps from `first` on, for episodes [n]: [steps, n, count]."""
    keys = sample_keys(stream_key(EVALUATION_SEED, purpose, held_out=True), ids)
    return split_keys(split_keys(keys, steps, offset=first), count).transpose(0, 1)
