"""`torchyard` against a cluster, as a person types it: submit, look, wait, suspend, resume, delete."""

import asyncio
import json
import os
import re
import sys
from pathlib import Path

import pytest
from tests.support.cluster.operators import PATIENCE, until

EXAMPLE = Path(__file__).parents[2] / "examples" / "cvrp.yaml"
SHORT = ("--set", "nodes=2", "--set", "trainer.params.steps=60")
LONG = ("--set", "nodes=2", "--set", "trainer.params.steps=100000", "--set", "checkpoint.interval={steps: 5}")
NOWHERE = ("--set", "nodes=2", "--set", "gpusPerNode=64")


class Ended:
    """How a command ended."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out.decode(), err.decode()

    def __repr__(self):
        return f"exit {self.code}\n{self.out}\n{self.err}"


@pytest.fixture
def torchyard(namespace, tmp_path):
    """Runs `torchyard COMMAND ... -n NAMESPACE` on a machine without runs of its own."""

    async def run(command, *words, code=0):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "torchyard.cli.main", command, *map(str, words), "-n", namespace),
            env={**os.environ, "TORCHYARD_HOME": str(tmp_path / "home")},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), PATIENCE)
        finally:
            if process.returncode is None:
                process.kill()
        ended = Ended(process.returncode, out, err)
        assert ended.code == code, ended
        return ended

    return run


async def test_a_job_is_submitted_watched_and_read(torchyard, operator, namespace, tmp_path):
    watched = await torchyard("submit", EXAMPLE, *SHORT, "--watch")
    assert f"cvrp is submitted to namespace {namespace} of context" in watched.err
    assert re.search("cvrp succeeded in [0-9ms]+: .*, 60 steps, ", watched.err), watched.err

    again = await torchyard("submit", EXAMPLE, *SHORT, code=64)
    assert "there is a TrainingJob 'cvrp'" in again.err
    assert f"`torchyard delete cvrp -n {namespace}` first" in again.err

    listed = await torchyard("ps", "-o", "wide")
    assert [line.split()[:2] for line in listed.out.splitlines()[1:]] == [["cvrp", "Succeeded"]]
    (kept,) = json.loads((await torchyard("ps", "-o", "json")).out)
    assert (kept["metadata"]["namespace"], kept["status"]["progress"]["step"]) == (namespace, 60)

    shown = await torchyard("status", "cvrp")
    assert "60/60" in shown.out
    assert "cvrp-0-1" in shown.out

    logs = (await torchyard("logs", "cvrp")).out
    assert "[r0 cvrp-0-0] " in logs
    assert "[r1 cvrp-0-1] " in logs or "[agent cvrp-0-1] " in logs
    only = (await torchyard("logs", "cvrp", "--rank", "0")).out.splitlines()
    assert only
    assert all(line.startswith("[r0 ") for line in only)
    assert (await torchyard("wait", "cvrp")).code == 0
    assert "RoundOpened" in (await torchyard("events", "cvrp")).out

    assert "is deleted" in (await torchyard("delete", "cvrp")).err
    await torchyard("wait", "cvrp", "--for", "deleted", "--timeout", "4m")
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


async def test_a_job_is_suspended_and_continues(torchyard, operator):
    await torchyard("submit", EXAMPLE, *LONG)
    await torchyard("wait", "cvrp", "--for", "running", "--timeout", "4m")
    late = await torchyard("wait", "cvrp", "--timeout", "1s", code=124)
    assert "did not reach it in time" in late.err
    await torchyard("suspend", "cvrp")
    await torchyard("wait", "cvrp", "--for", "suspended", "--timeout", "4m")
    assert "torchyard resume cvrp" in (await torchyard("status", "cvrp")).out
    await torchyard("resume", "cvrp")
    await torchyard("wait", "cvrp", "--for", "running", "--timeout", "4m")
    await torchyard("delete", "cvrp")


async def test_why_a_job_waits_is_explained_with_what_to_do(torchyard, operator):
    await torchyard("submit", EXAMPLE, *NOWHERE)
    expected = ("cvrp in namespace", "GPU", "What to do:", "cvrp-0-0 is Pending")
    explained = ""

    async def says_so():
        nonlocal explained
        explained = (await torchyard("explain", "cvrp")).out
        return all(words in explained for words in expected)

    await until(says_so, why=lambda: explained)


async def test_a_job_without_an_operator_proposes_the_doctor(torchyard, namespace):
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
