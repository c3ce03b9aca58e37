"""The real agent and the real intake over HTTPS: tokens and authorities rotate, operators come and go."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trustme
from tests.support.waiting import DEADLINE

from torchyard.agents.http import tls
from torchyard.agents.registry import AgentRegistry
from torchyard.agents.server import Intake, application
from torchyard.local.zipapp import agent_zipapp
from torchyard.reconcile.actions import CommandAgent

pytestmark = pytest.mark.e2e

UID = "pod-uid"

TRAINING = """
import json, os, sys, time
run, round_ = os.environ["TORCHYARD_RUN_DIR"], int(os.environ["TORCHYARD_ROUND"])
with open(run + "/starts", "a") as file:
    file.write(f"{round_}\\n")
step = 0
while not os.path.exists(run + "/enough"):
    step += 1
    with open(run + "/report.0.json.new", "w") as file:
        json.dump({"round": round_, "rank": 0, "pid": os.getpid(), "step": step, "phase": "step"}, file)
    os.replace(run + "/report.0.json.new", run + "/report.0.json")
    time.sleep(0.02)
sys.exit(3)
"""


@pytest.fixture(scope="module")
def zipapp(tmp_path_factory):
    return agent_zipapp(tmp_path_factory.mktemp("cache"))


class World:
    """An operator that comes and goes, always with an empty registry, and one agent."""

    def __init__(self, folder, zipapp) -> None:
        self.folder, self.zipapp, self.port = folder, zipapp, 0
        self.tokens, self.leading = {"first"}, True
        (folder / "token").write_text("first\n")
        self.authority = trustme.CA()
        self.publish()
        self.certify()

    def publish(self) -> None:
        """Write the authority that the agent trusts, as the kubelet does when the annotation changes."""
        self.authority.cert_pem.write_to_path(self.folder / "ca.new")
        (self.folder / "ca.new").rename(self.folder / "ca.crt")

    def certify(self) -> None:
        leaf = self.authority.issue_cert("127.0.0.1")
        leaf.private_key_pem.write_to_path(self.folder / "tls.key")
        leaf.cert_chain_pems[0].write_to_path(self.folder / "tls.crt")

    @contextlib.asynccontextmanager
    async def operator(self):
        self.registry = AgentRegistry(time.time, interval=0.5, on_news=lambda _uid: None)
        app = application(self.registry, self.authenticate, serving=lambda: self.leading)
        async with Intake(app, port=self.port, tls=tls.server_context(self.folder)) as intake:
            self.intake, self.port = intake, intake.port
            yield

    async def authenticate(self, token):
        return UID if token in self.tokens else None

    def start(self):
        (self.folder / "train.py").write_text(TRAINING)
        names = {
            "JOB": "job",
            "NAMESPACE": "default",
            "JOB_UID": "job-uid",
            "POD_NAME": "job-0-0",
            "POD_INDEX": "0",
            "OPERATOR_URL": f"https://127.0.0.1:{self.port}",
            "TOKEN_FILE": str(self.folder / "token"),
            "CA_FILE": str(self.folder / "ca.crt"),
            "RUN_DIR": str(self.folder / "run"),
            "PROCS": "1",
        }
        env = {**os.environ, **{f"TORCHYARD_{name}": value for name, value in names.items()}}
        command = [sys.executable, str(self.zipapp), "--", sys.executable, str(self.folder / "train.py")]
        self.process = subprocess.Popen(command, env=env, start_new_session=True, stderr=subprocess.DEVNULL)

    async def train(self, round_):
        await self.see(lambda agent: agent.state == "ready")
        fields = {"nodes": 1, "master_address": "127.0.0.1", "master_port": self.agent.master_port, "procs": 1}
        self.registry.command(CommandAgent(pod_uid=UID, verb="run", round=round_, **fields))
        return await self.see(lambda agent: agent.reports)

    @property
    def agent(self):
        return self.registry.of([UID]).get(UID)

    @property
    def starts(self):
        return (self.folder / "run" / "starts").read_text().split()

    @property
    def report(self):
        return json.loads((self.folder / "run" / "report.0.json").read_bytes())

    @property
    def step(self):
        return self.report["step"]

    async def see(self, condition):
        await until(lambda: self.agent and condition(self.agent))
        return self.agent


async def until(condition):
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110 - another process makes it true
            await asyncio.sleep(0.01)


@pytest.fixture
async def world(tmp_path, zipapp):
    world = World(tmp_path, zipapp)
    yield world
    with contextlib.suppress(ProcessLookupError):
        os.killpg(world.process.pid, signal.SIGKILL)
    world.process.wait()


async def test_the_operator_may_be_away_while_a_round_trains_and_the_next_one_adopts_it(world):
    async with world.operator():
        world.start()
        before = await world.train(4)
    away = world.step
    await until(lambda: world.step > away + 50)
    async with world.operator():
        after = await world.see(lambda agent: agent.reports)
        assert (after.instance, after.round, after.state) == (before.instance, 4, "running")
        assert after.reports[0].step > away
        world.registry.command(
            CommandAgent(pod_uid=UID, verb="run", round=4, nodes=1, master_address="127.0.0.1", master_port=1, procs=1)
        )
        await world.see(lambda agent: agent.reports[0].step > after.reports[0].step + 50)
        assert world.starts == ["4"], "nothing was started again"


async def test_what_happens_while_the_operator_is_away_is_reported_when_it_is_back(world):
    async with world.operator():
        world.start()
        await world.train(4)
    worker = world.report["pid"]
    (world.folder / "run" / "enough").touch()
    await until(lambda: not Path(f"/proc/{worker}").exists())
    async with world.operator():
        agent = await world.see(lambda agent: agent.exit)
        assert (agent.exit.round, agent.exit.code, agent.state) == (4, 3, "ready")
        assert world.starts == ["4"]


async def test_authorities_change_under_a_running_agent_and_an_untrusted_operator_receives_nothing(world):
    async with world.operator():
        world.start()
        before = await world.train(2)
    world.authority = trustme.CA()
    world.certify()
    async with world.operator():
        away = world.step
        await until(lambda: world.step > away + 100)
        assert world.agent is None
        assert world.registry.counters.refused == 0, "not even a token"
        world.publish()
        after = await world.see(lambda agent: agent.reports)
        assert (after.instance, after.round) == (before.instance, 2)
        assert world.starts == ["2"]


async def test_a_token_that_was_replaced_is_read_for_the_next_connection(world):
    async with world.operator():
        world.start()
        await world.train(1)
        (world.folder / "token").write_text("second")
        world.tokens = {"second"}
        refused = world.registry.counters.refused
        await world.see(lambda agent: world.registry.counters.refused > refused)
        seen = world.agent.seen
        await world.see(lambda agent: agent.seen > seen)
        assert world.starts == ["1"]


async def test_an_agent_that_is_sent_elsewhere_comes_back_until_it_finds_who_leads(world):
    world.leading = False
    async with world.operator():
        world.start()
        await until(lambda: world.registry.counters.elsewhere >= 3)
        assert world.agent is None
        world.leading = True
        await world.train(1)
        world.leading = False
        world.intake.dismiss()
        world.registry.clear()
        away, counted = world.step, world.registry.counters.elsewhere
        await until(lambda: world.registry.counters.elsewhere > counted and world.step > away + 20)
        world.leading = True
        agent = await world.see(lambda agent: agent.reports)
        assert (agent.round, agent.state, world.starts) == (1, "running", ["1"])
