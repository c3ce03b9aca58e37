"""The examples are valid, and each runs to its end on this machine with no change."""

import json
import shutil
import subprocess
import sys

import pytest
import yaml
from tests.cli.conftest import EXAMPLES, CommandLine

from torchyard.api.validation.validate import validate_file
from torchyard.local.shared_templates import OWNER

# Sweeps have tests of their own (tests/sweep).
JOBS = sorted(path for path in EXAMPLES.glob("*.yaml") if "kind: TrainingJob" in path.read_text())
# Most of them want more GPUs than a test has.
SCENARIOS = sorted((EXAMPLES / "lm").glob("*.yaml"))
# Workloads learn for a minute; here a few steps and episodes of them are enough.
SHORT = {  # the first part of a name that there is counts
    "cvrp": {"steps": 10, "evalInstances": 32},
    "own-problem": {"steps": 10, "evalInstances": 32},
    "own-environment": {"environmentSteps": 4096, "evalEpisodes": 4},
    "vecrl": {"environmentSteps": 4096, "evalEpisodes": 4},
    "vlm": {"environmentSteps": 1024, "evalEpisodes": 4},
    "vla": {"steps": 5, "evalEpisodes": 4},
    "own-": {"steps": 5, "evalEpisodes": 4, "evalSamples": 8},
    "lm": {"steps": 5, "evalSamples": 8},
    "chars": {"steps": 10},
}
FEWER_STEPS = {"bring-your-own": 200, "hf-trainer": 60}  # of programs with this option
AS_USERS_START_THEM = ["bring-your-own"]  # the others are forked from one that has imported torch already


@pytest.mark.parametrize("file", [*JOBS, *SCENARIOS], ids=lambda file: file.stem)
def test_an_example_is_valid_and_named_like_its_file(file: object) -> None:
    result = validate_file(file, ())  # type: ignore[arg-type]
    assert result.problems == ()
    assert [job.metadata.name for job in result.jobs] == [file.stem]  # type: ignore[attr-defined]


def test_the_smallest_example_stays_small() -> None:
    assert len(yaml.safe_dump(yaml.safe_load((EXAMPLES / "cvrp.yaml").read_text())["spec"]).splitlines()) <= 6


@pytest.mark.parametrize("module", ["own_problem.py", "own_environment.py"])
def test_what_you_bring_takes_less_than_forty_lines(module: str) -> None:
    assert len((EXAMPLES / module).read_text().splitlines()) < 40


@pytest.mark.parametrize("script", ["train.py", "hf_train.py"])
def test_a_script_of_your_own_knows_nothing_of_us(script: str) -> None:
    assert "torchyard" not in (EXAMPLES / script).read_text().lower()


@pytest.mark.parametrize("file", sorted(EXAMPLES.rglob("own_*.py")), ids=lambda file: file.stem)
def test_an_example_of_your_own_is_short(file: object) -> None:
    assert len(file.read_text().splitlines()) < 40  # type: ignore[attr-defined]


