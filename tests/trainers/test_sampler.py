"""The samples of a step depend on nothing but fingerprint, seed and step."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as some

from torchyard_trainers.core.batching import split
from torchyard_trainers.core.sampler import order_key, permutation, samples_of_step
from torchyard_trainers.core.workload import epochs, ids_of_step


@given(some.integers(1, 500), some.integers(0, 2**64 - 1))
def test_a_permutation_meets_every_sample_once(size, key):
    image = permutation(size, key)
    assert sorted(image(np.arange(size, dtype=np.uint64)).tolist()) == list(range(size))


def test_an_epoch_is_complete_over_a_chain_of_elastic_changes():
    size, global_batch = 96, 12
    seen = []
    for step in range(size // global_batch):
        world = (1, 2, 3, 5)[step % 4]
        ids = samples_of_step(step, global_batch, size=size, key=order_key("data", 1))
        for rank in range(world):
            for slots in split(global_batch, world, rank, 3):
                seen += [ids[p] for p, weight in zip(*slots, strict=True) if weight]
    assert len(seen) == size
    assert set(seen) == set(range(size))


def test_epochs_seeds_and_data_sets_have_orders_of_their_own():
    def order(epoch, seed=1, data="a"):
        return samples_of_step(epoch, 64, size=64, key=order_key(data, seed))

    orders = [order(0), order(1), order(0, seed=2), order(0, data="b")]
    assert len({tuple(ids) for ids in orders}) == 4
    assert order(0) == order(0)


def test_a_batch_may_span_two_epochs():
    ids = samples_of_step(1, 6, size=8, key=3)
    first = samples_of_step(0, 6, size=8, key=3)
    assert set(first + ids[:2]) == set(range(8))
    assert len(ids) == 6


def test_each_seed_and_each_epoch_has_an_order_of_its_own():
    def order(step, **identity):
        return ids_of_step(SimpleNamespace(identity=identity, global_batch=8, dataset_size=8, source=None), step)

    assert sorted(order(0)) == sorted(order(1)) == list(range(8))
    assert len({tuple(order(0)), tuple(order(1)), tuple(order(0, seed=2))}) == 3
    assert epochs(SimpleNamespace(global_batch=6, dataset_size=8, source=None), 2) == 1.5
    endless = SimpleNamespace(global_batch=4, dataset_size=None, source=None)
    assert (list(ids_of_step(endless, 3)), epochs(endless, 3)) == ([12, 13, 14, 15], 0)


def test_samples_of_endless_data_are_numbered_without_a_gap():
    assert list(samples_of_step(3, 4)) == [12, 13, 14, 15]
