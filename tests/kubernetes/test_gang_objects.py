"""Kinds of gang schedulers: discovered while the operator runs, followed, and written by their owner alone."""

import asyncio
import contextlib

import pytest
from tests.support.kubernetes.api_server import until
from tests.support.kubernetes.object_server import ObjectServer
from tests.support.reconcile.world import World

from torchyard.kubernetes.cache import gang_objects
from torchyard.kubernetes.cache.gang_objects import GangObjects
from torchyard.kubernetes.client.errors import Details, Rejected
from torchyard.kubernetes.gang_writes import GangWrites, manifest
from torchyard.reconcile.ports import Conflict, Refused, Unavailable
from torchyard.schedulers.coscheduling import NODES, Coscheduling
from torchyard.schedulers.native import KINDS, Native
from torchyard.schedulers.protocol import CreateObject, DeleteObject, PatchObject
from torchyard.schedulers.volcano import KIND as VOLCANO
from torchyard.schedulers.volcano import Volcano

JOB = World().job
NAMESPACE = JOB.metadata.namespace
PATH = f"{VOLCANO.path(NAMESPACE)}/g"
CREATE = CreateObject(kind=VOLCANO, name="g", manifest={"metadata": {"name": "g"}, "spec": {"minMember": 2}})


class Followed:
    """The cache and the writes of an operator that uses these schedulers."""

    def __init__(self, server, *schedulers):
        self.server, self.changed, self.sources = server, [], []
        self.objects = GangObjects(
            server,
            (),
            schedulers,
            changed=lambda key, _after: self.changed.append(key),
            source_changed=self.sources.append,
        )
        self.writes = GangWrites(server, self.objects)


@contextlib.asynccontextmanager
async def following(server, *schedulers):
    followed = Followed(server, *schedulers)
    task = asyncio.create_task(followed.objects.run())
    await followed.objects.discovered.wait()
    await until(
        lambda: all(followed.objects.known(each) for each in schedulers if each.name in followed.objects.served)
    )
    try:
        yield followed
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_without_schedulers_nothing_is_asked():
    server = ObjectServer()
    objects = Followed(server).objects
    await objects.run()
    assert objects.discovered.is_set()
    assert not server.calls


@pytest.mark.parametrize("served", [KINDS, KINDS[1:], ()], ids=["1.37", "1.36", "gate off"])
async def test_the_newest_served_version_is_used_whatever_the_release(served):
    async with following(ObjectServer(*served), Native()) as followed:
        assert followed.objects.served == ({"native": served[0]} if served else {})


async def test_a_scheduler_installed_later_is_used_and_one_removed_is_not(monkeypatch):
    monkeypatch.setattr(gang_objects, "REFRESH_SECONDS", 0.005)
    server = ObjectServer()
    async with following(server, Volcano()) as followed:
        server.served.add(VOLCANO)
        await until(lambda: followed.sources == ["volcano"])
        assert followed.objects.known(Volcano())
        await followed.writes.execute(JOB, CREATE)
        assert [each.name for each in followed.objects.of(JOB.metadata.uid)] == ["g"]
        server.served.clear()
        await until(lambda: not followed.objects.served)
        assert followed.objects.of(JOB.metadata.uid) == ()


