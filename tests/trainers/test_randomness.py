"""Random numbers belong to a sample: batch, order and neighbours cannot move them."""

import torch

from torchyard_trainers.core.randomness import gumbel, sample_keys, split_keys, stream_key, uniform


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
    moved = ids ^ ((one ^ other) & 0xFFFF_FFFF)
    assert (sample_keys(one, ids) == sample_keys(other, moved)).sum() <= 1


def test_no_run_trains_on_the_evaluation_set():
    evaluation = sample_keys(stream_key(1234, "instances/evaluation"), torch.arange(10_000))
    training = torch.arange(512 * 10_000)  # all of preset cvrp20
    for seed in (1, 645):
        shared = torch.isin(sample_keys(stream_key(seed, "instances/train"), training), evaluation).sum()
        assert shared < 40  # 12 of 10,000 by chance, since keys of samples have 32 bits