@pytest.mark.e2e
@pytest.mark.parametrize("file", JOBS, ids=lambda file: file.stem)
def test_an_example_runs_to_its_end(torchyard: CommandLine, file: object) -> None:
    name = file.stem  # type: ignore[attr-defined]
    if name in AS_USERS_START_THEM:
        del torchyard.env[OWNER]
    shutil.copytree(EXAMPLES, torchyard.folder / "examples")
    if name == "own-robot":
        command = [sys.executable, "own_dataset.py", "recordings"]
        subprocess.run(command, cwd=torchyard.folder / "examples", check=True)
    fewer = next((params for part, params in SHORT.items() if part in name), {})
    short = [word for field, value in fewer.items() for word in ("--set", f"spec.trainer.params.{field}={value}")]
    if name in FEWER_STEPS:
        short += ["--set", f'spec.args=["--steps", "{FEWER_STEPS[name]}"]']
    done = torchyard("run", f"examples/{name}.yaml", "-o", "json", *short)
    assert done.returncode == 0, done.stderr
    job = json.loads(done.stdout)
    status = job["status"]
    assert status["state"] == "Succeeded"
    assert status["progress"]["step"] > 0
    assert status["throughput"]["stepsPerSecond"] > 0
    assert status.get("restarts", {"total": 0})["total"] == 0
    assert f"{name} succeeded" in done.stderr
    assert json.loads(torchyard("status", name, "-o", "json").stdout) == job


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["conversations", "preferences", "objective", "rewards", "tools"])
def test_a_scenario_with_files_runs_in_small(torchyard: CommandLine, name: str) -> None:
    shutil.copytree(EXAMPLES, torchyard.folder / "examples")
    model = ["preset=tiny", "model=tiny-qwen3", "pretrained=null", "steps=4", "warmupSteps=0", "maxNewTokens=8"]
    model += ["evalSamples=4", "evalCompletions=2"]
    here = ["gpusPerNode=0", "device=cpu", "parallelism.precision=fp32"]
    changes = [f"spec.{each}" for each in (*(f"trainer.params.{each}" for each in model), *here)]
    done = torchyard("run", f"examples/lm/{name}.yaml", "-o", "json", *(w for c in changes for w in ("--set", c)))
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)["status"]
    assert (status["state"], status["progress"]["step"]) == ("Succeeded", 4)
    wanted = {"conversations": "evalLoss", "rewards": "evalReward", "tools": "toolCalls"}.get(
        name, "preferenceAccuracy"
    )
    assert wanted in status["metrics"]


@pytest.mark.e2e
def test_the_scenario_with_images_runs_in_small(torchyard: CommandLine) -> None:
    from tests.support.trainers.families import save_vision_family

    shutil.copytree(EXAMPLES, torchyard.folder / "examples")
    folder = save_vision_family("tiny-qwen2-vl", torchyard.folder / "model")
    params = [f"pretrained={folder}", "epochs=null", "steps=2", "batch=2", "warmupSteps=0", "evalSamples=1"]
    here = ["gpusPerNode=0", "device=cpu", "parallelism.precision=fp32"]
    changes = [f"spec.{each}" for each in (*(f"trainer.params.{each}" for each in params), *here)]
    words = [word for each in changes for word in ("--set", each)]
    done = torchyard("run", "examples/lm/images.yaml", "-o", "json", *words)
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)["status"]
    assert (status["state"], status["progress"]["step"]) == ("Succeeded", 2)


# Scenario -> a GPU of its kind, and what makes it small: nodes, processes and strategy stay those of the file.
ON_MACHINES = {
    "one-gpu": ("H100-80GB", ["procsPerNode=1"]),
    "ddp-one-node": ("H100-80GB", ["procsPerNode=2"]),
    "fsdp-70b": ("H100-80GB", ["nodes=2", "procsPerNode=1", "checkpoint.volume=null"]),
    "two-nodes": ("H100-80GB", ["procsPerNode=2", "checkpoint.volume=null"]),
    "some-gpus": ("RTX4090-24GB", ["procsPerNode=2", "gpu=null"]),
    "cpu": ("", ["procsPerNode=1"]),
}


def test_every_scenario_of_machines_is_run() -> None:
    assert {file.stem for file in SCENARIOS} == {
        *ON_MACHINES,
        "conversations",
        "preferences",
        "objective",
        "rewards",
        "tools",
        "images",
    }


@pytest.mark.e2e
@pytest.mark.parametrize("name", ON_MACHINES)
def test_a_scenario_runs_in_small(torchyard: CommandLine, name: str) -> None:
    shutil.copytree(EXAMPLES, torchyard.folder / "examples")
    model = ["preset=tiny", "model=tiny-qwen3", "batch=16", "steps=2", "warmupSteps=0", "evalSamples=4"]
    here = ["gpusPerNode=0", "device=cpu", "parallelism.precision=fp32", *ON_MACHINES[name][1]]
    changes = [f"spec.{each}" for each in (*(f"trainer.params.{each}" for each in model), *here)]
    words = [word for each in changes for word in ("--set", each)]
    done = torchyard("run", f"examples/lm/{name}.yaml", "-o", "json", *words)
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)["status"]
    assert (status["state"], status["progress"]["step"]) == ("Succeeded", 2)
    assert status["throughput"]["tokensPerSecond"] > 0
