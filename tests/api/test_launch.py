"""What is started in a pod, and the config of a built-in trainer."""

import pytest

from torchyard.api.launch import agent_env, is_warm, own_env, trainer_config, worker_command
from torchyard.api.resource import job_document, read_job, read_status, resolved, status_document


def job(**spec):
    return read_job(
        {
            "apiVersion": "torchyard.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "x", "uid": "u1"},
            "spec": spec,
        }
    )


def test_a_trainer_runs_as_a_module_of_torchrun():
    assert worker_command(job(trainer={"name": "cvrp"}).spec, None) == ["torchrun", "-m", "torchyard_trainers"]


def test_a_script_runs_with_its_arguments():
    spec = job(script="print()", args=["--lr", "1"]).spec
    assert worker_command(spec, "/run/script.py") == ["torchrun", "--", "/run/script.py", "--lr", "1"]
    with pytest.raises(ValueError, match=r"spec\.script"):
        worker_command(spec, None)


@pytest.mark.parametrize(
    ("spec", "warm"),
    [
        ({"trainer": {"name": "cvrp"}}, True),
        ({"script": "print()"}, True),
        ({"command": ["/usr/bin/torchrun", "train.py"]}, True),
        ({"command": ["python3", "-u", "-m", "torch.distributed.run", "train.py"]}, True),
        ({"command": ["python3", "train.py"]}, False),
        ({"command": ["./train.sh"]}, False),
        ({"command": ["torchrun", "train.py"], "launcher": {"warmStart": False}}, False),
        ({"command": ["torchrun", "train.py"], "launcher": {"kind": "none"}}, False),
    ],
)
def test_torchruns_workers_are_warm_unless_that_is_switched_off(spec, warm):
    assert is_warm(job(**spec).spec) == warm


def test_a_command_runs_as_given():
    spec = job(command=["torchrun", "train.py"], args=["a b"]).spec
    assert worker_command(spec, None) == ["torchrun", "train.py", "a b"]


@pytest.mark.parametrize(
    ("spec", "whole"),
    [
        ({"parallelism": {"batchPerProcess": 8}}, 8),
        ({"parallelism": {"batchPerProcess": 8}, "nodes": 3, "procsPerNode": 2}, 48),
        ({"parallelism": {"batchPerProcess": 8}, "nodes": 2, "gpusPerNode": 4}, 64),
        ({"parallelism": {"batchPerProcess": 8, "globalBatchSize": 16}, "procsPerNode": 2}, 16),
        ({"parallelism": {"globalBatchSize": 16}, "procsPerNode": 2}, 16),
    ],
)
def test_a_batch_for_each_process_is_a_global_one_to_trainers(spec, whole):
    found = trainer_config(job(trainer={"name": "vla"}, **spec), runs)["parallelism"]
    assert found["globalBatchSize"] == whole
    assert "batchPerProcess" not in found


@pytest.mark.parametrize("chosen", [{"deterministic": False, "dynamicShapes": True}, {"matmulPrecision": "high"}])
def test_what_an_older_image_does_not_know_is_sent_only_where_it_is_chosen(chosen):
    later = {"deterministic", "dynamicShapes", "matmulPrecision"}
    found = trainer_config(job(trainer={"name": "lm"}, parallelism=chosen), runs)["parallelism"]
    assert {name: value for name, value in found.items() if name in later} == chosen


def test_the_config_of_a_trainer_holds_defaults_and_every_section_of_the_protocol():
    config = trainer_config(
        job(trainer={"name": "cvrp", "params": {"steps": 3}}, checkpoint={"interval": {"steps": 5}}), runs
    )
    assert config == {
        "schema": 1,
        "job": {"name": "x", "namespace": "default", "uid": "u1"},
        "trainer": {"name": "cvrp", "mode": "train", "params": {"steps": 3}},
        "device": "auto",
        "parallelism": {
            "strategy": "auto",
            "precision": "auto",
            "globalBatchSize": None,
            "microBatchSize": "auto",
            "microBatchTokens": None,
            "activationCheckpointing": "none",
            "cpuOffload": False,
            "memoryFraction": 1.0,
            "compile": False,
            "fsdp": {"sharding": "full", "reshardAfterForward": True},
        },
        "checkpoint": {
            "interval": {"steps": 5},
            "keepLast": 3,
            "keepBest": 0,
            "resumeFrom": None,
            "initFrom": None,
            "onPreempt": True,
        },
        "health": {"nonFinite": "fail"},
        "logging": {"tensorboard": True, "wandb": False, "mlflow": False},
        "evaluation": None,
        "export": None,
        "preflight": False,
    }
    assert trainer_config(job(trainer={"name": "cvrp"}), runs)["checkpoint"]["interval"] is None
    watched = job(trainer={"name": "cvrp"}, health={"stall": "1h30m"})
    assert trainer_config(watched, runs)["health"] == {"nonFinite": "fail", "stallSeconds": 5400}


