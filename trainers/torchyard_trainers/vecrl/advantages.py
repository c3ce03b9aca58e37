"""Generalised advantage estimation (Schulman 2015), for each agent of each environment by itself."""

import torch
from torch import Tensor


def advantages(
    reward: Tensor,
    value: Tensor,
    following: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    decay: float,
) -> Tensor:
    """Return how much better actions were than expected: [T, N, A] float32.

    A_t = delta_t + gamma * decay * A_{t+1} within an episode, with delta_t = r_t + gamma * V(s_{t+1}) - V(s_t). After a
    termination there is no s_{t+1}. A truncation cuts the sum but not the future: V of the state that was reached
    stands for what would have followed.

    Args:
        reward: [T, N, A].
        value: V(s_t), [T, N, A].
        following: V(s_{t+1}) of the state that the step reached, before any reset: [T, N, A].
        terminated: [T, N, A] bool.
        truncated: [T, N, A] bool.
        gamma: discount of a step.
        decay: lambda of the estimate.
    """
    assert reward.shape == value.shape == following.shape == terminated.shape == truncated.shape
    delta = reward + gamma * following.masked_fill(terminated, 0) - value
    carry = gamma * decay * (~(terminated | truncated)).to(delta.dtype)
    found = torch.empty_like(delta)
    running = torch.zeros_like(delta[0])
    for time in reversed(range(len(delta))):
        running = delta[time] + carry[time] * running
        found[time] = running
    return found
