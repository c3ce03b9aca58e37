"""A bandit that shows which arm pays: the smallest thing PPO can learn, and a smoke test of everything around it."""

import torch
from torch import Tensor
from torch.nn import functional as F

from torchyard_trainers.rl.environment import Outcome, State


class Bandit:
    """An episode is one pull. The observation is the paying arm, one-hot: 1 for it, 0 for any other."""

    agents = 1
    planes = None
    draws = 1
    limit = 1
    measure = "evalReturn"

    def __init__(self, arms: int) -> None:
        self.actions = self.observed = arms

    def reset(self, numbers: Tensor) -> State:
        """See `Environment`."""
        return {"paying": (numbers[:, 0] * self.actions).long()}

    def observe(self, state: State) -> Tensor:
        """See `Environment`."""
        return F.one_hot(state["paying"], self.actions).float().unsqueeze(1)

    def step(self, state: State, actions: Tensor, numbers: Tensor) -> Outcome:
        """See `Environment`."""
        paid = actions == state["paying"][:, None]
        ended = torch.ones_like(paid)
        return Outcome(self.reset(numbers), paid.float(), ended, ~ended, None)

    def quality(self, episode_return: Tensor, terminated: Tensor) -> Tensor:
        """See `Environment`: the return is the measure."""
        del terminated
        return episode_return
