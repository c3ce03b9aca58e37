"""Any world and any micro-batch carry the same global batch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from torchyard_trainers.core.batching import split
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.sampler import samples_of_step
from torchyard_trainers.core.step import micro_batch_of, out_of_memory
from torchyard_trainers.core.worker import largest_micro_batch

batches = some.integers(1, 300)
worlds = some.integers(1, 40)
micro_batches = some.none() | some.integers(1, 64)


@given(batches, worlds, micro_batches)
def test_every_sample_counts_exactly_once(global_batch, world, micro_batch):
    counted = [
        position
        for rank in range(world)
        for slots in split(global_batch, world, rank, micro_batch)
        for position, weight in zip(*slots, strict=True)
        if weight
    ]
    assert sorted(counted) == list(range(global_batch))


@given(batches, worlds, micro_batches)
def test_a_rank_takes_every_worldth_sample_in_order(global_batch, world, micro_batch):
    rank = world - 1
    counted = [p for slots in split(global_batch, world, rank, micro_batch) for p, w in zip(*slots, strict=True) if w]
    assert counted == list(range(global_batch))[rank::world]


@given(batches, worlds, micro_batches)
def test_all_ranks_run_the_same_number_of_equal_forward_passes(global_batch, world, micro_batch):
    shapes = {
        tuple(len(slots.positions) for slots in split(global_batch, world, rank, micro_batch)) for rank in range(world)
    }
    assert len(shapes) == 1
    sizes = shapes.pop()
    assert len(set(sizes)) == 1
    assert micro_batch is None or sizes[0] <= micro_batch


@given(batches, worlds, micro_batches)
def test_padding_repeats_real_samples_and_never_fills_a_whole_micro_batch_of_work(global_batch, world, micro_batch):
    for rank in range(world):
        parts = split(global_batch, world, rank, micro_batch)
        assert all(0 <= position < global_batch for slots in parts for position in slots.positions)
    slots = sum(len(part.positions) for part in split(global_batch, world, 0, micro_batch))
    assert slots - -(-global_batch // world) < len(split(global_batch, world, 0, micro_batch))


def test_sizes_below_one_are_rejected_by_name():
    with pytest.raises(ValueError, match="micro-batch 0"):
        split(8, 2, 0, 0)


def test_out_of_memory_advises_half_of_what_a_rank_really_held():
    assert out_of_memory(16).next_micro_batch == 8
    assert out_of_memory(1).next_micro_batch == 0
    assert "set parallelism.microBatchSize: 8" in str(out_of_memory(16))
    assert "use strategy fsdp or a larger GPU" in str(out_of_memory(1))


@pytest.mark.parametrize(
    ("configured", "learned", "largest"),
    [("auto", None, None), (8, None, 8), ("auto", "16", 16), (8, "16", 8), (32, "16", 16)],
)
def test_the_smaller_of_the_configured_and_the_learned_micro_batch_is_the_limit(configured, learned, largest):
    assert largest_micro_batch(configured, learned) == largest


@pytest.mark.parametrize("nonsense", ["", "0", "-4", "many", "1.5"])
def test_a_learned_micro_batch_that_is_no_positive_number_is_rejected_by_name(nonsense):
    with pytest.raises(ConfigError, match="TORCHYARD_MICRO_BATCH"):
        largest_micro_batch("auto", nonsense)


@given(batches, worlds, some.integers(0, 39), micro_batches, some.integers(0, 1000))
def test_a_micro_batch_on_the_device_is_its_slots_counted_from_the_steps_first_sample(
    global_batch, world, rank, micro_batch, step
):
    ids = samples_of_step(step, global_batch)
    for slots in split(global_batch, world, rank % world, micro_batch):
        batch = micro_batch_of(ids, slots, torch.device("cpu"))
        assert batch.ids.tolist() == [step * global_batch + position for position in slots.positions]
        assert batch.ids.dtype == torch.int64
        assert batch.weights.tolist() == slots.weights
