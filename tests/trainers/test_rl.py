"""The parts of reinforcement learning that workloads share, against their definitions."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchyard_trainers.rl.advantages import group_advantages, token_advantages
from torchyard_trainers.rl.clipped import clipped_loss, entropy_of, low_variance_kl
from torchyard_trainers.rl.sampling import choose, draws_of, restrict


@given(seed=st.integers(0, 10_000), gamma=st.floats(0, 1), decay=st.floats(0, 1))
@settings(max_examples=30)
def test_advantages_of_tokens_are_brute_force_and_end_with_the_completion(seed, gamma, decay):
    generator = torch.Generator().manual_seed(seed)
    reward, value = torch.randn(2, 3, 6, generator=generator).unbind()
    lengths = torch.randint(0, 7, (3,), generator=generator)
    mask = torch.arange(6) < lengths[:, None]
    found = token_advantages(reward, value, mask, gamma=gamma, decay=decay)
    for row in range(3):
        for at in range(6):
            expected, end = 0.0, int(lengths[row])
            for later in range(at, end):
                ahead = float(value[row, later + 1]) if later + 1 < end else 0.0
                delta = float(reward[row, later]) + gamma * ahead - float(value[row, later])
                expected += (gamma * decay) ** (later - at) * delta
            assert found[row, at].item() == pytest.approx(expected, abs=1e-4)


def test_without_discount_an_advantage_is_what_is_still_to_come_less_what_was_expected():
    reward = torch.tensor([[0.0, 0.0, 1.0, 9.0]])
    value = torch.tensor([[0.5, 0.25, 0.125, 9.0]])
    mask = torch.tensor([[True, True, True, False]])
    found = token_advantages(reward, value, mask, gamma=1.0, decay=1.0)
    assert found.tolist() == [[0.5, 0.75, 0.875, 0.0]]


@pytest.mark.parametrize("normalize", [True, False])
def test_an_advantage_compares_with_the_own_group_only(normalize):
    reward = torch.tensor([1.0, 0.0, 0.0, 5.0, 7.0, 9.0])
    found, degenerate = group_advantages(reward, 3, normalize=normalize)
    for group in (slice(0, 3), slice(3, 6)):
        mean = reward[group].mean()
        expected = reward[group] - mean
        if normalize:
            expected = expected / (reward[group].std() + 1e-4)
        assert torch.allclose(found[group], expected)
    assert degenerate.tolist() == [False, False]


@pytest.mark.parametrize("normalize", [True, False])
def test_a_group_of_equal_rewards_teaches_exactly_nothing_and_is_named(normalize):
    found, degenerate = group_advantages(torch.tensor([0.1, 0.1, 0.1, 0.0, 1.0, 0.0]), 3, normalize=normalize)
    assert found[:3].tolist() == [0.0, 0.0, 0.0]
    assert degenerate.tolist() == [True, False]


def test_rewards_that_are_no_whole_groups_are_refused():
    with pytest.raises(AssertionError, match="5 rewards are not groups of 3"):
        group_advantages(torch.zeros(5), 3, normalize=False)
    with pytest.raises(AssertionError, match="no other completion"):
        group_advantages(torch.zeros(5), 1, normalize=False)


@given(
    new=st.floats(-3, 0),
    old=st.floats(-3, 0),
    advantage=st.floats(-2, 2),
    low=st.floats(0.01, 0.5),
    high=st.floats(0.01, 0.5),
)
def test_the_clipped_loss_is_its_definition(new, old, advantage, low, high):
    numbers = [torch.tensor([number], dtype=torch.float64) for number in (new, old, advantage)]
    found = clipped_loss(*numbers, low=low, high=high)
    ratio = math.exp(new - old)
    bounded = min(max(ratio, 1 - low), 1 + high)
    assert found.loss.item() == pytest.approx(-min(ratio * advantage, bounded * advantage))
    assert found.clipped.item() == float(ratio < 1 - low or ratio > 1 + high)
    assert found.approx_kl.item() >= -1e-12


def test_a_ratio_beyond_its_bound_has_no_gradient_and_the_upper_bound_may_be_higher():
    new = torch.log(torch.tensor([1.25, 1.35, 0.7])).requires_grad_()
    clipped_loss(new, torch.zeros(3), torch.tensor([1.0, 1.0, -1.0]), low=0.2, high=0.28).loss.sum().backward()
    assert (new.grad != 0).tolist() == [True, False, False]


def test_losses_refuse_values_of_another_shape():
    with pytest.raises(AssertionError):
        clipped_loss(torch.zeros(4, 1), torch.zeros(4), torch.zeros(4), low=0.2)


def test_the_estimate_of_a_divergence_is_unbiased():
    p, q = torch.tensor([0.2, 0.3, 0.5]), torch.tensor([0.4, 0.4, 0.2])
    estimate = (q * low_variance_kl((p / q).log())).sum()
    assert estimate.item() == pytest.approx((q * (q / p).log()).sum().item(), abs=1e-6)
    assert entropy_of(q.log()).item() == pytest.approx(-(q * q.log()).sum().item())


def test_draws_belong_to_the_sample_and_the_position():
    ids = torch.arange(50)
    whole = draws_of(3, "tokens", ids, 0, 8)
    assert torch.equal(draws_of(3, "tokens", ids[7:9], 5, 2), whole[7:9, 5:7])
    assert len(whole.unique()) == whole.numel()
    assert 0 < whole.min() < whole.max() < 1
    assert not torch.equal(draws_of(4, "tokens", ids, 0, 8), whole)
    assert not torch.equal(draws_of(3, "tokens", ids, 0, 8, held_out=True), whole)


def test_choices_follow_their_probabilities():
    logits = torch.log(torch.tensor([0.1, 0.6, 0.0, 0.3]))
    draws = draws_of(1, "tokens", torch.arange(40_000), 0, 1)[:, 0]
    shares = choose(logits.expand(len(draws), -1), draws).bincount(minlength=4) / len(draws)
    assert shares[2] == 0
    assert torch.allclose(shares, logits.exp(), atol=0.01)


@pytest.mark.parametrize("draw", [1e-300, 1 - 2.0**-53])
def test_the_least_and_the_greatest_draw_make_possible_choices(draw):
    logits = torch.full((1, 7), -math.inf)
    logits[0, 2:4] = torch.tensor([0.3, -40.0])
    assert choose(logits, torch.tensor([draw], dtype=torch.float64)).item() in (2, 3)


@given(seed=st.integers(0, 1000), top_k=st.integers(0, 8), top_p=st.floats(0.05, 1))
@settings(max_examples=50)
def test_what_may_be_sampled_is_the_definition_of_top_k_and_top_p(seed, top_k, top_p):
    logits = torch.randn(2, 6, generator=torch.Generator().manual_seed(seed))
    found = restrict(logits, top_k=top_k, top_p=top_p)
    for row, kept in zip(logits, found, strict=True):
        order = sorted(range(6), key=lambda at: -float(row[at]))[: top_k or None]
        weights = [math.exp(float(row[at])) for at in order]
        reached, chosen = 0.0, set()
        for at, weight in zip(order, weights, strict=True):
            if reached < top_p - 1e-6 or not chosen:
                chosen.add(at)
            reached += weight / sum(weights)
        assert {at for at in range(6) if kept[at] > -math.inf} == chosen
