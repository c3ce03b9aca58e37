"""Print the files of ours that a reader crosses on three journeys, by running each and recording what is called.

    python hack/journeys.py [--files]

1. From the event of a new TrainingJob to the creation of its pods.
2. From an agent's request `sync` with a step to the written status.
3. `torchyard status` of a run on this machine.

The operator is the real one; the API server is the one of the tests, on loopback. kopf is left out: the event is handed
to the same method that the handler calls, and the handler's file is added. The code at module level does not count.
"""

# ruff: noqa: SLF001 -- it starts the parts of an operator without the process around them

import argparse
import asyncio
import base64
import contextlib
import inspect
import io
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import aiohttp
from aiohttp import web

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.kubernetes.api_server import kubeconfig, serving, until

from torchyard.agents import server
from torchyard.agents.auth.tokens import AUDIENCE
from torchyard.api.resource import read_job
from torchyard.api.values import rfc3339
from torchyard.app.operator import Operator
from torchyard.app.options import Options
from torchyard.cli.main import main as torchyard
from torchyard.kubernetes.client.api import connected
from torchyard.local.run import run_folder
from torchyard.local.runs import create_run

ROOT = Path(__file__).resolve().parents[1]
# Files that a reader crosses at most. Every called function counts, also those that only help (formatting, back-off,
# metrics).
# The first one with the rules of code and of inputs, which every job is checked by, and with nodes to be avoided.
# The first two with two files each for gang schedulers: what the plan asks them, and the one of a job without any. The
# last one with `api/files.py`: what other users may have written into the folder of a run is opened with care.
GOALS = {"job event to pod": 35, "sync to status": 25, "torchyard status": 14}
# What an operator does beside a journey, in its own time, is not in each of several runs.
RUNS, MOST_RUNS = 3, 12
STEP = 3
EXPIRY = int(time.time()) + 3600
HANDLER = "operator/torchyard/app/job_watch.py"
JOB: dict[str, Any] = {
    "apiVersion": "torchyard.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "job", "namespace": "team", "uid": "job-uid", "resourceVersion": "1", "generation": 1},
    "spec": {"trainer": {"name": "cvrp"}},
}


@contextlib.contextmanager
def recorded() -> Iterator[set[str]]:
    """Record the files of operator and agent whose functions are called, as paths from the repository's root."""
    crossed: set[str] = set()
    seen: set[CodeType] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event != "call" or code in seen:
            return
        seen.add(code)
        path = Path(code.co_filename)
        # Without this flag it is the body of a module or a class.
        if code.co_flags & inspect.CO_OPTIMIZED and path.is_relative_to(ROOT):
            inside = path.relative_to(ROOT)
            if inside.parts[0] in {"operator", "agent"}:
                crossed.add(str(inside))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield crossed
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


class ApiServer:
    """The part of an API server that an operator with one job needs; what was written is kept."""

    def __init__(self) -> None:
        self.pods: list[dict[str, Any]] = []
        self.statuses: list[dict[str, Any]] = []
        self._version = 1

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        self._version += 1
        document = json.loads(await request.read() or b"{}") if request.method != "GET" else {}
        if request.path.endswith("/tokenreviews"):
            user = {
                "username": "system:serviceaccount:team:default",
                "extra": {"authentication.kubernetes.io/pod-uid": ["pod-uid"]},
            }
            status = {"authenticated": True, "audiences": [AUDIENCE], "user": user}
            return web.json_response({"status": status}, status=201)
        if request.method == "GET" or request.path.startswith("/openid"):
            return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)
        if request.path.endswith("/pods"):
            document["metadata"] |= {"uid": "pod-uid", "resourceVersion": str(self._version), "namespace": "team"}
            document["metadata"]["creationTimestamp"] = rfc3339(time.time())
            self.pods.append(document)
            sys.setprofile(None)  # the journey of the pod ends here
        elif request.path.endswith("/status"):
            self.statuses.append(document["status"])
            if document["status"].get("progress", {}).get("step") == STEP:
                sys.setprofile(None)  # the journey of the step ends here
            metadata = JOB["metadata"] | {"resourceVersion": str(self._version)}
            document = JOB | {"metadata": metadata, "status": document["status"]}
        return web.json_response(document, status=201 if request.method == "POST" else 200)


@contextlib.asynccontextmanager
async def governing(folder: Path, url: str) -> AsyncIterator[tuple[Operator, str]]:
    """Yield an operator that leads, and the URL at which it listens for agents."""
    os.environ["KUBECONFIG"] = str(kubeconfig(folder, url))
    (folder / "ca.crt").write_text("certificate")
    async with connected() as api:
        operator = Operator(api, Options(tls_dir=folder, leader_election=False, pod_namespace="system"))
        operator.jobs.synced.set()
        app = server.application(operator.registry, operator._tokens.authenticate, serving=operator.cluster.serving)
        async with server.Intake(app) as intake:
            term = asyncio.create_task(operator._govern())
            await until(lambda: operator._controller is not None)
            try:
                yield operator, intake.url
            finally:
                term.cancel()
                await asyncio.gather(term, return_exceptions=True)


