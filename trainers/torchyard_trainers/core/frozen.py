"""Copies of a network that act and do not learn: a baseline's opponent, the policy that plays rollouts."""

import copy
from typing import TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


def frozen(network: M) -> M:
    """Give a copy, bit for bit and on the same device, whose parameters take no gradient.

    Tensors are cloned by an operation, not by `deepcopy`: of a tensor without content that would copy the mode which
    it belongs to as well, and tensors of two modes cannot meet in one step (`core.memory.forecast`).
    """
    parameters = {id(each): nn.Parameter(each.detach().clone(), requires_grad=False) for each in network.parameters()}
    buffers = {id(each): each.detach().clone() for each in network.buffers()}
    return copy.deepcopy(network, {**parameters, **buffers})
