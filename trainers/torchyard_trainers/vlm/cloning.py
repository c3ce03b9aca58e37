"""Warm start: the policy clones the expert of its environment, in states on the way of a clumsy expert."""

import torch
from torch import Tensor
from torch.nn import functional as F

from torchyard_trainers.core.randomness import sample_keys, split_keys, stream_key, uniform
from torchyard_trainers.core.workload import LossOutput
from torchyard_trainers.rl.environment import State, select
from torchyard_trainers.vlm.environments import Instructed
from torchyard_trainers.vlm.models import Answer
from torchyard_trainers.vlm.params import Settings

CLUMSY = 0.3  # share of random actions on the way, so that the policy learns to correct mistakes


def demonstrations(environment: Instructed, settings: Settings, ids: Tensor) -> tuple[State, Tensor]:
    """Return the states of samples [m], and what the expert does there, [m]: a pure function of the ids."""
    keys = split_keys(sample_keys(stream_key(settings.seed, "demonstrations"), ids), environment.limit + 2)
    state = environment.reset(uniform(split_keys(keys[:, 0], environment.draws)))
    moment = (uniform(keys[:, 1]) * environment.limit).long()
    for step in range(environment.limit - 1):
        numbers = uniform(split_keys(keys[:, 2 + step], environment.draws + 2))
        random = (numbers[:, -1:] * environment.actions).long()
        action = torch.where(numbers[:, -2:-1] < CLUMSY, random, environment.expert(state))
        moved = environment.step(state, action, numbers[:, : environment.draws]).state
        state = select(step < moment, moved, state)
    return state, environment.expert(state)[:, 0]


def clone_loss(answer: Answer, action: Tensor, weights: Tensor) -> LossOutput:
    """Return the cross-entropy of the expert's actions [m], summed over samples."""
    losses = F.cross_entropy(answer.logits, action, reduction="none")
    assert losses.shape == weights.shape
    right = (answer.logits.argmax(-1) == action).float()
    # Every parameter needs a gradient, for ddp: that of the value head is 0.
    loss = (losses * weights).sum() + 0 * answer.value.sum()
    return LossOutput(loss, {"expertAccuracy": (right * weights).sum()})
