"""Random numbers belong to a sample: batch, order and neighbours cannot move them."""

import pytest
import torch

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.randomness import gumbel, mix, sample_keys, split_keys, stream_key, uniform
from torchyard_trainers.cvrp import params
from torchyard_trainers.cvrp.evaluation import EVALUATION, make
from torchyard_trainers.cvrp.instances import generate


def test_a_sample_has_the_same_numbers_in_any_batch():
    ids = torch.arange(1000)
    together = split_keys(sample_keys(stream_key(1, "x"), ids), 7)
    alone = split_keys(sample_keys(stream_key(1, "x"), ids[137:138]), 7)
    assert torch.equal(together[137], alone[0])
    assert torch.equal(split_keys(ids[:1], 3, offset=2), split_keys(ids[:1], 5)[:, 2:])


def test_streams_seeds_and_samples_are_independent():
    ids = torch.arange(4096)
    draws = [uniform(sample_keys(stream_key(seed, name), ids)) for seed, name in ((1, "a"), (1, "b"), (2, "a"))]
    draws.append(draws[0].roll(1))
    correlation = torch.corrcoef(torch.stack(draws)) - torch.eye(4)
    assert correlation.abs().max() < 0.06  # 4 standard errors of 4096 samples


def test_numbers_are_uniform_and_never_reach_the_ends():
    numbers = uniform(split_keys(torch.arange(2000), 50)).flatten()
    assert 0 < numbers.min() < numbers.max() < 1
    counts = torch.histc(numbers, 20, 0, 1)
    assert ((counts - 5000).square() / 5000).sum() < 50  # chi-squared, 19 degrees of freedom, p = 1e-4


def test_argmax_of_scores_plus_noise_samples_the_softmax():
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0])
    noise = gumbel(split_keys(sample_keys(5, torch.arange(100_000)), 4))
    shares = torch.bincount((logits + noise).argmax(-1), minlength=4) / 100_000
    assert torch.allclose(shares, logits.softmax(0), atol=0.006)


def test_ids_beyond_32_bits_are_distinct():
    ids = torch.tensor([5, 5 + 2**32, 5 + 2**33, 5 + 2**61])
    assert len(sample_keys(1, ids).unique()) == 4


def test_no_stream_is_another_one_with_its_ids_moved():
    one, other = stream_key(1, "a"), stream_key(1, "b")
    ids = torch.arange(4096)
    moved = ids ^ ((one ^ other) % 2**62)
    assert not (sample_keys(one, ids) == sample_keys(other, moved)).any()


@pytest.mark.parametrize("bits", [62, 63])
def test_mixing_is_a_bijection_that_every_bit_of_the_input_turns_over(bits):
    mask = 2**bits - 1
    values = sample_keys(3, torch.arange(20_000)) & mask
    mixed = mix(values, mask)
    assert torch.equal(unmix(mixed, mask), values)
    for bit in range(bits):
        flipped = mixed ^ mix(values ^ (1 << bit), mask)
        shares = torch.stack([(flipped >> place & 1).float().mean() for place in range(bits)])
        assert (shares - 0.5).abs().max() < 0.02  # 5.6 standard errors


def unmix(value, mask):
    """`mix` backwards: a shift is undone by shifting the result in again and again, a factor by its inverse."""
    for shift, factor in ((31, 1), (27, 0x94D0_49BB_1331_11EB), (30, 0xBF58_476D_1CE4_E5B9)):
        inverse = pow(factor, -1, 2**64)
        value = value * (inverse - 2**64 if inverse >> 63 else inverse) & mask
        value = value ^ (value >> shift) ^ (value >> 2 * shift)
    return value


def test_no_run_trains_on_the_evaluation_set_nor_twice_on_one_instance():
    longest = max(preset["batch"] * preset["steps"] for preset in params.PRESETS.values())
    held_out = max(preset["eval_instances"] for preset in params.PRESETS.values())
    evaluation = sample_keys(stream_key(1234, "evaluation", held_out=True), torch.arange(held_out))
    ids = torch.arange(0, longest, max(1, longest // 1_000_000))
    for stream in ("train", "t-test/0", "evaluation"):
        keys = sample_keys(stream_key(1234, stream), ids)
        assert len(keys.unique()) == len(ids)
        # Not by chance: the top bit tells the two kinds of streams apart, so no seed and no id can bring them together.
        assert keys.max() < 2**62 <= evaluation.min()


def test_the_evaluation_set_is_the_held_out_one():
    settings = params.resolve_params({}, Parallelism())
    ids = torch.arange(8)
    made = make(settings, EVALUATION, ids)
    sizes = {"customers": settings.customers, "capacity": settings.capacity}
    assert torch.equal(made.xy, generate(1234, EVALUATION, ids, **sizes, held_out=True).xy)
    assert not torch.equal(made.xy, generate(1234, EVALUATION, ids, **sizes).xy)
