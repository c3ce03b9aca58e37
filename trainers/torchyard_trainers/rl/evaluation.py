"""Greedy evaluation: the first episode of each agent, in environments that no training run ever uses."""

import math
from collections.abc import Callable
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
            policy: acts by the largest of its `logits`.
            environment: whose episodes are played.
            graphs: use CUDA graphs.
            everywhere: returns whether a value is true on all ranks; a policy that all ranks must call equally often
                needs it.
        """
        self.policy, self._environment, self._everywhere = policy, environment, everywhere
        self._advance = Graphed(self._played, wanted=graphs)

    def qualities(self, session: Session, episodes: int, *, at_once: int | None = None) -> Tensor:
        """Return the environment's measure of each of `episodes` greedy episodes: [episodes] float64. Collective.

        Every agent's first episode counts, however long it takes: counting episodes in the order in which they end
        would favour short ones. Episodes are cut off at the environment's limit. A rank plays `at_once` environments
        together; None: all of its own.
        """
        agents = self._environment.agents
        copies = -(-episodes // agents)
        device = session.world.device

        def measure(ids: list[int]) -> Tensor:
            return self._first_episodes(torch.tensor(ids, device=device))

        found = over_ranks(session, measure, copies, at_once=at_once)
        return found.flatten()[:episodes]

    def _first_episodes(self, ids: Tensor) -> Tensor:
        """Play environments `ids` [n] until every agent's first episode is over; return their quality: [n, A]."""
        environment = self._environment
        none = torch.zeros(len(ids), environment.agents, dtype=torch.bool, device=ids.device)
        (start,) = evaluation_draws(ids, 0, 1, environment.draws)
        episodes = Episodes(environment.reset(start), none.float(), none, none)
        steps = math.gcd(environment.limit, STEPS_AT_ONCE)
        for first in range(1, environment.limit + 1, steps):
            episodes = self._advance(episodes, evaluation_draws(ids, first, steps, environment.draws))
            if self._everywhere(bool(episodes.over.all())):
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
            if can_sync(over) and self._everywhere(bool(over.all())):
                break
        return Episodes(state, total, over, died)


def evaluation_draws(ids: Tensor, first: int, steps: int, draws: int) -> Tensor:
    """Return the uniform numbers of `steps` steps from `first` on, for episodes `ids` [n]: [steps, n, draws]."""
    keys = sample_keys(stream_key(EVALUATION_SEED, "evaluation", held_out=True), ids)
    return uniform(split_keys(split_keys(keys, steps, offset=first), draws)).transpose(0, 1)
