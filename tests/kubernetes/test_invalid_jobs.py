"""An object that cannot be run says why, and nothing that its status holds is lost."""

import asyncio
import json

import pytest

from torchyard.api.validation.parse import InvalidJob
from torchyard.kubernetes.cache.jobs import Jobs
from torchyard.kubernetes.invalid_jobs import InvalidJobs

NOW = 1795000000.0
SPEC = {"trainer": {"name": "cvrp"}}
# As another version of us wrote it: a state and fields that this one does not know, and what a next round goes on from.
STATUS = {
    "state": "Paused",
    "round": 7,
    "restarts": {"total": 3, "counted": 2, "noProgress": 0, "bestStep": 90},
    "rendezvous": {"open": True, "members": ["u-1"], "epoch": 4},
    "forecast": {"hours": 3},
    "conditions": [{"type": "Running", "status": "True", "reason": "Training"}],
}


class Server:
    """The API server as far as one object needs it."""

    def __init__(self, **document):
        self.document = {"metadata": {"name": "a", "uid": "u", "resourceVersion": "1"}, **document}
        self.writes = 0

    async def request(self, method, path, *, body=None, **_):
        if method == "PUT":
            assert path.endswith("/trainingjobs/a/status")
            assert body["metadata"]["resourceVersion"] == self.document["metadata"]["resourceVersion"]
            self.writes += 1
            meta = {**self.document["metadata"], "resourceVersion": str(1 + self.writes)}
            self.document = {**self.document, "metadata": meta, "status": body["status"]}
        return json.dumps(self.document).encode()


async def told(server, times=1):
    """Deliver its event, and another one for each write of ours."""
    jobs = Jobs()
    running = asyncio.create_task(InvalidJobs(server, jobs, clock=lambda: NOW + server.writes).run())
    for _ in range(times):
        jobs.record("MODIFIED", server.document)
        (key,) = jobs.keys()
        assert isinstance(jobs.find(key), InvalidJob)
        for _ in range(20):
            await asyncio.sleep(0)
    running.cancel()
    return server.document["status"]


async def test_a_status_of_another_version_is_kept_but_for_what_stalls_the_job():
    server = Server(spec=SPEC, status=STATUS)
    status = await told(server, times=3)
    assert server.writes == 1, "its own write is no news"
    kept = ("state", "round", "restarts", "rendezvous", "forecast")
    assert {name: status[name] for name in kept} == {name: STATUS[name] for name in kept}
    running, reconciling, stalled = status["conditions"]
    assert running == STATUS["conditions"][0]
    assert (reconciling["type"], reconciling["status"]) == ("Reconciling", "False")
    assert (stalled["type"], stalled["status"], stalled["reason"]) == ("Stalled", "True", "UnreadableStatus")
    assert "`$.status.state`" in status["message"]
    assert "kubectl edit --subresource=status" in status["message"]
    assert status["lastUpdateTime"]


async def test_the_status_of_a_job_of_another_controller_is_left_alone():
    server = Server(spec=SPEC | {"managedBy": "kueue.x-k8s.io/multikueue"}, status=STATUS)
    assert await told(server) == STATUS
    assert server.writes == 0


@pytest.mark.parametrize("status", ["x", {"conditions": ["x", {}, 3]}, {"conditions": "x"}])
async def test_a_status_that_is_not_an_object_stops_no_other_job(status):
    told_of = await told(Server(spec=SPEC, status=status))
    assert [each["reason"] for each in told_of["conditions"] if each.get("type") == "Stalled"] == ["UnreadableStatus"]


async def test_a_spec_that_breaks_a_rule_gets_every_condition_and_one_event():
    server = Server(spec={"trainer": {"name": "cvrp"}, "args": ["x"]})
    status = await told(server, times=3)
    assert server.writes == 1
    assert (status["state"], status["reason"], len(status["conditions"])) == ("Pending", "InvalidSpec", 12)
    assert status["message"].count("spec.args") == 1


async def test_an_object_that_is_gone_is_forgotten():
    server, jobs = Server(spec=SPEC), Jobs()
    for kind in ("ADDED", "DELETED"):
        jobs.record(kind, server.document)
    running = asyncio.create_task(InvalidJobs(server, jobs).run())
    for _ in range(20):
        await asyncio.sleep(0)
    running.cancel()
    assert server.writes == 0
