"""Losses on completions, against their definitions written as loops."""

import math

import pytest
import torch

from torchyard_trainers.lm.methods.losses import policy_loss, token_rewards, value_loss

N, L = 4, 5
LENGTHS = [5, 1, 3, 2]
WEIGHTS = [1.0, 1.0, 1.0, 0.0]


def numbers(count, scale=0.3):
    generator = torch.Generator().manual_seed(1)
    found = scale * torch.randn(count, N, L, generator=generator)
    mask = torch.arange(L) < torch.tensor(LENGTHS)[:, None]
    # What lies in the padding must not matter, even if it is extreme.
    return [each.masked_fill(~mask, 1e4 * (-1) ** index) for index, each in enumerate(found)], mask


@pytest.mark.parametrize("level", ["token", "sequence", "constant"])
@pytest.mark.parametrize("ratio_level", ["token", "sequence"])
@pytest.mark.parametrize("kl_coefficient", [None, 0.1])
def test_the_policy_loss_and_its_gradient_are_their_definitions(level, ratio_level, kl_coefficient):
    (new, old, advantage, reference), mask = numbers(4)
    new, old, advantage, reference = (each.double() for each in (new, old, advantage, reference))
    new.requires_grad_()
    found = policy_loss(
        new,
        old,
        advantage,
        mask,
        torch.tensor(WEIGHTS),
        low=0.1,
        high=0.2,
        level=level,
        ratio_level=ratio_level,
        longest=7,
        reference=None if kl_coefficient is None else reference,
        kl_coefficient=kl_coefficient or 0.0,
    )

    def defined(values):
        loss = clipped = divergence = 0.0
        for row in range(3):  # the fourth is padding
            log_ratios = [values[row][at] - old[row, at].item() for at in range(LENGTHS[row])]
            if ratio_level == "sequence":
                log_ratios = [sum(log_ratios) / LENGTHS[row]] * LENGTHS[row]
            for at in range(LENGTHS[row]):
                ratio = math.exp(log_ratios[at])
                gain = advantage[row, at].item()
                one = -min(ratio * gain, min(max(ratio, 0.9), 1.2) * gain)
                if kl_coefficient is not None:
                    log_ratio = reference[row, at].item() - values[row][at]
                    divergence += math.exp(log_ratio) - 1 - log_ratio
                    one += kl_coefficient * (math.exp(log_ratio) - 1 - log_ratio)
                loss += one / LENGTHS[row] if level == "sequence" else one
                clipped += not 0.9 <= ratio <= 1.2
        return loss, clipped, divergence

    loss, clipped, divergence = defined(new.tolist())
    found.loss.backward()
    for row, at in [(0, 0), (0, 4), (1, 0), (2, 2)]:
        sums = []
        for step in (-1e-6, 1e-6):
            values = new.tolist()
            values[row][at] += step
            sums.append(defined(values)[0])
        assert new.grad[row, at].item() == pytest.approx((sums[1] - sums[0]) / 2e-6, abs=1e-6)
    assert found.loss.item() == pytest.approx(loss, abs=1e-5)
    # The mean is over 9 tokens, over 3 completions, or over 3 completions of at most 7 tokens.
    assert found.count.item() == {"token": 9, "sequence": 3, "constant": 21}[level]
    assert found.tokens.item() == 9
    assert found.statistics["clipFraction"].item() == clipped
    if kl_coefficient is not None:
        assert found.statistics["kl"].item() == pytest.approx(divergence, abs=1e-5)


def test_the_padding_has_no_gradient():
    (new, old, advantage), mask = numbers(3)
    new.requires_grad_()
    policy_loss(new, old, advantage, mask, torch.tensor(WEIGHTS), low=0.2, high=0.2).loss.backward()
    counted = mask & (torch.tensor(WEIGHTS) > 0)[:, None]
    assert (new.grad[~counted] == 0).all()
    assert (new.grad[counted] != 0).any()


def test_the_value_loss_is_half_the_squared_error_of_counted_tokens():
    (value, target), mask = numbers(2)
    expected = sum(
        0.5 * (value[row, at] - target[row, at]).item() ** 2 for row in range(3) for at in range(LENGTHS[row])
    )
    assert value_loss(value, target, mask, torch.tensor(WEIGHTS)).item() == pytest.approx(expected, abs=1e-5)


def test_the_reward_comes_at_the_last_token_and_each_token_pays_for_its_divergence():
    (new, reference), mask = numbers(2)
    reward = torch.tensor([1.0, 2.0, 3.0, 4.0])
    found = token_rewards(reward, new, reference, mask, kl_coefficient=0.5)
    plain = token_rewards(reward, new, None, mask, kl_coefficient=0.5)
    for row in range(N):
        for at in range(L):
            last = reward[row].item() * (at == LENGTHS[row] - 1)
            cost = 0.5 * (new[row, at] - reference[row, at]).item() if at < LENGTHS[row] else 0.0
            assert plain[row, at].item() == last
            assert found[row, at].item() == pytest.approx(last - cost, abs=1e-5)


def test_losses_refuse_values_of_another_shape():
    (new, old, advantage), mask = numbers(3)
    with pytest.raises(AssertionError, match="shapes differ"):
        policy_loss(new, old, advantage[:, :1], mask, torch.ones(N), low=0.2, high=0.2)
    with pytest.raises(AssertionError):
        policy_loss(new, old, advantage, mask, torch.ones(N, 1), low=0.2, high=0.2)
    with pytest.raises(AssertionError, match="shapes differ"):
        value_loss(new, old[:, 0], mask, torch.ones(N))
