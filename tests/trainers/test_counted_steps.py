"""Losses that are divided by a count, samples that are read, and rollouts between steps."""

import os
import tempfile
from multiprocessing import active_children, process

import counted_lm
import pytest
import torch
from tests.support.trainers.gangs import config
from torch import nn

from torchyard_trainers.core.data.loader import Loader, share_of_cores
from torchyard_trainers.core.data_wait import DataWait
from torchyard_trainers.core.exits import DataError
from torchyard_trainers.core.parallel import Parallel
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.step import optimize
from torchyard_trainers.core.workload import Session, ids_of_step
from torchyard_trainers.core.world import World

CPU = torch.device("cpu")


def session(module, micro_batch=None):
    reporter = Reporter(None, rank=0, local_rank=0, round_number=0)
    world = World(0, 1, 0, CPU, grouped=False)
    return Session(
        Parallel("single", module, module), Precision("fp32", CPU, sharded=False), world, reporter, micro_batch
    )


def step_once(work, micro_batch):
    module = work.build()
    work.max_grad_norm = 1e9
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    before = [each.detach().clone() for each in module.parameters()]
    totals = optimize(work, session(module, micro_batch), optimizer, 0, {})
    return totals.metrics, [old - new.detach() for old, new in zip(before, module.parameters(), strict=True)]


@pytest.mark.parametrize("micro_batch", [None, 4, 1])
def test_a_step_descends_the_mean_over_all_tokens(micro_batch):
    work = counted_lm.CountedLm(counted_lm.Params())
    model = work.build()
    losses, right, lengths = [], 0, []
    for each in ids_of_step(work, 0):
        text = (work.source.read([each])["text"][0] + work.offset) % counted_lm.LETTERS
        logits = model(text[None])[0, :-1]
        losses.append(nn.functional.cross_entropy(logits, text[1:], reduction="none"))
        right += int((logits.argmax(-1) == text[1:]).sum())
        lengths.append(len(text))
    every = torch.cat(losses)
    every.mean().backward()
    metrics, moved = step_once(work, micro_batch)
    assert metrics["loss"] == pytest.approx(every.mean().item(), abs=1e-6)
    assert metrics["accuracy"] == pytest.approx(right / len(every))
    assert metrics["letters"] == pytest.approx(sum(lengths) / len(lengths))
    for parameter, change in zip(model.parameters(), moved, strict=True):
        assert torch.allclose(change, parameter.grad, atol=1e-6)


def test_a_batch_in_which_nothing_counts_is_an_error_of_the_data():
    work = counted_lm.CountedLm(counted_lm.Params())
    work.source.read = lambda ids: {"text": torch.ones(len(ids), 4).long(), "length": torch.ones(len(ids))}
    with pytest.raises(DataError, match="step 1: nothing in the global batch counts toward the loss"):
        step_once(work, None)


def batches(step, size):
    return [[step * 10 + part] * (size or 1) for part in range(3)]


