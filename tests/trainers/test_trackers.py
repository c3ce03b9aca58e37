"""Trackers: offline modes of the real libraries; trouble with them never stops training."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext

import pytest
from tests.support.trainers.gangs import until
from tests.support.waiting import DEADLINE

from torchyard_trainers.core.config import Config, Job, Logging, Trainer
from torchyard_trainers.core.exits import ConfigError, PreemptedError
from torchyard_trainers.core.metrics import trackers
from torchyard_trainers.core.metrics.curves import open_curves
from torchyard_trainers.core.metrics.trackers import JOB_TAG, Trackers, check_trackers
from torchyard_trainers.core.report import Reporter


def job(**logging):
    return Config(
        trainer=Trainer(name="cvrp", params={"steps": 5}),
        job=Job(name="cvrp", uid="7f3c1e1a"),
        logging=Logging(tensorboard=False, **logging),
    )


def reporter():
    return Reporter(None, rank=0, local_rank=0, round_number=1)


def train(config, folder, steps, *, fails=False):
    ends = pytest.raises(PreemptedError) if fails else nullcontext()
    with ends, open_curves(config, folder, reporter(), is_main=True) as log:
        for step in steps:
            log.add(step, 9, {"loss": 1.0 / step})
        log.show(steps[-1], [{"prompt": "a|b", "reward": 0.5}])
        if fails:
            raise PreemptedError("asked to stop")


def test_mlflow_keeps_one_run_a_job_over_its_rounds(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="mlflow is not installed: pip install torchyard[mlflow]")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    config = job(mlflow=True)
    train(config, tmp_path, [1, 2, 3], fails=True)
    train(config, tmp_path, [3, 4])
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("torchyard").experiment_id])
    assert (run.info.run_name, run.info.status, run.data.tags[JOB_TAG]) == ("cvrp", "FINISHED", "7f3c1e1a")
    assert run.data.params == {"steps": "5", "trainer": "cvrp"}
    history = [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, "loss")]
    (path,) = [each.path for each in client.list_artifacts(run.info.run_id, "samples") if "00000004" in each.path]
    table = json.loads(next((tmp_path / "mlruns").rglob(path.rpartition("/")[2])).read_text())
    assert table == {"prompt": ["a|b"], "reward": [0.5]}
    assert sorted(set(history)) == [(step, pytest.approx(1 / step)) for step in (1, 2, 3, 4)]


OFFLINE = """
import json, sys
from pathlib import Path
from tests.trainers.test_trackers import job, train
train(job(wandb=True), Path(sys.argv[1]), [1, 2, 3])
"""


def test_wandb_writes_its_run_without_a_network(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed: pip install torchyard[wandb]")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    # A process of its own: the service that wandb starts lives as long as the process.
    subprocess.run([sys.executable, "-c", OFFLINE, tmp_path], check=True, timeout=DEADLINE)
    (run,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    assert run.name == "run-7f3c1e1a.wandb"
    # Its records are protocol buffers, numbers in them JSON texts.
    written = run.read_bytes()
    assert b"loss" in written
    assert list((tmp_path / "wandb").rglob("samples*.table.json"))
    assert all(json.dumps(1 / step).encode() in written for step in (2, 3))


class Broken:
    """A tracker whose network is gone."""

    def __init__(self, *_):
        pass

    def add(self, step, values):
        raise ConnectionError(f"no route at step {step}")

    def close(self, *, failed):
        raise AssertionError("it was left out")


def test_a_tracker_that_fails_is_left_out_with_a_warning_and_the_curves_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(trackers, "Mlflow", Broken)
    told = reporter()
    with open_curves(job(mlflow=True), tmp_path, told, is_main=True) as log:
        for step in (1, 2, 3):
            log.add(step, 9, {"loss": 1.0})
    assert told.facts["warnings"] == [
        "logging.mlflow: no route at step 1; it is disabled; metrics.jsonl has all curves"
    ]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


def test_a_server_that_goes_away_is_reported_while_it_trains_and_not_waited_for_at_the_end(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="mlflow is not installed: pip install torchyard[mlflow]")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    warnings = []
    found = Trackers(job(mlflow=True), tmp_path, warnings.append)
    found.add(1, {"loss": 1.0})
    (tmp_path / "mlruns").rename(tmp_path / "gone")  # in one step: MLflow may be writing to it

    def told():
        found.add(2, {"loss": 1.0})
        return warnings

    assert until(told)[0].startswith("logging.mlflow: ")
    found.close(failed=False)
    assert len(warnings) == 1


def test_waiting_for_a_server_is_limited_unless_its_own_environment_says_how_long(tmp_path, monkeypatch):
    monkeypatch.setattr(trackers, "Wandb", Broken)
    for name in trackers.PATIENCE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_FINISH_TIMEOUT", "3600")
    Trackers(job(wandb=True), tmp_path, print)
    assert {name: os.environ[name] for name in trackers.PATIENCE} == trackers.PATIENCE | {
        "WANDB_FINISH_TIMEOUT": "3600"
    }


def test_a_tracker_that_cannot_start_is_reported(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("api key not configured")

    monkeypatch.setattr(trackers, "Wandb", refuse)
    warnings = []
    Trackers(job(wandb=True), tmp_path, warnings.append).add(1, {"loss": 1.0})
    assert warnings == ["logging.wandb: api key not configured; it is disabled; metrics.jsonl has all curves"]


def test_a_missing_package_is_a_config_error_before_anything_is_trained(monkeypatch):
    monkeypatch.setattr(trackers, "find_spec", lambda name: None if name == "wandb" else object())
    check_trackers(job(mlflow=True))
    with pytest.raises(ConfigError, match=r"logging.wandb: true needs wandb.*torchyard\[wandb\]"):
        check_trackers(job(wandb=True))


def test_a_table_of_samples_is_in_the_event_files(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with open_curves(Config(trainer=Trainer(name="cvrp")), tmp_path, reporter(), is_main=True) as log:
        log.show(3, [{"prompt": "a|b", "reward": 0.5}])
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    (event,) = found.Tensors("samples")
    assert event.step == 3
    assert event.tensor_proto.string_val[0].decode() == "| prompt | reward |\n| -- | -- |\n| a\\|b | 0.5 |\n"
