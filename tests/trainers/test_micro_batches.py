"""`microBatchSize: auto`: found in a few tries, agreed by all ranks, kept for the run; the steps stay the same."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_strategies import flat, losses_and_norms, settings

from torchyard_trainers.core.micro_batches import largest_that_fits

MIB = 1024**2
SIZES = {"width": 64, "heads": 4, "vocabulary": 2000, "length": 96, "batch": 96, "steps": 4}


def search(most, share):
    """What was found, and the part of the memory that each try took, by size."""
    tries = {}

    def tried(size):
        tries[size] = share(size)
        return tries[size]

    return largest_that_fits(most, tried), tries


@given(st.integers(1, 100_000), st.floats(0.0, 0.95), st.floats(1e-6, 2.0), st.floats(-0.3, 0.3))
def test_what_is_found_was_tried_and_fits_even_if_memory_grows_in_no_straight_line(most, fixed, each, bent):
    found, tries = search(most, lambda size: fixed + each * size ** (1 + bent))
    assert found == max((size for size, taken in tries.items() if taken <= 1), default=1)
    assert len(tries) <= 16


@given(st.integers(1, 100_000), st.floats(0.0, 0.9), st.floats(1e-6, 0.1))
def test_on_a_straight_line_the_largest_is_found_to_a_few_percent_and_only_the_second_try_may_fail(most, fixed, each):
    found, tries = search(most, lambda size: fixed + each * size)
    assert found >= min(most, math.floor((1 - fixed) / each)) / 1.06 - 1
    assert all(taken <= 1 + 1e-6 for taken in list(tries.values())[2:])
    assert len(tries) <= 10


@pytest.fixture(scope="module")
def unbounded(fork_server, tmp_path_factory):
    from gangs import Yard

    yard = Yard(fork_server, tmp_path_factory.mktemp("unbounded"))
    yard.train(settings(strategy="ddp", precision="fp32"), 2, nodes=2, function=("little_lm:train", [SIZES]))
    assert found(yard) == 48  # all that a rank has
    return flat(losses_and_norms(yard))


def found(yard):
    return json.loads((yard.checkpoints / "micro-batch.json").read_text())["microBatch"]


@pytest.mark.e2e
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_agree_on_what_the_smallest_has_room_for_and_a_later_round_keeps_it(yard, unbounded, strategy):
    given = settings(strategy=strategy, precision="fp32")
    first = {**SIZES, "steps": 2}
    yard.train(given, 2, nodes=2, function=("little_lm:train_within", [first, [2000 * MIB, 40 * MIB]]))
    size = found(yard)
    assert 1 <= size < 48
    # Twice the room now; but another accumulation would have other bits.
    yard.train(given, 2, nodes=2, function=("little_lm:train_within", [SIZES, [2000 * MIB, 2000 * MIB]]))
    assert found(yard) == size
    assert flat(losses_and_norms(yard)) == pytest.approx(unbounded, abs=1e-5)


@pytest.mark.e2e
def test_another_number_of_ranks_is_tried_anew(yard, unbounded):
    given = settings(strategy="fsdp", precision="fp32")
    first = {**SIZES, "steps": 2}
    yard.train(given, 2, nodes=2, function=("little_lm:train_within", [first, [40 * MIB, 40 * MIB]]))
    assert found(yard) < 48
    yard.train(given, 3, nodes=3, function=("little_lm:train", [SIZES]))
    assert found(yard) == 32
    assert flat(losses_and_norms(yard)) == pytest.approx(unbounded, abs=1e-5)


@pytest.mark.e2e
def test_running_out_of_memory_all_the_same_ends_with_the_next_size_which_the_next_round_obeys(yard, unbounded):
    given = settings(strategy="ddp", precision="fp32")
    gang = yard.start(given, 2, nodes=2, function=("little_lm:train_out_of_memory", [SIZES, 20]))
    assert 69 in gang.wait(), gang.output()
    assert yard.failure()["nextMicroBatch"] == 24
    gang = yard.start(
        given,
        2,
        nodes=2,
        function=("little_lm:train_out_of_memory", [SIZES, 20]),
        env={"TORCHYARD_MICRO_BATCH": "24"},
    )
    assert 69 in gang.wait(), gang.output()
    assert yard.failure()["nextMicroBatch"] == 12
    yard.train(
        given,
        2,
        nodes=2,
        function=("little_lm:train_out_of_memory", [SIZES, 20]),
        env={"TORCHYARD_MICRO_BATCH": "12"},
    )
    assert flat(losses_and_norms(yard)) == pytest.approx(unbounded, abs=1e-5)
