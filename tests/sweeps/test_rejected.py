"""Values that only together make no job: the sweep is valid, such a trial has failed, and the search goes on."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml
from msgspec.structs import replace

from torchyard.api.spec import TrainingJobSpec
from torchyard.api.status import State
from torchyard.api.validation.parse import broken_rules
from torchyard.api.values import decode
from torchyard.client.explanation import explanation
from torchyard.local.sweeps import create_sweep, create_trial
from torchyard.sweeps.codec import read_sweep
from torchyard.sweeps.decide import Create, Finish, decide
from torchyard.sweeps.resource import TrialRecord
from torchyard.sweeps.results import csv_of, results_of
from torchyard.sweeps.space import grid_point
from torchyard.sweeps.trials import trial_of, without_program
from torchyard.sweeps.validate import validate_sweep_bytes


def document(parameters, **spec):
    return {
        "apiVersion": "torchyard.dev/v1alpha1",
        "kind": "TrainingSweep",
        "metadata": {"name": "joint"},
        "spec": {
            "objective": {"metric": "evalReturn", "goal": "maximize"},
            "algorithm": {"name": "grid"},
            "parameters": parameters,
            "jobTemplate": {"spec": {"device": "cpu", "trainer": {"name": "vecrl", "params": {"preset": "tiny"}}}},
            **spec,
        },
    }


JOINT = [{"path": "nodes", "choice": [1, 2]}, {"path": "parallelism.strategy", "choice": ["single", "ddp"]}]
SAID = "spec.parallelism.strategy: strategy single requires exactly one process"


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (JOINT, ""),
        (JOINT[::-1], ""),
        # No GPU can be used whatever else is chosen.
        ([{"path": "gpusPerNode", "choice": [0, 1]}, *JOINT], "the largest or last value of gpusPerNode"),
    ],
)
def test_a_sweep_is_rejected_for_a_value_that_no_other_makes_valid(parameters, said):
    problems = validate_sweep_bytes(json.dumps(document(parameters)).encode(), "sweep.yaml").problems
    assert [said in str(each) for each in problems] == ([True] if said else [])


@pytest.mark.parametrize("most", [0, 1])
def test_such_a_trial_has_failed_on_this_machine_and_counts(tmp_path, monkeypatch, most):
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path))
    sweep = create_sweep(read_sweep(document(JOINT, maxFailed=most)), Path.cwd())
    jobs = {}
    for action in iter(lambda: decide(sweep.spec, [trial_of(job) for job in jobs.values()])[0], None):
        if isinstance(action, Finish):
            break
        assert isinstance(action, Create)
        point = grid_point(sweep.spec, action.number)
        job = create_trial(sweep, TrialRecord(number=action.number, parameters=point, units=[action.unit]))
        if job.status.state == State.NEW:  # it trains
            status = {"state": State.SUCCEEDED, "metrics": {"evalReturn": 1.0}}
            job = _with_status(job, status)
        jobs[action.number] = job
    results = results_of(sweep, jobs)
    assert [each.outcome for each in results][:3] == ["complete", "complete", "failed"]
    assert jobs[2].status.state == State.FAILED
    assert jobs[2].status.message.startswith(SAID)
    assert results[2].why.startswith(f"its parameters do not form a valid job: {SAID}")
    assert SAID in csv_of(sweep, results)
    explained = str(explanation(jobs[2], [], [], "in namespace team", " -n team", now=0.0))
    assert (
        f"trial 2 of sweep joint. Its parameters do not form a valid job, so it never runs and counts as failed: {SAID}"
        in (explained)
    )
    assert explained.endswith("next: torchyard sweep show joint -n team")
    assert (action.state, len(results)) == (("Failed", 3) if most == 0 else ("Succeeded", 4))


@pytest.mark.parametrize("file", sorted(Path("examples").glob("*.yaml")), ids=lambda file: file.stem)
def test_no_program_is_left_in_the_job_of_such_a_trial_and_the_rest_of_it_is_valid(file):
    found = yaml.safe_load(file.read_text())
    spec = found["spec"].get("jobTemplate", found)["spec"]
    template = msgspec.convert(spec, TrainingJobSpec, dec_hook=decode)
    job = without_program(replace(template, gpus_per_node=2, nodes=3), 'lr: it\'s "too" large')
    assert list(broken_rules(job)) == []
    assert (job.trainer, job.command, job.args, job.suspend) == (None, [], [], True)
    assert (job.nodes, job.gpus_per_node, job.image) == (3, 2, template.image)
    ended = subprocess.run([sys.executable, "-c", job.script], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.strip()) == (1, f'{NO_JOB}: lr: it\'s "too" large')


NO_JOB = "this trial has no valid job, so there is nothing to run"


def _with_status(job, fields):
    return replace(job, status=replace(job.status, **fields))
