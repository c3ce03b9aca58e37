"""Losses of reinforcement learning on completions: pure functions of log-probabilities.

Tensors [n, L] have a completion in each row, padded on the right; `mask` is true for its tokens.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from torchyard_trainers.lm.methods.objectives.objective import same_shape
from torchyard_trainers.rl.clipped import clipped_loss, low_variance_kl


class PolicyLoss(NamedTuple):
    """Sums over a micro-batch: the loss is divided by the `count` of the global batch, statistics by the tokens."""

    loss: Tensor
    count: Tensor
    tokens: Tensor
    statistics: dict[str, Tensor]


def policy_loss(
    log_probability: Tensor,
    acted: Tensor,
    advantage: Tensor,
    mask: Tensor,
    weights: Tensor,
    *,
    low: float,
    high: float,
    level: str = "token",
    ratio_level: str = "token",
    longest: int = 0,
    reference: Tensor | None = None,
    kl_coefficient: float = 0.0,
    correction: Tensor | None = None,
) -> PolicyLoss:
    """Return the clipped policy loss of completions, as GRPO and PPO use it.

    Args:
        log_probability: of the tokens under the policy in training, [n, L].
        acted: the same under the policy that generated them, without gradient.
        advantage: of each token, [n, L]; in GRPO all tokens of a completion have the same.
        mask: [n, L] bool.
        weights: [n], 1 for a completion and 0 for padding.
        low: the ratio is clipped at 1 - low.
        high: and at 1 + high.
        level: what counts the same: every `token` of the batch (DAPO, Yu 2025), or every completion (`sequence`), so
            that a token of a long one counts less (GRPO, Shao 2024); `constant`: every token, and their sum is divided
            by the most that completions could have (Dr. GRPO, Liu 2025).
        ratio_level: `sequence`: the ratio is the geometric mean over the tokens of a completion (GSPO, Zheng 2025).
        longest: the most tokens of a completion, for the level `constant`.
        reference: log-probabilities of a frozen model, [n, L].
        kl_coefficient: weight of the divergence from it.
        correction: of `importance_weights`, [n, L]; None: the tokens are samples of `acted`.
    """
    same_shape(log_probability, acted, advantage, mask)
    assert mask.dtype == torch.bool
    assert weights.shape == mask.shape[:1], f"{tuple(weights.shape)}, {tuple(mask.shape)}"
    # Padding has any log-probability; zeros there keep overflows out of the sums.
    new, old = log_probability.masked_fill(~mask, 0), acted.masked_fill(~mask, 0)
    gain, size = advantage.masked_fill(~mask, 0), mask.sum(1, keepdim=True).clamp(min=1)
    if ratio_level == "sequence":
        ratio = ((new - old).sum(1, keepdim=True) / size).expand_as(new)
        policy = clipped_loss(ratio, torch.zeros_like(new), gain, low=low, high=high)
        policy = policy._replace(approx_kl=low_variance_kl((new - old).detach()))
    else:
        policy = clipped_loss(new, old, gain, low=low, high=high)
    loss = policy.loss
    if correction is not None:
        same_shape(log_probability, correction)
        loss = loss * correction
    named = {"approxKl": policy.approx_kl, "clipFraction": policy.clipped}
    if reference is not None:
        same_shape(log_probability, reference)
        divergence = low_variance_kl(reference.masked_fill(~mask, 0) - new)
        loss = loss + kl_coefficient * divergence
        named["kl"] = divergence.detach()
    counted = mask * weights[:, None]
    tokens = counted.sum()
    statistics = {name: (values * counted).sum() for name, values in named.items()}
    if level == "sequence":
        return PolicyLoss((loss * counted / size).sum(), weights.sum(), tokens, statistics)
    if level == "constant":
        return PolicyLoss((loss * counted).sum(), weights.sum() * longest, tokens, statistics)
    return PolicyLoss((loss * counted).sum(), tokens, tokens, statistics)


def importance_weights(acted: Tensor, sampled: Tensor, mask: Tensor, *, cap: float) -> Tensor:
    """Return truncated importance weights (Yao 2025) of tokens that another program sampled: [n, L], 0 for padding.

    Its arithmetic differs, and so do its probabilities. With these weights the gradient is that of the policy in
    training again, up to the cap, which bounds the variance.

    Args:
        acted: log-probabilities under the policy in training when the rollout was made, [n, L].
        sampled: those with which the tokens were sampled, [n, L].
        mask: [n, L] bool.
        cap: the largest weight.
    """
    same_shape(acted, sampled, mask)
    return (acted - sampled).masked_fill(~mask, -torch.inf).exp().clamp(max=cap)


def value_loss(value: Tensor, target: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    """Return half the squared error of expected returns, summed over the tokens of completions."""
    same_shape(value, target, mask)
    assert weights.shape == mask.shape[:1]
    error = 0.5 * (value - target).masked_fill(~mask, 0).square()
    return (error * weights[:, None]).sum()


def token_rewards(
    reward: Tensor, log_probability: Tensor, reference: Tensor | None, mask: Tensor, *, kl_coefficient: float
) -> Tensor:
    """Return the reward of each token, [n, L]: the completion's at its last one, less the divergence of each.

    Args:
        reward: of each completion, [n].
        log_probability: under the policy that generated the tokens.
        reference: under a frozen model; None: no divergence is subtracted.
        mask: [n, L] bool.
        kl_coefficient: reward that a unit of divergence costs.
    """
    same_shape(log_probability, mask)
    assert reward.shape == mask.shape[:1], f"{tuple(reward.shape)}, {tuple(mask.shape)}"
    found = torch.zeros_like(log_probability)
    if reference is not None:
        same_shape(log_probability, reference)
        found = -kl_coefficient * (log_probability - reference).masked_fill(~mask, 0)
    last = mask & (mask.cumsum(1) == mask.sum(1, keepdim=True))
    return found + last * reward[:, None].to(found.dtype)
