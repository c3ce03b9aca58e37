"""A user's program that hangs: `torchyard stacks` shows where, and `spec.health.stall` has it train again."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
from aiohttp import web
from tests.cli.conftest import CommandLine, eventually
from tests.support import hanging_program
from tests.support.cli.cluster import cluster, objects
from tests.support.waiting import DEADLINE

from torchyard.kubernetes.manifests import names


@pytest.mark.e2e
def test_a_hang_is_shown_where_it_is_ended_and_trained_past(torchyard: CommandLine) -> None:
    spec = {
        "script": hanging_program.PROGRAM,
        "nodes": 2,
        "health": {"stall": "20s"},
        "restart": {"backoff": {"initial": "0s"}},
    }
    document = {
        "apiVersion": "torchyard.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "job"}, "spec": spec,
    }  # fmt: skip
    (torchyard.folder / "job.yaml").write_text(json.dumps(document))
    with torchyard.start("run", "job.yaml", "-o", "json") as run:
        eventually(lambda: torchyard.has_logged("job", "no data"))
        assert "no data" in torchyard("logs", "job").stdout
        shown = torchyard("stacks", "job", "-o", "json")
        assert shown.returncode == 0, shown.stderr
        zero, one = json.loads(shown.stdout)
        assert (zero["rank"], zero["pod"], zero["waits"]) == (0, "job-0-0", True)
        assert (one["rank"], one["waits"], one["at"].endswith(" in read_batch")) == (1, False, True), one
        text = torchyard("stacks", "job", "--rank", 1).stdout
        assert text.startswith(f"rank 1 (job-0-1), at {one['at']}\n")
        assert "in read_batch" in text.partition("\n")[2]
        assert "torchyard_agent" not in text
        assert torchyard("stacks", "job", "--rank", 7).returncode == 1
        stdout, stderr = run.communicate(timeout=DEADLINE)
        assert run.returncode == 0, stderr
    first, second = json.loads(stdout)["status"]["attempts"]
    assert (first["reason"], first["cause"]["rank"], first["cause"]["exitCode"]) == ("WorkerHung", 1, 70)
    assert f"after step 3, at {one['at']}" in first["cause"]["exception"]
    assert second["endStep"] == 6
    assert "in read_batch" in torchyard("logs", "job", "--rank", 1).stdout, "the stacks stay in its log"
    assert "does not run" in torchyard("stacks", "job").stderr


ANSWER = [
    {
        "rank": 0,
        "pid": 7,
        "stacks": 'Current thread 0x1\n  File "train.py", line 4 in f\x1b[2J',
        "at": "train.py:4 in f",
    },
    {"rank": 1, "pid": 8, "stacks": None, "at": "", "waits": False},
]


async def test_on_a_cluster_the_agents_program_is_asked_in_each_pod(torchyard: CommandLine, tmp_path: Path) -> None:
    program = tmp_path / "agent.py"
    program.write_text(
        f"import json, sys\nassert sys.argv[1:] == ['stacks', '{names.RUN}']\nprint({json.dumps(ANSWER)!r})"
    )

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.split("/")[-1] != "exec":
            return objects(request)
        python, agent, *words = request.query.getall("command")
        assert (python, agent) == ("python3", names.AGENT_INSTALLED)
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await socket.prepare(request)
        asked = await asyncio.create_subprocess_exec(sys.executable, program, *words, stdout=asyncio.subprocess.PIPE)
        output, _ = await asked.communicate()
        for message in (b"\x01" + output, b"\x03" + b'{"status": "Success"}'):
            await socket.send_bytes(message)
        await socket.close()
        return socket

    async with cluster(torchyard, answer):
        done = await asyncio.to_thread(torchyard, "stacks", "cvrp", "-n", "team")
    assert done.returncode == 0, done.stderr
    first, second, *_ = done.stdout.split("\n\n")
    assert first.startswith("rank 0 (cvrp-0-0), at train.py:4 in f\nCurrent thread 0x1\n")
    assert "\x1b" not in done.stdout
    assert "no stacks" in second + done.stdout
