"""Advantages: generalised advantage estimation (Schulman 2015), and rewards relative to a group (Shao 2024)."""

import torch
from torch import Tensor

# Added to the deviation of a group, as in TRL: a group of nearly equal rewards must not be blown up.
DEVIATION_FLOOR = 1e-4


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
    """Return how much better actions were than expected: [T, ...] float32, for each sequence independently.

    A_t = delta_t + gamma * decay * A_{t+1} within an episode, with delta_t = r_t + gamma * V(s_{t+1}) - V(s_t). After a
    termination there is no s_{t+1}. A truncation cuts the sum but not the future: V of the state that was reached
    stands for what would have followed.

    Args:
        reward: [T, ...].
        value: V(s_t), [T, ...].
        following: V(s_{t+1}) of the state that the step reached, before any reset: [T, ...].
        terminated: [T, ...] bool.
        truncated: [T, ...] bool.
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


def token_advantages(reward: Tensor, value: Tensor, mask: Tensor, *, gamma: float, decay: float) -> Tensor:
    """Return the advantages of the tokens of completions [n, L]; 0 after the end of each.

    A completion ends at its last token, whether it stopped or was cut off: its reward judges it as it is, so there is
    nothing to bootstrap from.

    Args:
        reward: of each token, [n, L].
        value: expected return before each token, [n, L].
        mask: [n, L] bool, true for the tokens of a completion, which come first.
        gamma: discount of a token.
        decay: lambda of the estimate.
    """
    assert reward.shape == value.shape == mask.shape, f"{reward.shape}, {value.shape}, {mask.shape}"
    assert mask.dtype == torch.bool
    followed = torch.zeros_like(mask)
    followed[:, :-1] = mask[:, 1:]
    following = torch.zeros_like(value)
    following[:, :-1] = value[:, 1:]
    found = advantages(
        reward.masked_fill(~mask, 0).T,
        value.masked_fill(~mask, 0).T,
        following.T,
        ~followed.T,
        torch.zeros_like(mask).T,
        gamma=gamma,
        decay=decay,
    )
    return found.T.masked_fill(~mask, 0)


def group_advantages(reward: Tensor, size: int, *, normalize: bool) -> tuple[Tensor, Tensor]:
    """Return the advantage of each completion over the mean of its group, and which groups teach nothing.

    Completions of a group share one prompt and follow each other. Dividing by the deviation of the group weighs easy
    and hard prompts more than others (Liu 2025, "Dr. GRPO"), so it is a choice.

    Args:
        reward: [groups * size].
        size: completions of a group.
        normalize: divide by the deviation of the group.

    Returns:
        Advantages [groups * size], and [groups] bool: whether all rewards of a group are equal.
    """
    assert reward.dim() == 1
    assert size > 1, f"a group of {size} has no other completion to compare with"
    assert len(reward) % size == 0, f"{len(reward)} rewards are not groups of {size}"
    groups = reward.view(-1, size)
    degenerate = (groups == groups[:, :1]).all(1)
    # Exactly 0 for equal rewards, whose mean may be off by a rounding error.
    found = (groups - groups.mean(1, keepdim=True)).masked_fill(degenerate[:, None], 0)
    if normalize:
        found = found / (groups.std(1, keepdim=True) + DEVIATION_FLOOR)
    return found.flatten(), degenerate
