"""Greedy evaluation: the first episode of each agent of environments that no training run ever sees."""

import torch
from torch import Tensor

from torchyard_trainers.core.batching import split
from torchyard_trainers.core.randomness import sample_keys, split_keys, stream_key, uniform
from torchyard_trainers.core.world import World
from torchyard_trainers.vecrl.environment import Environment
from torchyard_trainers.vecrl.policy import Policy

# The episodes are the same for every seed, so that policies of different runs can be compared.
EVALUATION_SEED = 1234


@torch.no_grad()
def qualities(policy: Policy, environment: Environment, world: World, episodes: int) -> Tensor:
    """Give the environment's measure of each of `episodes` greedy episodes: [episodes] float64. Collective.

    Every agent's first episode counts, however long it takes; of episodes in the order they end, the short ones would
    come first. What still goes on after the environment's limit is cut off there.
    """
    copies = -(-episodes // environment.agents)
    (slots,) = split(copies, world.size, world.rank)
    own = int(sum(slots.weights))
    ids = torch.tensor(slots.positions, device=world.device)
    found = _first_episodes(policy, environment, ids)[:own]
    places = [
        copy * environment.agents + agent for copy in slots.positions[:own] for agent in range(environment.agents)
    ]
    return world.merge(copies * environment.agents, places, found.flatten())[:episodes]


def _first_episodes(policy: Policy, environment: Environment, ids: Tensor) -> Tensor:
    """Play environments `ids` [n] until every agent's first episode is over: quality [n, A]."""
    keys = sample_keys(stream_key(EVALUATION_SEED, "evaluation", held_out=True), ids)

    def numbers(step: int) -> Tensor:
        return uniform(split_keys(split_keys(keys, 1, offset=step)[:, 0], environment.draws))

    state = environment.reset(numbers(0))
    over = died = torch.zeros(len(ids), environment.agents, dtype=torch.bool, device=ids.device)
    total = torch.zeros(over.shape, device=ids.device)
    for step in range(1, environment.limit + 1):
        action = policy.logits(environment.observe(state)).argmax(-1)
        state, reward, terminated, truncated, _ = environment.step(state, action, numbers(step))
        total = total + reward.masked_fill(over, 0)
        died = died | (terminated & ~over)
        over = over | terminated | truncated
        # Only a CPU can look without waiting for a device.
        if ids.device.type == "cpu" and bool(over.all()):
            break
    return environment.quality(total, died)