async def test_an_object_belongs_to_the_job_and_is_seen_at_once():
    server = ObjectServer(VOLCANO)
    async with following(server, Volcano()) as followed:
        await followed.writes.execute(JOB, CREATE)
        (owner,) = server.objects[PATH]["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (JOB.metadata.uid, True)
        (there,) = followed.objects.of(JOB.metadata.uid)
        assert (there.name, there.at("spec", "minMember")) == ("g", 2)
        assert followed.changed == [JOB.key]
        await followed.writes.execute(JOB, CREATE)  # the answer to the first one was lost
        assert followed.objects.of(JOB.metadata.uid) == (there,)


async def test_an_object_of_another_owner_is_left_alone():
    server = ObjectServer(VOLCANO)
    async with following(server, Volcano()) as followed:
        stranger = manifest(JOB, CREATE)
        stranger["metadata"]["ownerReferences"][0]["uid"] = "another-job"
        server.put(PATH, stranger)
        with pytest.raises(Refused, match="PodGroup g does not belong to this job"):
            await followed.writes.execute(JOB, CREATE)
        assert followed.objects.of(JOB.metadata.uid) == ()


async def test_a_change_of_an_older_version_changes_nothing_and_the_newest_is_read():
    server = ObjectServer(VOLCANO)
    async with following(server, Volcano()) as followed:
        await followed.writes.execute(JOB, CREATE)
        (before,) = followed.objects.of(JOB.metadata.uid)
        newer = server.put(PATH, server.objects[PATH] | {"status": {"phase": "Running"}})
        patch = PatchObject(
            kind=VOLCANO, name="g", uid=before.uid, version=before.version,
            patch={"status": {"phase": "x"}}, why="test", subresource="status",
        )  # fmt: skip
        with pytest.raises(Conflict):
            await followed.writes.execute(JOB, patch)
        assert server.objects[PATH] == newer
        (after,) = followed.objects.of(JOB.metadata.uid)
        assert after.at("status", "phase") == "Running"


@pytest.mark.parametrize("reborn", [False, True], ids=["gone", "another of the name"])
async def test_deletion_hits_only_the_object_that_was_meant(reborn):
    server = ObjectServer(VOLCANO)
    async with following(server, Volcano()) as followed:
        await followed.writes.execute(JOB, CREATE)
        (before,) = followed.objects.of(JOB.metadata.uid)
        server.objects.pop(PATH)
        if reborn:
            server.objects[PATH] = manifest(JOB, CREATE)
            server.objects[PATH]["metadata"] |= {"uid": "other", "resourceVersion": "9999"}
        await followed.writes.execute(JOB, DeleteObject(kind=VOLCANO, name="g", uid=before.uid, why="test"))
        assert [each.uid for each in followed.objects.of(JOB.metadata.uid)] == (["other"] if reborn else [])
        assert (PATH in server.objects) == reborn


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Rejected(422, "Invalid", "spec.minMember: Invalid value: 0", Details()), "SchedulerRejected"),
        (Rejected(403, "Forbidden", 'cannot create resource "podgroups" in API group "x"', Details()), "Forbidden"),
        (Unavailable('500 failed calling webhook "validatepodgroup.volcano.sh": refused'), "WebhookUnavailable"),
    ],
)  # fmt: skip
async def test_a_rejection_has_a_reason_that_never_ends_the_job(error, reason):
    server = ObjectServer(VOLCANO)
    async with following(server, Volcano()) as followed:
        server.errors["POST"] = [error]
        with pytest.raises(Refused) as caught:
            await followed.writes.execute(JOB, CREATE)
        assert (caught.value.reason, caught.value.permanent) == (reason, False)


async def test_nodes_are_news_only_if_pods_might_fit_differently():
    server = ObjectServer(Coscheduling.kinds[0], NODES)
    node = {
        "metadata": {"name": "n", "uid": "n"},
        "status": {"allocatable": {"cpu": "4"}, "conditions": [{"type": "Ready"}]},
    }
    server.put("/api/v1/nodes/n", node)
    async with following(server, Coscheduling()) as followed:
        await until(lambda: followed.sources == ["coscheduling"] * 2)  # it is usable, and the first node is known
        server.put("/api/v1/nodes/n", node | {"status": {"allocatable": {"cpu": "4"}, "conditions": []}})
        server.put("/api/v1/nodes/m", node | {"metadata": {"name": "m", "uid": "m"}})
        await until(lambda: len(followed.objects.sources(Coscheduling(), NAMESPACE)["nodes"]) == 2)
        assert followed.sources == ["coscheduling"] * 3
