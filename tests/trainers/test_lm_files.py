"""`lm` on files: every method, distribution and packing is the same run; evaluation of folders; bad data."""

import json
from pathlib import Path

import pytest
from tests.support.trainers.gangs import Yard

pytestmark = pytest.mark.e2e

COUNT = 37  # no multiple of a batch, of two processes, or of what is held out
SAMPLED = {"sftSteps": 2, "minibatches": 2, "reward": "shaped", "maxNewTokens": 6}
METHODS = {
    "sft": {"ema": 0.6},
    "dpo": {"method": "dpo", "sftSteps": 2},
    "grpo": {"method": "grpo", "group": 5, **SAMPLED},
    "ppo": {"method": "ppo", "klCoefficient": 0.1, **SAMPLED},
}
LEARNED = {
    *("loss", "gradNorm", "tokens", "evalLoss", "exactMatch", "preferenceAccuracy", "reward", "rewardMargin"),
    *("kl", "valueLoss"),
}


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
        "maxNewTokens": 6,
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
    ("method", "distributed"),
    [
        ("sft", ((1, 1), {"microBatchTokens": 40})),
        ("sft", ((2, 1), {"strategy": "ddp", "microBatchTokens": 40})),
        ("sft", ((3, 1), {"strategy": "fsdp", "microBatchTokens": 26})),
        ("sft", ((4, 2), {"strategy": "hsdp", "microBatchTokens": 200})),
        ("sft", ((2, 1), {"strategy": "fsdp", "microBatchSize": 2})),
        ("dpo", ((2, 1), {"strategy": "fsdp", "microBatchSize": 3})),
        ("grpo", ((2, 1), {"strategy": "ddp"})),
        ("ppo", ((2, 1), {"strategy": "fsdp", "microBatchSize": 2})),
    ],
)
def test_packed_or_padded_processes_are_the_same_run_also_after_a_stop(yard, records, alone, method, distributed):
    ((world, nodes), parallelism), params = distributed, METHODS[method]
    if world == 2:
        yard.train(settings(records, 4, params=params, parallelism=parallelism), world)
    yard.train(settings(records, 6, params=params, parallelism=parallelism), world, nodes=nodes)
    yard.assert_learned(alone[method], LEARNED, rel=1e-4)
    losses = {line["step"]: line["loss"] for line in alone[method]}
    assert yard.losses() == pytest.approx(losses, abs=1e-5, rel=1e-5)


def test_the_moving_average_is_what_is_evaluated(yard, records, alone):
    yard.train(settings(records, 3, params={"ema": None}))
    plain, averaged = yard.metrics(), alone["sft"][:3]
    assert [line["loss"] for line in plain] == [line["loss"] for line in averaged]
    assert plain[-1]["evalLoss"] != pytest.approx(averaged[-1]["evalLoss"], rel=1e-3)


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
    assert "bad.jsonl, line 21: field 'completion' is a number, expected text" in gang.output()
    (tmp_path / "again").mkdir()
    again = Yard(fork_server, tmp_path / "again")
    again.train(settings(tmp_path, 6, params={**files, "holdOut": None, "badRecords": "skip"}))
    assert json.loads((again.checkpoints / "DONE").read_text())["metrics"]["skippedRecords"] == 1


def test_validation_alone_only_evaluates(yard, records):
    params = {"data": None, "dataWeights": None, "holdOut": None, "validation": [str(records / "one.jsonl")]}
    gang = yard.start(settings(records, params=params))
    assert gang.wait() == [64]
    assert "trainer.params.data: is not set, and validation is for mode eval only" in gang.output()
