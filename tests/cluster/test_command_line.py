"""`torchyard` against a cluster, as a person types it: submit, look, wait, suspend, resume, delete."""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from tests.support.cluster.jobs import ENDED, Jobs, counts
from tests.support.cluster.operators import MAIN, PATIENCE, WARM, until

from torchyard.kubernetes.client.errors import NotFound

EXAMPLE = Path(__file__).parents[2] / "examples" / "cvrp.yaml"
SHORT = ("--set", "nodes=2", "--set", "trainer.params.steps=150", "--set", "metrics={interval: 1s}")
LONG = {
    "apiVersion": "torchyard.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "long"},
    "spec": {"command": counts(steps=100_000, seconds=0.2), "gracePeriod": "2s"},
}
PATIENT = ("--timeout", f"{PATIENCE:.0f}s")
NOWHERE = ("--set", "nodes=2", "--set", "gpusPerNode=64")


class CommandLine:
    """Runs `torchyard COMMAND ... -n NAMESPACE` with an empty TORCHYARD_HOME.

    Commands are forked, except the first of each that `starts` names: it starts as from a shell.
    """

    def __init__(self, namespace, home):
        self.namespace, self.starts = namespace, set()
        self.environment = {**os.environ, "TORCHYARD_HOME": str(home)}

    async def __call__(self, command, *words, code=0):
        run = self._start if command in self.starts else self._fork
        self.starts.discard(command)
        done = await asyncio.to_thread(run, [command, *map(str, words), "-n", self.namespace])
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return SimpleNamespace(out=done.stdout, err=done.stderr)

    def _fork(self, words):
        return WARM.run(words, Path.cwd(), self.environment, PATIENCE)

    def _start(self, words):
        settings = {"capture_output": True, "text": True, "timeout": PATIENCE}
        return subprocess.run([sys.executable, *MAIN, *words], check=False, env=self.environment, **settings)


@pytest.fixture
def torchyard(namespace, tmp_path):
    return CommandLine(namespace, tmp_path / "home")


async def statuses(jobs, name):
    """What the API server shows of a job that is still to be made, from its first status to its last."""
    seen = []

    async def over() -> bool:
        with contextlib.suppress(NotFound):
            seen.append(await jobs.status(name))
        return bool(seen) and seen[-1].get("state") in ENDED

    await until(over, why=lambda: json.dumps(seen[-1:], indent=1))
    return seen


