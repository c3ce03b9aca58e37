"""`torchyard sweep` and `submit` with a sweep, against a cluster."""

import asyncio
import json

import pytest
import yaml
from aiohttp import web
from tests.support.cli.cluster import cluster
from tests.support.kubernetes.api_server import refused
from tests.support.kubernetes.sweep_world import World

from torchyard.local.sweeps import create_sweep
from torchyard.sweeps.codec import read_sweep

SWEEP = {
    "apiVersion": "torchyard.dev/v1alpha1",
    "kind": "TrainingSweep",
    "metadata": {"name": "tune"},
    "spec": {
        "objective": {"metric": "evalReturn", "goal": "maximize"},
        "algorithm": {"name": "random"},
        "earlyStopping": {"name": "asha"},
        "parameters": [{"path": "trainer.params.lr", "float": {"min": 0.001, "max": 0.01}}],
        "jobTemplate": {"spec": {"trainer": {"name": "vecrl", "params": {"environment": "bandit"}}}},
    },
}


class Server:
    """A cluster with a sweep that is over."""

    def __init__(self, world):
        self.world, self.asked = world, []

    async def answer(self, request):
        body = await request.json() if request.can_read_body else None
        if request.method != "GET":
            self.asked.append((request.method, request.path.rpartition("/")[2], body))
        if request.path.endswith("/trainingjobs"):
            assert request.query["labelSelector"] == f"torchyard.dev/sweep-uid={self.uid}"
            return web.json_response({"kind": "TrainingJobList", "items": self.world.trials()})
        if request.path.endswith("/trainingsweeps") and request.method == "GET":
            broken = {"metadata": {"name": "broken", "namespace": "research"}, "spec": {"maxTrials": 0}}
            first = "continue" not in request.query
            page = {"items": [self.world.sweep() if first else broken], "metadata": {"continue": "x" if first else ""}}
            return web.json_response({"kind": "TrainingSweepList", **page})
        if request.path.endswith("/trainingsweeps"):
            return web.json_response(body, status=201)
        if request.path.endswith("/trainingsweeps/tune"):
            return web.json_response(self.world.sweep())
        return refused(404, "NotFound", details={"name": request.path.rpartition("/")[2], "kind": "trainingsweeps"})

    @property
    def uid(self):
        return self.world.sweep()["metadata"]["uid"]


@pytest.fixture
async def server():
    world = World()
    await world.until_over()
    return Server(world)


async def test_what_a_sweep_of_a_cluster_found_is_shown(torchyard, server):
    async with cluster(torchyard, server.answer):
        shown = await asyncio.to_thread(torchyard, "sweep", "show", "tune", "-n", "research", "-o", "json")
        best = await asyncio.to_thread(torchyard, "sweep", "best", "tune", "-n", "research", "-o", "yaml")
        missing = await asyncio.to_thread(torchyard, "sweep", "show", "other", "-n", "research")
    assert "Succeeded" in shown.stderr
    trials = json.loads(shown.stdout)["trials"]
    assert len(trials) == 8
    found = server.world.sweep()["status"]["best"]
    (one,) = (each for each in trials if each["best"])
    assert (one["name"], one["value"]) == (found["trial"], found["value"])
    job = yaml.safe_load(best.stdout)
    assert json.dumps(job["spec"]["trainer"]["params"]["lr"]) == found["parameters"]["trainer.params.lr"]
    assert missing.returncode == 64
    assert "there is no sweep 'other'" in missing.stderr


async def test_the_sweeps_of_a_cluster_are_listed(torchyard, server):
    async with cluster(torchyard, server.answer):
        shown = await asyncio.to_thread(torchyard, "sweep", "ls", "-n", "research")
    assert shown.returncode == 0, shown.stderr
    head, (name, state, trials, running, metric, *_) = (line.split() for line in shown.stdout.splitlines())
    assert head == ["NAME", "STATE", "TRIALS", "RUNNING", "BEST"]
    assert (name, state, trials, running, metric) == ("tune", "Succeeded", "8/8", "0", "score")
    assert "sweep broken is invalid: Expected `int` >= 1" in shown.stderr


def test_the_sweeps_of_this_machine_are_listed_and_a_name_is_asked_for(torchyard, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHYARD_HOME", str(torchyard.home))
    create_sweep(read_sweep(SWEEP), tmp_path)
    (torchyard.home / "sweeps" / "damaged").mkdir()
    (torchyard.home / "sweeps" / "damaged" / "sweep.yaml").write_text("[")
    shown = torchyard("sweep", "ls", "-o", "json")
    assert [(each["metadata"]["name"], each["status"]["state"]) for each in json.loads(shown.stdout)] == [
        ("tune", "Suspended")
    ]
    assert "sweep damaged cannot be read:" in shown.stderr
    nameless = torchyard("sweep", "show")
    assert (nameless.returncode, "show needs the name of a sweep" in nameless.stderr) == (64, True)


@pytest.mark.parametrize(
    ("what", "asked"),
    [
        ("suspend", ("PATCH", "tune", {"spec": {"suspend": True}})),
        ("resume", ("PATCH", "tune", {"spec": {"suspend": False}})),
        ("rm", ("DELETE", "tune", {"propagationPolicy": "Background"})),
    ],
)
async def test_a_sweep_of_a_cluster_is_changed(torchyard, server, what, asked):
    async with cluster(torchyard, server.answer):
        done = await asyncio.to_thread(torchyard, "sweep", what, "tune", "-n", "research")
    assert done.returncode == 0, done.stderr
    assert server.asked == [asked]


async def test_a_sweep_is_submitted(torchyard, server):
    (torchyard.folder / "sweep.yaml").write_text(yaml.safe_dump(SWEEP))
    async with cluster(torchyard, server.answer):
        done = await asyncio.to_thread(torchyard, "submit", "sweep.yaml", "-n", "research", "--name", "other")
        wrong = await asyncio.to_thread(torchyard, "submit", "sweep.yaml", "--set", "objective.metric=evalRetrun")
    assert done.returncode == 0, done.stderr
    assert "a stopped trial that continues starts again at step 0" in done.stderr
    ((method, path, body),) = server.asked
    assert (method, path) == ("POST", "trainingsweeps")
    assert body["metadata"] == {"name": "other", "namespace": "research"}
    assert body["spec"]["objective"] == SWEEP["spec"]["objective"]
    assert wrong.returncode == 64
    assert "did you mean evalReturn" in wrong.stderr


def test_a_sweep_of_this_machine_is_stopped_by_hand(torchyard, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHYARD_HOME", str(torchyard.home))
    create_sweep(read_sweep(SWEEP), tmp_path)
    done = torchyard("sweep", "suspend", "tune")
    assert done.returncode == 64
    assert "sweep tune is one of this machine; stop it with Ctrl-C" in done.stderr
