"""Frozen copies of a network: the opponent of a baseline, the policy that plays rollouts."""

import copy
from typing import TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


def frozen(network: M) -> M:
    """Return an exact copy on the same device whose parameters do not require gradients.

    Tensors are cloned by an operation, not by `deepcopy`, which would copy the mode of a fake tensor as well, and
    tensors of two modes cannot be used in one step (`core.memory.forecast`).
    """
    parameters = {id(each): nn.Parameter(each.detach().clone(), requires_grad=False) for each in network.parameters()}
    buffers = {id(each): each.detach().clone() for each in network.buffers()}
    return copy.deepcopy(network, {**parameters, **buffers})
