"""Greedy evaluation: the first episode of each agent, in environments that no training run ever uses."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchyard_trainers.core.device import can_sync
from torchyard_trainers.core.evaluation import over_ranks
from torchyard_trainers.core.graphs import Graphed
from torchyard_trainers.core.randomness import sample_keys, split_keys, stream_key, uniform
from torchyard_trainers.core.workload import Session
from torchyard_trainers.rl.environment import Environment, State
from torchyard_trainers.rl.rollout import Policy

# The episodes are the same for every seed, so that policies of different runs can be compared.
EVALUATION_SEED = 1234
STEPS_AT_ONCE = 25  # between two checks whether all episodes are over: each check synchronises with the GPU


class Episodes(NamedTuple):
    """The first episodes of n environments with A agents, up to the current step."""

    state: State
    total: Tensor  # [n, A] return
    over: Tensor  # [n, A] bool
    died: Tensor  # [n, A] bool: over, and not cut off


class Evaluator:
    """Plays greedy episodes under a policy whose weights change in place."""

    def __init__(self, policy: Policy, environment: Environment, *, graphs: bool = False) -> None:
        """Evaluate `policy` in `environment`, both on the same device; `graphs`: use CUDA graphs there."""
        self.policy, self._environment = policy, environment
        self._advance = Graphed(self._played, wanted=graphs)

    def qualities(self, session: Session, episodes: int) -> Tensor:
        """Return the environment's measure of each of `episodes` greedy episodes: [episodes] float64. Collective.

        Every agent's first episode counts, however long it takes: counting episodes in the order in which they end
        would favour short ones. Episodes are cut off at the environment's limit.
        """
        agents = self._environment.agents
        copies = -(-episodes // agents)
        device = session.world.device
        found = over_ranks(session, lambda ids: self._first_episodes(torch.tensor(ids, device=device)), copies)
        return found.flatten()[:episodes]

    def _first_episodes(self, ids: Tensor) -> Tensor:
        """Play environments `ids` [n] until every agent's first episode is over; return their quality: [n, A]."""
        environment = self._environment
        keys = sample_keys(stream_key(EVALUATION_SEED, "evaluation", held_out=True), ids)
        none = torch.zeros(len(ids), environment.agents, dtype=torch.bool, device=ids.device)
        (start,) = uniform_draws(keys, 0, 1, environment.draws)
        episodes = Episodes(environment.reset(start), none.float(), none, none)
        steps = math.gcd(environment.limit, STEPS_AT_ONCE)
        for first in range(1, environment.limit + 1, steps):
            episodes = self._advance(episodes, uniform_draws(keys, first, steps, environment.draws))
            if bool(episodes.over.all()):
                break
        return environment.quality(episodes.total, episodes.died)

    def _played(self, episodes: Episodes, numbers: Tensor) -> Episodes:
        """Take one step for each row of `numbers` [steps, n, draws]."""
        state, total, over, died = episodes
        for each in numbers:
            action = self.policy.logits(self._environment.observe(state)).argmax(-1)
            state, reward, terminated, truncated, _ = self._environment.step(state, action, each)
            total = total + reward.masked_fill(over, 0)
            died = died | (terminated & ~over)
            over = over | terminated | truncated
            if can_sync(over) and bool(over.all()):
                break
        return Episodes(state, total, over, died)


def uniform_draws(keys: Tensor, first: int, steps: int, draws: int) -> Tensor:
    """Return the uniform numbers of `steps` steps from `first` on, for `keys` [n]: [steps, n, draws]."""
    return uniform(split_keys(split_keys(keys, steps, offset=first), draws)).transpose(0, 1)
