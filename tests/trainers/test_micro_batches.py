"""`microBatchSize: auto`: found in a few tries, agreed by all ranks, kept for the run; the steps stay the same."""

import json
import math
from types import SimpleNamespace

import little_images
import little_lm
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.trainers.test_strategies import flat, losses_and_norms, settings

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.memory.micro_batches import choose, describe, division, largest_that_fits
from torchyard_trainers.core.parallel import Parallel
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.workload import Session
from torchyard_trainers.core.world import World, device_reason, pick_device

MIB = 1024**2
SIZES = {"width": 64, "heads": 4, "vocabulary": 2000, "length": 96, "batch": 96, "steps": 4}


def searching(strategy):
    return settings(strategy=strategy, precision="fp32", microBatchSize="auto")


@pytest.mark.parametrize(
    ("size", "micro_batch", "divided", "parts"),
    [
        (1, None, (10, 1), "10 of each process in 1 pass(es)"),
        (2, 2, (5, 3), "5 of each process in 3 pass(es)"),
        (3, 3, (4, 2), "at most 4 of each process in 2 pass(es)"),
    ],
)
def test_the_first_line_says_where_a_run_trains_and_how_its_batch_is_divided(size, micro_batch, divided, parts):
    module, device = torch.nn.Linear(2, 2), torch.device("cpu")
    session = Session(
        Parallel("ddp", module, module),
        Precision("bf16", device, sharded=False),
        World(0, size, 0, device, grouped=False),
        Reporter(None, rank=0, local_rank=0, round_number=0),
        micro_batch,
    )
    assert division(SimpleNamespace(global_batch=10), session) == divided
    found = describe(SimpleNamespace(global_batch=10), session, "cpu")
    assert found == f"training on cpu (device: cpu): {size} process(es), ddp, bf16; a step is 10 samples, {parts}"