@pytest.mark.parametrize(
    ("threads", "quota", "local", "readers"),
    [
        ("4", "max 100000", "8", 4),  # the launcher knows the cores of a rank
        ("64", "max 100000", "1", 8),
        ("1", "max 100000", "1", 6),  # torchrun's default says nothing about cores
        ("", "max 100000", "2", 3),
        ("1", "250000 100000", "1", 3),  # a container of 2.5 cores on this machine
        ("1", None, "16", 1),
    ],
)
def test_a_rank_has_a_reading_process_for_each_core_that_it_may_use(
    monkeypatch, tmp_path, *, threads, quota, local, readers
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    if quota is not None:
        (tmp_path / "cpu.max").write_text(quota + "\n")
    assert share_of_cores(tmp_path / "cpu.max") == readers


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_reads_in_the_order_of_the_steps_and_begins_again_after_a_jump(workers, monkeypatch, tmp_path):
    deep = tmp_path / ("deep" * 20)  # sockets of the reading processes have no path there, of at most 107 bytes
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    monkeypatch.delitem(process.current_process()._config, "tempdir", raising=False)

    class Echo(counted_lm.Documents):
        def read(self, ids):
            return torch.tensor(ids)

    loader = Loader(Echo(99), batches, 9, CPU, workers=workers, wait=DataWait())
    with loader:
        for step in (3, 4, 7, 8, 2):
            assert [data.tolist() for data in loader.step(step, 2)] == batches(step, 2)


@pytest.mark.parametrize("workers", [0, 1])
def test_data_that_cannot_be_read_end_the_job_with_the_error_of_their_source(workers):
    class Broken(counted_lm.Documents):
        def read(self, ids):
            if ids[0] == 11:
                raise DataError("rows.jsonl, line 12: field 'text' is missing")
            return torch.tensor(ids) if ids[0] != 21 else ids[99]

    with Loader(Broken(99), batches, 9, CPU, workers=workers, wait=DataWait()) as loader:
        with pytest.raises(DataError, match=r"^rows\.jsonl, line 12: field 'text' is missing$"):
            list(loader.step(1, None))
        with pytest.raises(DataError, match=r"^samples \[21\] cannot be read: IndexError"):
            list(loader.step(2, None))


def test_what_cannot_be_sent_from_a_reading_process_ends_the_job_with_an_error_and_not_with_a_wait_for_ever():
    class Lazy(counted_lm.Documents):
        def read(self, ids):
            return {"text": torch.tensor(ids), "more": (each for each in ids)}

    class Exhausted(counted_lm.Documents):
        def read(self, ids):
            tempfile.tempdir = "/proc/absent"  # where the process would make the socket of its tensors
            process.current_process()._config.pop("tempdir", None)
            return torch.tensor(ids)

    lazy, exhausted = (Loader(source(99), batches, 9, CPU, workers=1, wait=DataWait()) for source in (Lazy, Exhausted))
    with lazy, pytest.raises(DataError, match="cannot be sent to the trainer: TypeError: cannot pickle 'generator'"):
        list(lazy.step(1, None))
    with exhausted, pytest.raises(FileNotFoundError, match="/proc/absent"):
        list(exhausted.step(1, None))
    assert not active_children(), "processes that end by no signal would keep this one from ending"


def given(steps, *, rollout=1, **sections):
    params = {"steps": steps, "rollout": rollout}
    return config(**sections) | {"trainer": {"name": "counted_lm:CountedLm", "params": params}}


@pytest.mark.e2e
def test_strategy_world_size_and_accumulation_do_not_change_a_counted_step(yard, calm):
    calm.train(given(9))
    yard.train(given(3, parallelism={"microBatchSize": 2}))
    yard.train(given(6), world=3)
    yard.train(given(9, parallelism={"strategy": "fsdp", "microBatchSize": 2}), world=2)
    assert yard.losses() == pytest.approx(calm.losses(), abs=1e-5)
    assert yard.losses().keys() == set(range(1, 10))


@pytest.mark.e2e
def test_a_run_is_saved_between_rollouts_only_and_resumes_with_the_same_bits(yard, calm):
    saves = {"checkpoint": {"interval": {"steps": 1}, "keepLast": 9}}
    calm.train(given(9, rollout=4, **saves))
    assert calm.committed() == [4, 8, 9]
    (yard.root / "run-1").mkdir()
    (yard.root / "run-1" / "preempt").touch()
    gang = yard.start(given(9, rollout=4, **saves))
    assert gang.wait() == [75], gang.output()
    assert yard.committed() == [4]
    yard.train(given(9, rollout=4, **saves))
    assert yard.losses() == calm.losses()
    assert yard.weights() == calm.weights()
    assert yard.metrics()[-1]["rolloutStep"] == 8.0
    gang = calm.start(given(13, rollout=4, **saves))
    assert gang.wait() == [65]
    assert "step 9 is in the middle of a rollout of 4 steps" in calm.failure()["message"]
