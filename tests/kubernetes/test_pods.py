"""What the plan is shown of pods that vanish: a round must be able to say which pod it lost, and where it was."""

import asyncio
import contextlib

import pytest
from aiohttp import web
from tests.support.kubernetes.api_server import refused, talking, until
from tests.support.kubernetes.pod_json import container, ended, placed, pod, text
from tests.support.waiting import DEADLINE

from torchyard.kubernetes.cache import orphans
from torchyard.kubernetes.cache import pods as kube_pods

RUNNING = placed(container("running", startedAt="2026-11-21T10:00:05Z"), phase="Running")
EVICTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API"}


@pytest.fixture
def news():
    return []


@pytest.fixture
def known(news):
    return kube_pods.Pods(
        None, (), made=lambda _pod: True, changed=lambda *each: news.append(each), gone=news.append, clock=lambda: 100.0
    )


def appear(known, **changes):
    """A pod is seen; its uid."""
    document = pod(**changes)
    known.put("team", text(document))
    return document["metadata"]["uid"]


@pytest.mark.parametrize(
    ("conditions", "reason"), [([], "PodLost"), ([EVICTED], "Evicted")], ids=["by force", "by an eviction"]
)
async def test_a_pod_that_vanished_is_shown_as_lost_with_its_name_and_node(known, news, conditions, reason):
    uid = appear(known, spec={"nodeName": "node-7"}, status=RUNNING | {"conditions": conditions})
    known.forget(uid)
    (lost,) = known.of("job-uid")
    assert (lost.name, lost.node, lost.alive, lost.deleting) == ("cvrp-0-1", "node-7", False, True)
    assert (lost.reason, lost.finished) == (reason, 100.0)
    assert news[-2:] == [uid, (("team", "cvrp"), 0.0)]
    assert len(known) == 0


async def test_news_of_a_pod_that_starts_may_wait_for_its_like_and_of_one_that_fails_may_not(known, news):
    for number in range(8):
        appear(known, metadata={"name": f"cvrp-0-{number}", "uid": f"pod-{number}"}, status={"phase": "Pending"})
    assert news == [(("team", "cvrp"), kube_pods.SOON_SECONDS)] * 8
    failed = {"uid": "pod-3", "resourceVersion": "9999"}
    appear(known, metadata=failed, status=placed(container("terminated", exitCode=1), phase="Failed"))
    assert news[8:] == [(("team", "cvrp"), 0.0)]


async def test_it_is_not_kept_forever(known, monkeypatch):
    monkeypatch.setattr(kube_pods, "VANISHED_SECONDS", 0.01)
    known.forget(appear(known, spec={"nodeName": "node-7"}, status=RUNNING))
    async with asyncio.timeout(DEADLINE):
        while known.of("job-uid"):  # noqa: ASYNC110 -- nobody is told of it
            await asyncio.sleep(0.01)


async def test_a_pod_that_failed_is_still_shown_as_it_ended(known):
    known.forget(appear(known, spec={"nodeName": "node-7"}, status=ended(143)))
    (gone,) = known.of("job-uid")
    assert (gone.name, gone.node, gone.phase, gone.deleting, gone.exit_code) == (
        "cvrp-0-1",
        "node-7",
        "Failed",
        True,
        143,
    )


async def test_a_pod_that_was_done_leaves_nothing(known):
    known.forget(appear(known, status={"phase": "Succeeded"}))
    assert known.of("job-uid") == ()


class Held:
    """What an API server has of one pod and of its job, and what it was asked to do with the pod."""

    def __init__(self, document, job=None):
        self.document, self.job, self.asked = document, job, []

    async def answer(self, request):
        if "/trainingjobs/" in request.path:
            gone = refused(404, "NotFound", details={"name": "cvrp", "kind": "trainingjobs"})
            return gone if self.job is None else web.json_response({"metadata": {"name": "cvrp"} | self.job})
        self.asked.append((request.method, await request.json() if request.method == "DELETE" else None))
        if self.document is None:
            return refused(404, "NotFound", details={"name": "cvrp-0-1", "kind": "pods"})
        if request.method == "DELETE":
            self.document["metadata"]["deletionTimestamp"] = "2026-11-21T10:09:00Z"
        return web.json_response(self.document)


async def vanishes(api, document, news):
    """A watch says that a pod is gone that ran a moment ago."""
    known = kube_pods.Pods(
        api, (), made=lambda _pod: True, changed=lambda *each: news.append(each), gone=news.append, clock=lambda: 100.0
    )
    known.put("team", text(document))
    del news[:]
    known._informer("team").bury(document["metadata"]["uid"])
    return known