def test_a_run_without_a_device_says_why_it_trains_where_it_does(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    built = device_reason("auto", pick_device("auto", 0))
    assert built == f"device: auto, torch {torch.__version__} is built without CUDA"
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    hidden = device_reason("auto", pick_device("auto", 0))
    assert hidden == "device: auto, CUDA_VISIBLE_DEVICES is '', which hides every GPU"


def search(per_rank, share, most=None):
    """What was found, and what was tried: size, number of micro-batches, part of the memory that they took."""
    tries = []

    def tried(size, count):
        tries.append((size, count, share(size, count)))
        return tries[-1][-1]

    return largest_that_fits(per_rank, most or per_rank, tried), tries


def micro_batches(per_rank, size):
    return -(-per_rank // size)


@given(st.integers(1, 100_000), st.floats(0.0, 0.95), st.floats(0, 0.5), st.floats(1e-6, 2.0), st.floats(-0.3, 0.3))
def test_the_micro_batch_that_is_found_was_tried_and_fits_also_where_memory_is_not_linear(
    per_rank, fixed, kept, each, bent
):
    found, tries = search(per_rank, lambda size, count: fixed + kept * (count - 1) + each * size ** (1 + bent))
    fitting = [size for size, count, taken in tries if taken <= 1 and (count == 2) == (size < per_rank)]
    assert found == max(fitting, default=1)
    assert len(tries) <= 24
    assert len(set(tries)) == len(tries)


@given(st.integers(1, 100_000), st.floats(0.0, 0.9), st.floats(0, 0.5), st.floats(1e-6, 0.1))
def test_where_memory_is_linear_the_largest_micro_batch_is_found_and_no_try_fails_that_was_foreseen(
    per_rank, fixed, kept, each
):
    found, tries = search(per_rank, lambda size, count: fixed + kept * (count - 1) + each * size)
    at_once = fixed + each * per_rank
    if at_once <= 1 - 1e-6:  # what ends at all the memory may be foreseen on either side of it
        assert found == per_rank
    elif at_once > 1 + 1e-6 and fixed + kept + each <= 1:
        best = min(per_rank - 1, math.floor((1 - fixed - kept) / each - 1e-6))
        assert micro_batches(per_rank, found) <= 1.07 * micro_batches(per_rank, best) + 1
    # The second size tells how steep the line is, and the first that accumulates what that takes.
    assert all(taken <= 1 + 1e-6 for size, count, taken in tries[2:] if (size, count) != (1, 2))
    assert len(tries) <= 12


def test_all_samples_at_once_may_fit_where_accumulation_does_not():
    found, tries = search(12, lambda size, count: 0.5 + 0.45 * (count - 1) + 0.04 * size)
    assert (found, [count for _, count, _ in tries]) == (12, [1] * len(tries))


def test_sizes_that_samples_are_not_split_into_are_not_tried_one_after_another():
    found, tries = search(12, lambda size, count: 0.1 * size)
    assert {size for size, count, _ in tries if count == 2} <= {1, 2, 3, 4, 6}
    assert found == 6


def test_the_limit_of_an_earlier_round_is_not_exceeded():
    found, tries = search(12, lambda size, count: 0.01 * size, most=5)
    assert found == 4
    assert all(count == 2 for _, count, _ in tries)


@pytest.fixture(scope="module")
def unbounded(fork_server, tmp_path_factory):
    from tests.support.trainers.gangs import Yard

    yard = Yard(fork_server, tmp_path_factory.mktemp("unbounded"))
    yard.train(searching("ddp"), 2, nodes=2, function=("little_lm:train", [SIZES]))
    assert found(yard) == 48  # all that a rank has
    return flat(losses_and_norms(yard))


def found(yard):
    return json.loads((yard.checkpoints / "micro-batch.json").read_text())["microBatch"]


@pytest.mark.e2e
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_agree_on_what_the_smallest_has_room_for_and_a_later_round_keeps_it(yard, unbounded, strategy):
    given = searching(strategy)
    first = {**SIZES, "steps": 2}
    yard.train(given, 2, nodes=2, function=("little_lm:train_within", [first, [2000 * MIB, 40 * MIB]]))
    size = found(yard)
    assert 1 <= size < 48
    # Twice the room now; but another accumulation would have other bits.
    yard.train(given, 2, nodes=2, function=("little_lm:train_within", [SIZES, [2000 * MIB, 2000 * MIB]]))
    assert found(yard) == size
    assert flat(losses_and_norms(yard)) == pytest.approx(unbounded, abs=1e-5)


@pytest.mark.e2e
def test_another_number_of_ranks_searches_for_the_micro_batch_again(yard, unbounded):
    given = searching("fsdp")
    first = {**SIZES, "steps": 2}
    yard.train(given, 2, nodes=2, function=("little_lm:train_within", [first, [40 * MIB, 40 * MIB]]))
    assert found(yard) < 48
    yard.train(given, 3, nodes=3, function=("little_lm:train", [SIZES]))
    assert found(yard) == 32
    assert flat(losses_and_norms(yard)) == pytest.approx(unbounded, abs=1e-5)


@pytest.mark.e2e
def test_a_restored_optimizer_is_not_there_twice_while_sizes_are_tried(yard):
    given, file = searching("fsdp"), yard.root / "states"
    for world, steps in ((1, 2), (2, 4)):
        file.unlink(missing_ok=True)
        sizes = {**SIZES, "steps": steps}
        yard.train(given, world, function=("little_lm:train_counting_states", [sizes, str(file)]))
        assert file.read_text() == "1"


@pytest.mark.e2e
def test_running_out_of_memory_all_the_same_ends_with_the_next_size_which_the_next_round_obeys(yard, unbounded):
    given = searching("ddp")
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


@pytest.mark.e2e
@pytest.mark.parametrize(("more", "size"), [(60, 48), (20, 24)])
def test_gradients_that_fit_only_once_are_not_accumulated(yard, unbounded, more, size):
    """All 48 samples of a rank take 98 bytes. One that accumulates takes 111 or 71, and 24 of them 134 or 94."""
    given = searching("ddp")
    room = 98 if size == 48 else 97
    yard.train(given, 2, nodes=2, function=("little_lm:train_where_accumulating_takes", [SIZES, more, room]))
    assert found(yard) == size
    assert not yard.report()["warnings"]
    assert flat(losses_and_norms(yard)) == pytest.approx(unbounded, abs=1e-5)


class Full:
    """Memory that has no room for anything."""

    limit = 1

    def start(self):
        pass

    def peak(self):
        return 2


def settled(work, root, allowed=None):
    device, model = torch.device("cpu"), work.build()
    reporter = Reporter(None, rank=0, local_rank=0, round_number=0)
    precision, world = Precision("fp32", device, sharded=False), World(0, 1, 0, device, grouped=False)
    session = Session(Parallel("single", model, model), precision, world, reporter, allowed)
    found = choose(work, session, root, settings=Parallelism(), step=0, memory=Full())
    return found.micro_batch, "sees fewer others" in str(reporter.facts["warnings"])


@pytest.mark.parametrize(("mixes", "size"), [(False, 1), (True, None)])
def test_samples_that_are_compared_with_each_other_are_not_split(tmp_path, monkeypatch, mixes, size):
    monkeypatch.setattr(little_lm.LittleLm, "mixes_samples", mixes)
    assert settled(little_lm.LittleLm(little_lm.Sizes(batch=4)), tmp_path) == (size, False)


def test_splitting_such_samples_after_running_out_of_memory_is_reported(tmp_path):
    assert settled(little_images.Images(little_images.Params()), tmp_path, 6) == (6, True)
    assert settled(little_lm.LittleLm(little_lm.Sizes(batch=8)), tmp_path, 4) == (1, False)