async def test_a_job_is_submitted_watched_and_read(torchyard, operator, api, namespace, tmp_path):
    torchyard.starts |= {"submit", "ps", "status", "logs", "wait", "events", "delete"}
    watched, seen = await asyncio.gather(
        torchyard("submit", EXAMPLE, *SHORT, "--watch"), statuses(Jobs(api, namespace), "cvrp")
    )
    assert f"cvrp is submitted to namespace {namespace} of context" in watched.err
    assert re.search("cvrp succeeded in [0-9ms]+: .*, 150 steps, ", watched.err), watched.err
    states = list(dict.fromkeys(status["state"] for status in seen if "state" in status))
    assert states[-2:] == ["Running", "Succeeded"], states
    assert any(status.get("metrics", {}).get("loss") for status in seen if status.get("state") == "Running")

    again = await torchyard("submit", EXAMPLE, *SHORT, code=64)
    assert "there is a TrainingJob 'cvrp'" in again.err
    assert f"`torchyard delete cvrp -n {namespace}` first" in again.err

    listed = await torchyard("ps", "-o", "wide")
    assert [line.split()[:2] for line in listed.out.splitlines()[1:]] == [["cvrp", "Succeeded"]]
    (kept,) = json.loads((await torchyard("ps", "-o", "json")).out)
    assert (kept["metadata"]["namespace"], kept["status"]["progress"]["step"]) == (namespace, 150)

    shown = await torchyard("status", "cvrp")
    assert "150/150" in shown.out
    assert re.search(r"cvrp-\d-1", shown.out), shown.out

    logs = (await torchyard("logs", "cvrp")).out
    assert re.search(r"\[r0 cvrp-\d-0\] ", logs), logs
    assert re.search(r"\[(r1|agent) cvrp-\d-1\] ", logs), logs
    only = (await torchyard("logs", "cvrp", "--rank", "0")).out.splitlines()
    assert only
    assert all(line.startswith("[r0 ") for line in only)
    await torchyard("wait", "cvrp")
    assert "RoundOpened" in (await torchyard("events", "cvrp")).out

    assert "is deleted" in (await torchyard("delete", "cvrp")).err
    await torchyard("wait", "cvrp", "--for", "deleted", *PATIENT)
    gone = await torchyard("status", "cvrp", code=64)
    assert f"there is no TrainingJob 'cvrp' in namespace {namespace}" in gone.err

    script = tmp_path / "hello.py"
    script.write_text(
        "import os, sys\nimport torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\n"
        "print('rank', dist.get_rank(), sys.argv[1:], os.environ['COLOUR'], flush=True)\ndist.destroy_process_group()\n"
    )
    sent = ("--nodes", "2", "--env", "COLOUR=green", "--set", "args=['--n', '5']")
    watched = await torchyard("submit", script, *sent, "--watch")
    assert "hello succeeded" in watched.err
    assert sorted(watched.out.splitlines()) == [f"[rank {rank}] rank {rank} ['--n', '5'] green" for rank in (0, 1)]
    assert "rank 1 ['--n', '5'] green" in (await torchyard("logs", "hello")).out
    await torchyard("delete", "hello")


async def test_a_job_is_suspended_and_continues(torchyard, operator, tmp_path):
    torchyard.starts |= {"suspend", "resume"}
    (tmp_path / "long.yaml").write_text(yaml.safe_dump(LONG))
    await torchyard("submit", tmp_path / "long.yaml")
    await torchyard("wait", "long", "--for", "running", *PATIENT)
    late = await torchyard("wait", "long", "--timeout", "1s", code=124)
    assert "did not reach the state in time" in late.err
    await torchyard("suspend", "long")
    await torchyard("wait", "long", "--for", "suspended", *PATIENT)
    assert "torchyard resume long" in (await torchyard("status", "long")).out
    await torchyard("resume", "long")
    await torchyard("wait", "long", "--for", "running", *PATIENT)
    await torchyard("delete", "long")


async def test_why_a_job_waits_is_explained_with_what_to_do(torchyard, operator):
    torchyard.starts |= {"explain"}
    await torchyard("submit", EXAMPLE, *NOWHERE)
    expected = ("cvrp in namespace", "GPU", "What to do:", "cvrp-0-0 is Pending")
    explained = ""

    async def says_so():
        nonlocal explained
        explained = (await torchyard("explain", "cvrp")).out
        return all(words in explained for words in expected)

    await until(says_so, why=lambda: explained)


async def test_a_job_without_an_operator_proposes_the_doctor(torchyard, namespace):
    torchyard.starts |= {"doctor"}
    await torchyard("submit", EXAMPLE, *SHORT)
    assert f"torchyard doctor -n {namespace}" in (await torchyard("explain", "cvrp")).out
    looked = await torchyard("doctor", "--no-pod", code=1)
    assert "the TrainingJob CRD is installed" in looked.out
    assert "FAIL" in looked.out


async def test_what_the_cluster_refuses_is_said_in_one_sentence(torchyard, tmp_path):
    wrong = await torchyard("ps", "--context", "nowhere", code=1)
    assert "nowhere" in wrong.err
    assert "Traceback" not in wrong.err
    invalid = tmp_path / "job.yaml"
    invalid.write_text(EXAMPLE.read_text().replace("nodes", "node"))
    assert "did you mean nodes" in (await torchyard("submit", invalid, code=64)).err