@pytest.mark.parametrize(
    ("there", "why"),
    [({}, orphans.UNLABELLED), ({"ownerReferences": []}, orphans.DISOWNED)],
    ids=["its label", "its owner"],
)
async def test_a_pod_that_was_only_edited_is_deleted_and_in_the_way_until_it_is_gone(
    there, why, news, tmp_path, monkeypatch
):
    monkeypatch.setattr(orphans, "LOOK_SECONDS", 0.01)
    document = pod(spec={"nodeName": "node-7"}, status=RUNNING)
    held = Held(document | {"metadata": document["metadata"] | there}, {"uid": "job-uid"})
    async with talking(tmp_path, held.answer, monkeypatch) as api:
        known = await vanishes(api, document, news)
        (going,) = known.of("job-uid")
        assert (going.alive, going.deleting, going.unconfirmed) == (True, True, True)
        await until(lambda: len(held.asked) > 4)
        (going,) = known.of("job-uid")
        assert (going.alive, going.reason, going.message) == (True, "PodLost", why)
        assert (going.deleting, going.unconfirmed) == (True, False)
        deletions = [body for verb, body in held.asked if verb == "DELETE"]
        assert [each["preconditions"] for each in deletions] == [{"uid": document["metadata"]["uid"]}], "once"
        held.document = None
        await until(lambda: not known.of("job-uid")[0].alive)
    (lost,) = known.of("job-uid")
    assert (lost.reason, lost.message, lost.node) == ("PodLost", why, "node-7")
    assert news[-1] == (("team", "cvrp"), 0.0)


@pytest.mark.parametrize(
    "there",
    [None, {"uid": "another"}, {"ownerReferences": []}],
    ids=["by force", "and another has its name", "and has no owner now"],
)
@pytest.mark.parametrize(
    "job",
    [None, {"uid": "another"}, {"uid": "job-uid", "deletionTimestamp": "2026-11-21T10:09:00Z"}],
    ids=["no job", "another job", "a job that is being deleted"],
)
async def test_a_pod_that_is_gone_or_no_longer_its_jobs_is_lost_at_once(there, job, news, tmp_path, monkeypatch):
    document = pod(spec={"nodeName": "node-7"}, status=RUNNING)
    held = Held(None if there is None else document | {"metadata": document["metadata"] | there}, job)
    async with talking(tmp_path, held.answer, monkeypatch) as api:
        known = await vanishes(api, document, news)
        await until(lambda: not known.of("job-uid")[0].alive)
    assert known.of("job-uid")[0].message == "its pod no longer exists"
    assert [verb for verb, _ in held.asked] == ["GET"]


async def test_a_pod_that_may_not_be_deleted_now_is_asked_for_again(news, tmp_path, monkeypatch):
    monkeypatch.setattr(orphans, "LOOK_SECONDS", 0.01)
    held = Held(pod(spec={"nodeName": "node-7"}, status=RUNNING))
    conflicts = iter(range(2))

    async def answer(request):
        if request.method == "DELETE" and next(conflicts, None) is not None:
            return refused(409, "Conflict", "the object has been modified")
        return await held.answer(request)

    async with talking(tmp_path, answer, monkeypatch) as api:
        known = await vanishes(api, pod(spec={"nodeName": "node-7"}, status=RUNNING), news)
        await until(lambda: "DELETE" in [verb for verb, _ in held.asked])
        (going,) = known.of("job-uid")
        assert (going.alive, going.deleting) == (True, True)


async def test_among_the_pods_of_others_only_those_of_jobs_are_asked_for(tmp_path, monkeypatch):
    """However many others a namespace holds, they cost no memory and no traffic."""
    asked = []

    async def answer(request):
        asked.append(("watch" in request.query, request.query.get("labelSelector")))
        if "watch" in request.query:
            await asyncio.Event().wait()
        return web.json_response({"metadata": {"resourceVersion": "7"}, "items": []})

    async with talking(tmp_path, answer, monkeypatch) as api:
        pods = kube_pods.Pods(api, ("team",), made=lambda _pod: True, changed=lambda *_: None, gone=lambda _: None)
        following = asyncio.create_task(pods.run())
        await until(lambda: any(watched for watched, _ in asked))
        await pods.sweep()
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
    assert {watched for watched, _ in asked} == {True, False}
    assert {selector for _, selector in asked} == {"torchyard.dev/job-uid"}
