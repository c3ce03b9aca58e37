"""The real agent zipapp against the real intake: what docs/protocol.md promises, seen from the operator's side."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time

import pytest
from tests.support.waiting import DEADLINE

from torchyard.agents.registry import AgentRegistry
from torchyard.agents.server import Intake, application, unix_intake
from torchyard.local.zipapp import agent_zipapp
from torchyard.reconcile.actions import CommandAgent

pytestmark = pytest.mark.e2e

UID = "pod-uid"


@pytest.fixture(scope="module")
def zipapp(tmp_path_factory):
    return agent_zipapp(tmp_path_factory.mktemp("cache"))


async def authenticate(token):
    return UID if token == "secret" else None


class Operator:
    """An intake that may be away for a while, with a new registry every time it comes back."""

    def __init__(self, path=None):
        self.path = path
        self.port = 0

    @contextlib.asynccontextmanager
    async def listening(self):
        self.news = 0
        self.registry = AgentRegistry(time.time, interval=0.5, on_news=self._count)
        app = application(self.registry, authenticate)
        if self.path is not None:
            async with unix_intake(app, self.path) as self.url:
                yield self.registry
            return
        async with Intake(app, port=self.port) as intake:
            self.port, self.url = intake.port, intake.url
            yield self.registry

    def _count(self, _uid):
        self.news += 1

    @property
    def agent(self):
        return self.registry.of([UID]).get(UID)

    def command(self, verb, **fields):
        if verb == "run":
            fields = {
                "nodes": 1,
                "master_address": "127.0.0.1",
                "master_port": self.agent.master_port,
                "procs": 1,
            } | fields
        self.registry.command(CommandAgent(pod_uid=UID, verb=verb, **fields))

    async def see(self, condition, seconds=DEADLINE):
        async with asyncio.timeout(seconds):
            while not (self.agent and condition(self.agent)):  # noqa: ASYNC110 - another process makes it true
                await asyncio.sleep(0.01)
        return self.agent


@pytest.fixture(params=["tcp", "unix"])
def operator(request, tmp_path):
    return Operator(tmp_path / "intake.sock" if request.param == "unix" else None)


@pytest.fixture
def start(tmp_path, zipapp):
    started = []

    def agent(operator, *command):
        (tmp_path / "token").write_text("secret\n")
        env = {
            **os.environ,
            "TORCHYARD_JOB": "job",
            "TORCHYARD_NAMESPACE": "default",
            "TORCHYARD_JOB_UID": "job-uid",
            "TORCHYARD_POD_NAME": "job-0-0",
            "TORCHYARD_POD_INDEX": "0",
            "TORCHYARD_OPERATOR_URL": operator.url,
            "TORCHYARD_TOKEN_FILE": str(tmp_path / "token"),
            "TORCHYARD_RUN_DIR": str(tmp_path / "run"),
            "TORCHYARD_POD_ADDRESS": "127.0.0.5",
            "TORCHYARD_GRACE_SECONDS": "6",
            "TORCHYARD_PROCS": "1",
        }
        process = subprocess.Popen([sys.executable, str(zipapp), "--", *command], env=env, start_new_session=True)
        started.append(process)
        return process

    yield agent
    for process in started:
        process.kill()
        process.wait()


def script(text):
    return [sys.executable, "-c", text]


REPORTING = """
import json, os, time
for step in range(1, 100000):
    path = os.environ["TORCHYARD_RUN_DIR"] + "/report.0.json"
    with open(path + ".new", "w") as file:
        json.dump({"round": int(os.environ["TORCHYARD_ROUND"]), "rank": 0, "step": step, "phase": "step",
                   "metrics": {"loss": 0.5, "broken": float("nan")}}, file)
    os.replace(path + ".new", path)
    time.sleep(0.05)
"""


async def test_state_goes_up_commands_come_down_and_the_exit_is_reported(start, operator):
    async with operator.listening():
        process = start(operator, *script(REPORTING))
        agent = await operator.see(lambda agent: agent.state == "ready")
        assert (agent.address, agent.round, agent.procs) == ("127.0.0.5", 0, 1)
        assert 0 < agent.master_port < 65536

        operator.command("run", round=3)
        agent = await operator.see(lambda agent: agent.reports and agent.reports[0].step > 0)
        assert (agent.state, agent.round) == ("running", 3)
        assert agent.reports[0].round == 3
        assert agent.reports[0].metrics == {"loss": 0.5}, "a figure that is not finite costs the pod nothing but itself"

        operator.command("stop", round=3)
        agent = await operator.see(lambda agent: agent.exit and agent.state == "ready")
        assert (agent.exit.round, agent.exit.asked, agent.exit.saved) == (3, True, False)

        operator.command("exit", code=75)
        assert await asyncio.to_thread(process.wait, 30) == 75
        assert operator.registry.counters.malformed == 0
        assert operator.registry.counters.refused == 0


async def test_training_continues_while_the_operator_restarts_and_the_agent_reconnects(start, operator):
    async with operator.listening():
        start(operator, *script(REPORTING))
        await operator.see(lambda agent: agent.state == "ready")
        operator.command("run", round=2)
        before = await operator.see(lambda agent: agent.reports)
    async with operator.listening():
        after = await operator.see(lambda agent: agent.reports)
        assert (after.instance, after.round, after.state) == (before.instance, 2, "running")
        assert after.reports[0].step >= before.reports[0].step, "the round was not started again"
        operator.command("run", round=2, master_port=1)
        operator.command("stop", round=1)
        await operator.see(lambda agent: agent.reports[0].step > after.reports[0].step + 10)
        assert operator.agent.exit is None, "commands for rounds that are over or under way change nothing"
        operator.command("stop", round=2)
        agent = await operator.see(lambda agent: agent.exit)
        assert agent.exit.round == 2


async def test_a_failing_worker_is_reported_with_rank_code_exception_and_last_lines(start, operator):
    async with operator.listening():
        start(operator, *script("print('almost there'); raise RuntimeError('step 7 \\x1b[31mbroke')"))
        await operator.see(lambda agent: agent.state == "ready")
        operator.command("run", round=1)
        agent = await operator.see(lambda agent: agent.exit)
        assert agent.exit.code == 1
        assert not agent.exit.asked
        assert agent.exit.failure.rank == 0
        assert agent.exit.failure.exception == "RuntimeError"
        assert "step 7" in agent.exit.failure.message
        assert "\x1b" not in json.dumps([agent.exit.failure.message, *agent.exit.lines], ensure_ascii=False)
        assert any("almost there" in line for line in agent.exit.lines)
