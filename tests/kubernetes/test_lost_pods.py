"""Events of lost pods: a list for all that a node took along, without those of their start."""

import contextlib

import pytest
from aiohttp import web
from tests.support.kubernetes.api_server import talking, until

from torchyard.kubernetes.cache import lost_pods
from torchyard.kubernetes.cache.pod_record import PodRecord
from torchyard.reconcile.observed import Pod


def record(number: int) -> PodRecord:
    name = f"job-0-{number}"
    pod = Pod(uid=f"uid-{number}", name=name, index=number, incarnation=0, phase="Failed", node="n")
    return PodRecord(uid=pod.uid, version=1, namespace="team", job_name="job", job_uid="job", pod=pod)


def event(number: int, reason: str, message: str, second: int, **more) -> dict:
    time = f"2026-11-30T10:00:{second:02}Z"
    return {
        "involvedObject": {"uid": f"uid-{number}"},
        "reason": reason,
        "message": message,
        "lastTimestamp": time,
    } | more


@pytest.fixture
def reading(tmp_path, monkeypatch):
    """Return a context in which events are read from a list, which may grow, and the selectors of each list."""
    monkeypatch.setattr(lost_pods, "SOON_SECONDS", 0.01)
    monkeypatch.setattr(lost_pods, "LATER_SECONDS", 0.01)
    monkeypatch.setattr(lost_pods, "SHARE", 0.0)

    @contextlib.asynccontextmanager
    async def read(events):
        asked = []

        async def answer(request):
            asked.append(request.query["fieldSelector"])
            return web.json_response({"metadata": {}, "items": events})

        async with talking(tmp_path, answer, monkeypatch) as api:
            changed = []
            known = lost_pods.LostPods(api, changed=lambda each: changed.append(each.uid))
            try:
                yield known, asked, changed
            finally:
                await known.close()

    return read


async def test_the_last_events_are_kept_in_order_without_those_of_the_start(reading):
    new_style = {"lastTimestamp": None, "eventTime": "2026-11-30T10:00:03.123456Z"}
    events = [
        event(0, "Killing", "Stopping\n container\x1b[31m trainer", 4, count=3),
        event(0, "Preempted", "by team/other", 0, **new_style),
        event(0, "Scheduled", "assigned", 1),
        event(1, "Killing", "of another pod", 1),
    ]
    async with reading(events) as (known, asked, changed):
        known.look(record(0))
        await until(lambda: changed)
        assert known.of("uid-0") == (
            "2026-11-30T10:00:03Z Preempted: by team/other",
            "2026-11-30T10:00:04Z Killing: Stopping container trainer (3 times)",
        )
        assert asked == ["involvedObject.uid=uid-0"]


async def test_many_pods_are_one_list_and_what_has_no_events_yet_is_read_once_more(reading):
    events = [event(number, "NodeNotReady", "Node is not ready", 1) for number in range(1, 8)]
    async with reading(events) as (known, asked, changed):
        for number in range(8):
            known.look(record(number))
        await until(lambda: len(changed) == 7)
        assert asked == ["involvedObject.kind=Pod"]
        await until(lambda: len(asked) == 2)
        assert asked[1] == "involvedObject.uid=uid-0"
        await until(lambda: not known._readers)
        assert len(asked) == 2