async def of_the_operator() -> dict[str, set[str]]:
    """Run the journeys of a job and of a sync, one after the other."""
    api_server = ApiServer()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        async with serving(api_server.answer) as url, governing(folder, url) as (operator, intake):
            job = JOB | {"metadata": JOB["metadata"] | {"creationTimestamp": rfc3339(time.time())}}
            with recorded() as to_pod:
                operator.jobs.record("ADDED", job)
                await until(lambda: api_server.pods)
            await until(lambda: api_server.statuses)
            await _start_pod(operator, api_server)
            async with aiohttp.ClientSession() as session:
                state: dict[str, Any] = {"address": "127.0.0.1", "masterPort": 29500}
                await _sync(session, intake, sequence=1, state="ready", **state)
                await until(lambda: api_server.statuses[-1].get("round") == 1)
                report = {"round": 1, "rank": 0, "step": STEP, "totalSteps": 9, "phase": "step", "time": time.time()}
                with recorded() as to_status:
                    await _sync(session, intake, sequence=2, state="running", round=1, reports=[report], **state)
                    await until(lambda: api_server.statuses[-1].get("progress", {}).get("step") == STEP)
    return {"job event to pod": to_pod | {HANDLER}, "sync to status": to_status}


async def _start_pod(operator: Operator, api_server: ApiServer) -> None:
    pod = api_server.pods[0]
    pod["metadata"]["resourceVersion"] = "1000"
    pod["spec"] |= {"nodeName": "node", "serviceAccountName": "default"}
    running = {"name": "trainer", "ready": True, "state": {"running": {"startedAt": rfc3339(time.time())}}}
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": rfc3339(time.time())}
    pod["status"] = {
        "phase": "Running",
        "podIP": "127.0.0.1",
        "conditions": [scheduled],
        "containerStatuses": [running],
    }
    operator.cluster.tracked.put("team", json.dumps(pod).encode())


async def _sync(session: aiohttp.ClientSession, url: str, **fields: Any) -> None:
    claims = {
        "aud": [AUDIENCE],
        "exp": EXPIRY,  # one token for all, as a kubelet gives it for an hour: its signature is checked once
        "sub": "system:serviceaccount:team:default",
        "kubernetes.io": {"namespace": "team", "pod": {"name": "job-0-0", "uid": "pod-uid"}},
    }
    token = f"e30.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.c2ln"
    body = {"protocol": 1, "instance": "agent", "time": time.time(), "wait": 0, **fields}
    async with session.post(f"{url}/v1/sync", json=body, headers={"Authorization": f"Bearer {token}"}) as answer:
        if answer.status != 200:
            raise RuntimeError(f"the intake answers {answer.status}: {await answer.text()}")


def of_the_command_line() -> dict[str, set[str]]:
    """Run `torchyard status` of a run that was created and never started."""
    with tempfile.TemporaryDirectory() as text:
        os.environ |= {"TORCHYARD_HOME": text, "HOME": text, "KUBECONFIG": f"{text}/none"}
        job = read_job({"metadata": {"name": "demo"}, "spec": {"trainer": {"name": "cvrp"}}})
        create_run(run_folder("demo"), job, Path(text))
        with contextlib.redirect_stdout(io.StringIO()), recorded() as crossed:
            code = torchyard(["status", "demo"])
    if code != 0:
        raise RuntimeError(f"torchyard status ended with {code}")
    return {"torchyard status": crossed}


def journeys() -> dict[str, set[str]]:
    """Return the files of each journey: those that every one of several runs crosses.

    On a busy machine a periodic task may fall into each of them, so that more runs are needed to tell it apart.
    """
    operator = asyncio.run(of_the_operator())
    for done in range(1, MOST_RUNS):
        if done >= RUNS and all(len(crossed) <= GOALS[name] for name, crossed in operator.items()):
            break
        again = asyncio.run(of_the_operator())
        operator = {name: crossed & again[name] for name, crossed in operator.items()}
    return {**operator, **of_the_command_line()}


def main() -> int:
    """Print each journey with its length; the exit code is 1 if one is longer than its limit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", action="store_true", help="name the files, too")
    given = parser.parse_args()
    longer = False
    for name, crossed in journeys().items():
        longer |= len(crossed) > GOALS[name]
        print(f"{name}: {len(crossed)} files, goal {GOALS[name]}")
        if given.files:
            print(*(f"  {file}" for file in sorted(crossed)), sep="\n")
    return int(longer)


if __name__ == "__main__":
    sys.exit(main())
