"""Sweeps in Python: on this machine with real trials, and against an API server on loopback."""

import sys

import msgspec
import pytest
import yaml
from aiohttp import web
from tests.support.kubernetes.api_server import kubeconfig, refused, serving
from tests.support.waiting import DEADLINE

import torchyard as ty
from torchyard.api.names import SOURCE_FOLDER, TRIAL
from torchyard.local.run import run_folder
from torchyard.local.sweeps import create_sweep, create_trial
from torchyard.sweeps.codec import read_sweep
from torchyard.sweeps.resource import TrialRecord, Unit
from torchyard.sweeps.results import Result

PROGRAM = "import os; print('step 1 score ' + os.environ['TORCHYARD_GRACE_SECONDS'])"
SPEC = {
    "objective": {"metric": "score", "goal": "maximize"},
    "algorithm": {"name": "grid"},
    "parameters": [{"path": "gracePeriod", "choice": ["3s", "7s", "5s"]}],
    "maxTrials": 3,
    "parallelTrials": 1,
    "jobTemplate": {
        "spec": {
            "command": [sys.executable, "-c", PROGRAM],
            "metrics": {"patterns": [r"step (?P<step>\d+) score (?P<score>[0-9.]+)"]},
        }
    },
}
SWEEP = {"metadata": {"name": "tune"}, "spec": SPEC}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.e2e
def test_a_sweep_of_this_machine_finds_the_best_trial(home):
    sweep = ty.sweep(SWEEP, overrides={"maxTrials": 2})
    assert [(trial.outcome, trial.value, trial.best) for trial in sweep.trials()] == [
        ("complete", 3.0, False), ("complete", 7.0, True),
    ]  # fmt: skip
    assert sweep.best().spec.grace_period == 7
    assert sweep.best().metadata.annotations[SOURCE_FOLDER] == str(home), "it runs from anywhere"
    more = ty.sweep(SWEEP, wait=False)  # it goes on
    assert len(more.wait(timeout=DEADLINE)) == 3
    assert more.uid == sweep.uid
    assert ty.get_sweep("tune").best() == more.best()
    more.delete()
    with pytest.raises(ty.NotFoundError, match="no sweep `tune`"):
        more.trials()


def test_a_damaged_trial_is_named_and_does_not_keep_the_sweep_from_being_deleted(home):
    kind = {"apiVersion": "torchyard.dev/v1alpha1", "kind": "TrainingSweep"}
    sweep = create_sweep(read_sweep({**kind, **SWEEP}), home)
    create_trial(sweep, TrialRecord(number=0, parameters={"gracePeriod": "3s"}, units=[Unit(number=0)]))
    job_file = run_folder("tune-0").job_file
    job = yaml.safe_load(job_file.read_text())
    job["metadata"]["annotations"][TRIAL] = "[]"
    job_file.write_text(yaml.safe_dump(job))
    found = ty.get_sweep("tune")
    for read in (found.trials, found.best):
        with pytest.raises(ty.TorchYardError, match=r"run tune-0: annotation torchyard.dev/trial: .*delete the trial"):
            read()
    found.delete()
    with pytest.raises(ty.NotFoundError):
        found.trials()


def test_trials_are_a_table_for_people_and_notebooks():
    first = Result(
        number=0, name="tune-0", outcome="complete", state="Succeeded", value=0.25, percent=100,
        parameters={"args[1]": "<b>"}, progress="100%", seconds=3.0, best=True,
    )  # fmt: skip
    second = msgspec.structs.replace(
        first,
        number=1,
        name="tune-1",
        outcome="failed",
        value=None,
        parameters={"nodes": False},
        best=False,
        why="no\nlr",
    )
    table = ty.TrialsTable([first, second])
    assert [line.split() for line in str(table).splitlines()] == [
        ["name", "outcome", "value", "percent", "seconds", "best", "why", "args[1]", "nodes"],
        ["tune-0", "complete", "0.25", "100", "3", "true", "<b>"],
        ["tune-1", "failed", "100", "3", "nolr", "false"],
    ]
    assert "<td>&lt;b&gt;</td>" in table._repr_html_()
    assert str(ty.TrialsTable()).startswith("name")


@pytest.mark.parametrize(
    ("target", "overrides", "parts"),
    [
        (
            {"metadata": {"name": "a"}, "spec": {**SPEC, "maxTrial": 1}},
            None,
            ["spec.maxTrial", "mean maxTrials"],
        ),
        (SWEEP, {"parallelTrials": -1}, ["parallelTrials"]),
        (SWEEP, {"parallelTrials": {1}}, ["overrides['parallelTrials'] cannot be written as JSON"]),
        (SWEEP, {"suspend": True}, ["spec.suspend is true, which is for clusters"]),
        ("missing.yaml", None, ["missing.yaml", "cannot be read"]),
        (SWEEP, [1], ["overrides: [1] is not a dict"]),
        (3, None, ["3 is not a sweep", "give a TrainingSweep, a dict"]),
        ({"kind": "TrainingJob", "spec": {}}, None, ["is not a sweep", "torchyard.run runs a job"]),
        (ty.TrainingJob(metadata=ty.ObjectMeta(name="a"), spec=ty.TrainingJobSpec()), None, ["torchyard.run runs a"]),
    ],
)
def test_an_invalid_sweep_is_rejected_with_field_and_fix(target, overrides, parts):
    with pytest.raises(ty.TorchYardError) as error:
        ty.sweep(target, overrides=overrides)
    assert all(part in str(error.value) for part in parts), str(error.value)


def test_a_sweep_runs_on_this_machine_or_on_a_cluster():
    with pytest.raises(
        ty.TorchYardError, match=r"on='moon' is not a place where sweeps run; use 'machine' or 'cluster'"
    ):
        ty.sweep(SWEEP, on="moon")


async def test_a_sweep_of_a_cluster_is_created_followed_and_stopped(home, monkeypatch):
    written, states = [], ["Running", "Succeeded"]

    async def answer(request):
        if request.method in {"POST", "PATCH"}:
            written.append((request.method, request.path, await request.json()))
        if request.method == "POST" and request.path.endswith("/taken/trainingsweeps"):
            return refused(409, "AlreadyExists", "exists")
        if request.path.endswith("/trainingjobs"):
            return web.json_response({"items": []})
        state = states.pop(0) if len(states) > 1 else states[0]
        metadata = {"name": "tune", "namespace": "team", "uid": "u-1"}
        return web.json_response({
            "apiVersion": "torchyard.dev/v1alpha1", "kind": "TrainingSweep", "metadata": metadata, "spec": SPEC,
            "status": {"state": state},
        })  # fmt: skip

    async with serving(answer) as url:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(home, url, namespace="team")))
        sweep = await ty.aio.sweep(SWEEP, namespace="team", wait=False)
        assert (sweep.name, sweep.namespace, sweep.uid) == ("tune", "team", "u-1")
        assert written[0][:2] == ("POST", "/apis/torchyard.dev/v1alpha1/namespaces/team/trainingsweeps")
        assert await sweep.wait(timeout=DEADLINE) == []
        assert await sweep.best() is None
        await sweep.stop()
        assert written[-1][2] == {"spec": {"suspend": True}}
        with pytest.raises(ty.TorchYardError, match="there is a TrainingSweep 'tune' in namespace taken"):
            await ty.aio.sweep(SWEEP, namespace="taken")
