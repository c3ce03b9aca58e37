"""Whether the operator should be restarted: both of its event loops have to turn, the probes' own and kopf's."""

import asyncio
import json
import threading

import pytest
from aiohttp.test_utils import TestClient, TestServer
from tests.support.waiting import DEADLINE

from torchyard.app import job_watch
from torchyard.app.job_watch import JobWatch
from torchyard.app.probes import Readiness, application


class Api:
    """Knows TrainingJobs, and TrainingSweeps once they are installed."""

    sweeps = False

    async def request(self, _verb, _path):
        names = ["trainingjobs", *(["trainingsweeps"] if self.sweeps else [])]
        return json.dumps({"resources": [{"name": name} for name in names]}).encode()


class Watch(JobWatch):
    """Its kopf only waits, with its loop blocked as long as the test likes."""

    def __init__(self):
        ignored = {"heard": lambda *_: None, "heard_sweep": lambda *_: None, "missing": lambda _why: None}
        super().__init__(Api(), None, (), **ignored)
        self.watched = []
        self.begun, self.block, self.blocked, self.go_on = (threading.Event() for _ in range(4))

    async def _watch(self, _tell, stop):
        self.watched.append(list(self._served))
        self.begun.set()
        while not stop.is_set():
            await asyncio.sleep(0)
            if self.block.is_set():
                self.blocked.set()
                self.go_on.wait(DEADLINE)
                self.block.clear()


@pytest.fixture
async def watch():
    found = Watch()
    task = asyncio.create_task(found.run())
    await asyncio.to_thread(found.begun.wait)
    yield found
    found.go_on.set()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def health(watch):
    async with TestClient(TestServer(application(Readiness({}), watch.stuck))) as client:

        async def look():
            async with client.get("/healthz") as answer:
                return answer.status, (await answer.text()).strip()

        yield look


async def test_a_loop_of_kopfs_that_no_longer_turns_fails_the_probe_until_it_turns_again(watch, health, monkeypatch):
    monkeypatch.setattr(job_watch, "TURN_SECONDS", 600.0)
    assert await health() == (200, "ok")
    monkeypatch.setattr(job_watch, "TURN_SECONDS", 0.2)
    watch.block.set()
    await asyncio.to_thread(watch.blocked.wait)
    assert await health() == (503, "kopf: its event loop has not turned for 0 s")
    watch.go_on.set()
    while (await health())[0] != 200:
        pass


async def test_before_kopf_runs_nothing_is_stuck():
    assert await Watch().stuck() == ""


async def test_sweeps_are_watched_once_an_upgrade_has_brought_them(monkeypatch):
    monkeypatch.setattr(job_watch, "SWEEPS_SECONDS", 0.0)
    watch = Watch()
    task = asyncio.create_task(watch.run())
    await asyncio.to_thread(watch.begun.wait)
    watch.begun.clear()
    watch._api.sweeps = True
    await asyncio.to_thread(watch.begun.wait)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert watch.watched == [["trainingjobs"], ["trainingjobs", "trainingsweeps"]]
