"""`torchyard profile`: whom it refuses, and that it loses no wish; a run that is traced shows that it works."""

import json
import os
import subprocess
import sys

import pytest

from torchyard.client.profile_request import left_in
from torchyard.client.remote.profile import LEFT
from torchyard.local.run import take_lock


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["cvrp", "trace", "--steps", 0], "ask for 1 to 100"),
        (["cvrp", "trace", "--steps", 101], "ask for 1 to 100"),
        (["cvrp", "flame"], "invalid choice"),
        (["cvrp", "trace"], "the run 'cvrp' does not run; `torchyard resume cvrp` continues it"),
        (["cvpr", "memory"], "did you mean 'cvrp'?"),
    ],
)
def test_a_wish_that_cannot_be_granted(torchyard, words, says):
    torchyard.record("cvrp")
    refused = torchyard("profile", *words)
    assert (refused.returncode, says in refused.stderr) == (64, True), refused.stderr


@pytest.mark.parametrize("words", [["profile", "cvrp", "trace"], ["stacks", "cvrp"]])
def test_resuming_is_not_proposed_for_what_has_ended(torchyard, words):
    torchyard.record("cvrp", {"state": "Succeeded"})
    assert "does not run; it has ended (Succeeded); see `torchyard status cvrp`" in torchyard(*words).stderr


class Training:
    """A run of two pods with a rank each, which looks alive, and records the profiles that it is configured to."""

    def __init__(self, torchyard, members):
        rendezvous = {"open": True, "members": [f"uid-{number}" for number in range(members)]} if members else {}
        folder = torchyard.record("cvrp", {"state": "Running", "rendezvous": rendezvous})
        self.pods = [folder / "pods" / f"cvrp-0-{number}" / "run" for number in range(2)]
        for run in self.pods:
            run.mkdir(parents=True)
        self.locks = [take_lock(path / "lock") for path in (folder, *(run.parent for run in self.pods))]

    @property
    def wishes(self):
        return [json.loads((run / "profile.json").read_text()) for run in self.pods]

    def is_done(self, rank):
        """What a trainer leaves when it has granted a wish, or was not asked; see docs/protocol.md."""
        (self.pods[rank] / f"profiled.{rank}").write_text(self.wishes[rank]["id"])


@pytest.fixture
def training(torchyard, request):
    made = Training(torchyard, getattr(request, "param", 0))
    yield made
    for lock in made.locks:
        os.close(lock)


@pytest.mark.parametrize(
    ("training", "rank", "says"),
    [
        (0, 7, "--rank 7 is not possible: 'cvrp' has 2 ranks; ask for 0 to 1"),
        (0, 2, "--rank 2 is not possible: 'cvrp' has 2 ranks; ask for 0 to 1"),
        (1, 1, "--rank 1 is not possible: 'cvrp' has 1 rank; ask for --rank 0"),  # an elastic gang has shrunk
    ],
    indirect=["training"],
)
def test_a_rank_that_is_not_there_is_refused_at_once(torchyard, training, rank, says):
    refused = torchyard("profile", "cvrp", "trace", "--rank", rank)
    assert (refused.returncode, says in refused.stderr) == (64, True), refused.stderr
    assert not any((run / "profile.json").exists() for run in training.pods)


def test_a_job_that_trains_nothing_is_not_asked(torchyard, training):
    file = torchyard.home / "runs" / "cvrp" / "job.yaml"
    file.write_text(file.read_text().replace("{name: cvrp},", "{name: cvrp, mode: bench},"))
    refused = torchyard("profile", "cvrp", "trace")
    assert (refused.returncode, "'cvrp' is in mode bench, and only a job in mode train" in refused.stderr) == (64, True)


def test_the_last_rank_is_asked(torchyard, training):
    asked = torchyard("profile", "cvrp", "trace", "--rank", 1)
    assert (asked.returncode, asked.stdout.startswith("asked 2 pods of cvrp for trace")) == (0, True), asked.stderr
    assert [(wish["kind"], wish["rank"]) for wish in training.wishes] == [("trace", 1)] * 2


def test_a_wish_takes_no_place_of_one_that_some_rank_is_not_done_with(torchyard, training):
    assert torchyard("profile", "cvrp", "trace").returncode == 0
    traced = training.wishes
    says = (
        "a trace profile of 3 steps is still wished for of 'cvrp'; "
        "wait until `torchyard fetch cvrp profile` brings it, or give it up with --replace"
    )
    for done in (0, 1):
        refused = torchyard("profile", "cvrp", "memory")
        assert (refused.returncode, says in refused.stderr) == (1, True), refused.stderr
        assert training.wishes == traced
        training.is_done(done)
    assert torchyard("profile", "cvrp", "memory").returncode == 0
    assert [wish["kind"] for wish in training.wishes] == ["memory"] * 2


def test_a_request_replaces_another_on_demand(torchyard, training):
    torchyard("profile", "cvrp", "trace")
    assert torchyard("profile", "cvrp", "memory", "--steps", 1, "--replace").returncode == 0
    assert [(wish["kind"], wish["steps"]) for wish in training.wishes] == [("memory", 1)] * 2


@pytest.mark.parametrize("text", ["{", "[]", "null", '{"id": "a"}'])
def test_a_request_that_cannot_be_read_blocks_no_other(torchyard, training, text):
    (training.pods[0] / "profile.json").write_text(text)
    assert torchyard("profile", "cvrp", "trace").returncode == 0


@pytest.mark.parametrize("wishes", [0, 1])
def test_a_pod_of_a_cluster_lists_its_run_folder_as_this_machine_does(torchyard, training, wishes):
    for _ in range(wishes):
        torchyard("profile", "cvrp", "trace")
        training.is_done(0)
    (run, _) = training.pods
    said = subprocess.run([sys.executable, "-c", LEFT, run, "profile.json"], capture_output=True, check=True)
    assert tuple(json.loads(said.stdout)) == left_in(run)
    assert len(left_in(run).done) == wishes
