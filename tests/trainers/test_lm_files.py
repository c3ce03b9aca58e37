"""`lm` on files: every method, distribution and packing is the same run; evaluation of folders; bad data."""

import json
from pathlib import Path

import pytest
from tests.support.trainers.gangs import Yard

pytestmark = pytest.mark.e2e

COUNT = 37  # no multiple of a batch, of two processes, or of what is held out
METHODS = {
    "sft": {},
    "dpo": {"method": "dpo", "sftSteps": 2},
    "grpo": {"method": "grpo", "group": 5, "sftSteps": 2, "minibatches": 2, "reward": "shaped", "maxNewTokens": 6},
}
LEARNED = {"loss", "gradNorm", "tokens", "evalLoss", "exactMatch", "preferenceAccuracy", "reward", "rewardMargin"}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Records of every kind, of different lengths; each can be used by all methods."""
    folder = tmp_path_factory.mktemp("records")
    rows = []
    for number in range(COUNT):
        asked, right, wrong = f"{number}+{number}=", str(2 * number), str(3 * number + 1)
        chat = [{"role": "user", "content": asked}, {"role": "assistant", "content": right}]
        pair = {"prompt": asked, "chosen": right, "rejected": wrong}
        rows.append({"messages": chat, **pair} if number % 3 == 0 else {"completion": right, **pair})
    half = COUNT // 2
    for name, part in (("one", rows[:half]), ("two", rows[half:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    return folder


def settings(records: Path, steps=6, *, params=None, **sections):
    small = {
        "data": [str(records / "one.jsonl"), str(records / "t*o.jsonl")],
        "dataWeights": [3, 1],
        "holdOut": 0.2,
        "steps": steps,
        "batch": 10,
        "lr": 3e-3,
        "lrFinal": 3e-3,
        "warmupSteps": 0,
        "evalBatch": 3,
        "evalEvery": 3,
        "logEvery": 1,
    }
    trainer = {"name": "lm", "params": small | (params or {})}
    return {"trainer": trainer, "device": "cpu", "logging": {"tensorboard": False}, **sections}


@pytest.fixture(scope="module")
def alone(fork_server, tmp_path_factory, records):
    """What one process measured that was never stopped."""
    measured = {}
    for method, params in METHODS.items():
        yard = Yard(fork_server, tmp_path_factory.mktemp(method))
        yard.train(settings(records, params=params))
        measured[method] = yard.metrics()
    return measured


@pytest.mark.parametrize(
    ("method", "parallelism"),
    [
        ("sft", {"strategy": "ddp", "microBatchTokens": 40}),
        ("sft", {"strategy": "fsdp", "microBatchSize": 2}),
        ("dpo", {"strategy": "fsdp", "microBatchSize": 3}),
        ("grpo", {"strategy": "ddp"}),
    ],
)
def test_two_processes_that_stop_and_resume_are_the_same_run(yard, records, alone, method, parallelism):
    yard.train(settings(records, 4, params=METHODS[method], parallelism=parallelism), world=2)
    yard.train(settings(records, 6, params=METHODS[method], parallelism=parallelism), world=2)
    yard.assert_learned(alone[method], LEARNED, rel=1e-4)


def test_other_data_is_not_resumed(yard, records):
    yard.train(settings(records, 2))
    other = settings(records, 4, params={"data": [str(records / "one.jsonl")], "dataWeights": None})
    gang = yard.start(other)
    assert gang.wait() == [65]
    assert "dataset" in gang.output()


def test_a_bad_record_ends_the_job_with_file_line_and_field_or_is_skipped_and_counted(yard, fork_server, tmp_path):
    rows = [{"prompt": "1", "completion": "2"}] * 30
    rows[20] = {"prompt": "1", "completion": 2}
    (tmp_path / "bad.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "good.jsonl").write_text(json.dumps(rows[0]) + "\n")
    files = {"data": [str(tmp_path / "bad.jsonl")], "validation": [str(tmp_path / "good.jsonl")], "dataWeights": None}
    gang = yard.start(settings(tmp_path, 6, params={**files, "holdOut": None}))
    assert gang.wait() == [65]
    assert "bad.jsonl, line 21: field 'completion' is int, expected str" in gang.output()
    (tmp_path / "again").mkdir()
    again = Yard(fork_server, tmp_path / "again")
    again.train(settings(tmp_path, 6, params={**files, "holdOut": None, "badRecords": "skip"}))
    assert json.loads((again.checkpoints / "DONE").read_text())["metrics"]["skippedRecords"] == 1


def test_validation_alone_only_evaluates(yard, records):
    params = {"data": None, "dataWeights": None, "holdOut": None, "validation": [str(records / "one.jsonl")]}
    gang = yard.start(settings(records, params=params))
    assert gang.wait() == [64]
    assert "trainer.params.data: is not set, and validation is for mode eval only" in gang.output()