def runs(name):
    return f"/runs/{name}/checkpoints"


@pytest.mark.parametrize(
    ("wanted", "place"),
    [
        ("cartpole", "/runs/cartpole/checkpoints"),
        ("cartpole/best", "/runs/cartpole/checkpoints/best"),
        ("/data/a/step-00001200", "/data/a/step-00001200"),
        (None, None),
    ],
)
def test_another_jobs_checkpoint_is_a_path_for_its_workers(wanted, place):
    for field in ("resumeFrom", "initFrom"):
        document = job(trainer={"name": "cvrp"}, checkpoint={field: wanted})
        assert trainer_config(document, runs)["checkpoint"][field] == place


def test_only_of_programs_without_a_watchdog_of_their_own_the_agent_watches_the_steps():
    assert agent_env(job(script="1", health={"stall": "1h30m"}).spec)["TORCHYARD_STALL_SECONDS"] == "5400"
    for spec in ({"script": "1"}, {"trainer": {"name": "cvrp"}, "health": {"stall": "1h30m"}}):
        assert "TORCHYARD_STALL_SECONDS" not in agent_env(job(**spec).spec)


def test_the_environment_of_the_agent_follows_the_spec():
    plain = agent_env(job(script="1").spec)
    assert plain == {
        "TORCHYARD_PROCS": "auto",
        "TORCHYARD_GRACE_SECONDS": "60",
        "TORCHYARD_WARM_START": "1",
        "TORCHYARD_CURVES": "jsonl,tensorboard",
    }
    full = agent_env(
        job(
            script="1",
            procsPerNode=2,
            gracePeriod="1m30s",
            launcher={"warmStart": False},
            preload=["numpy", "a.b"],
            metrics={
                "patterns": ["loss=(?P<loss>.*)"],
                "totalSteps": 500,
                "milestones": {"metric": "loss", "percents": [10, 30]},
            },
            logging={"tensorboard": False},
        ).spec
    )
    assert full == {
        "TORCHYARD_PROCS": "2",
        "TORCHYARD_GRACE_SECONDS": "90",
        "TORCHYARD_WARM_START": "0",
        "TORCHYARD_PRELOAD": "numpy,a.b",
        "TORCHYARD_CURVES": "jsonl",
        "TORCHYARD_METRIC_PATTERNS": '["loss=(?P<loss>.*)"]',
        "TORCHYARD_TOTAL_STEPS": "500",
        "TORCHYARD_MILESTONES": '{"metric": "loss", "percents": [10, 30]}',
    }


def test_a_built_in_workload_is_kept_warm_with_what_it_imports():
    env = agent_env(job(trainer={"name": "cvrp"}, preload=["numpy"]).spec)
    assert env["TORCHYARD_PRELOAD"] == "torchyard_trainers.preload,numpy"


def test_only_a_built_in_workload_that_trains_must_leave_its_completion_marker():
    assert agent_env(job(trainer={"name": "cvrp"}).spec)["TORCHYARD_COMPLETION_FILE"] == "DONE"
    assert "TORCHYARD_COMPLETION_FILE" not in agent_env(job(trainer={"name": "cvrp", "mode": "eval"}).spec)
    assert "TORCHYARD_COMPLETION_FILE" not in agent_env(job(command=["torchrun", "train.py"]).spec)


def test_a_job_survives_writing_and_reading():
    before = job(trainer={"name": "cvrp", "params": {"steps": None}}, nodes=2, parallelism={"microBatchSize": 4})
    assert read_job(job_document(before)) == before
    assert job_document(before, with_status=False)["spec"] == {
        "trainer": {"name": "cvrp", "params": {"steps": None}},
        "nodes": 2,
        "parallelism": {"microBatchSize": 4},
    }


def test_null_and_absent_mean_the_same():
    assert job(script="1", nodes=None, elastic=None, parallelism={"strategy": None}) == job(script="1")


def test_what_cannot_be_decoded_is_named():
    with pytest.raises(ValueError, match="nodes"):
        job(script="1", nodes="two")


def test_a_status_of_a_newer_version_is_read():
    assert read_status({"state": "Running", "fromTheFuture": 1}).state == "Running"
    assert status_document(read_status({"state": "Running"})) == {"state": "Running"} | status_document(read_status({}))


def test_resolved_fills_every_field():
    assert set(resolved(job(script="1").spec)) == set(job(script="1").spec.__struct_encode_fields__)


def test_agent_and_workers_hear_that_steps_are_not_to_be_counted():
    quiet = job(script="1", env=[{"name": "A", "value": "1"}, {"name": "TORCHYARD_HOOKS", "value": "0"}]).spec
    assert own_env(quiet) == {"A": "1", "TORCHYARD_HOOKS": "0"}
    assert agent_env(quiet)["TORCHYARD_HOOKS"] == "0"
    assert "A" not in agent_env(quiet)
    assert "TORCHYARD_HOOKS" not in agent_env(job(script="1").spec)
