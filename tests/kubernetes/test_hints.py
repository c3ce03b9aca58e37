"""What is asked of the API server about pods that make no headway: enough to say why, however many there are."""

import contextlib
import itertools
from collections import Counter

import pytest
from aiohttp import web
from tests.support.kubernetes.api_server import talking, until
from tests.support.kubernetes.pod_json import container, pod, text
from tests.support.kubernetes.pod_json import placed as on_node

from torchyard.kubernetes.cache import kubelet_events, nodes
from torchyard.kubernetes.cache import pods as kube_pods
from torchyard.kubernetes.cache.pod_record import PodRecord
from torchyard.reconcile.observed import Pod

NO_SECRET = 'MountVolume.SetUp failed for volume "x" : secret "token" not found'


def placed(job, number):
    pod = Pod(uid=f"{job}-{number}", name=f"{job}-0-{number}", index=number, incarnation=0, phase="Pending", node="n")
    return PodRecord(uid=pod.uid, version=1, namespace="team", job_name=job, job_uid=job, pod=pod, bound=1.0)


def warning(uid, message, time):
    return {
        "metadata": {"name": uid, "resourceVersion": "1"},
        "involvedObject": {"kind": "Pod", "uid": uid},
        "reason": "FailedMount",
        "message": message,
        "lastTimestamp": f"2026-11-21T10:00:{time:02}Z",
    }


@pytest.fixture
def asked():
    return Counter()


@pytest.fixture
def talk(tmp_path, monkeypatch):
    return lambda answer: talking(tmp_path, answer, monkeypatch)


@contextlib.asynccontextmanager
async def closing(one):
    try:
        yield
    finally:
        await one.close()


async def test_one_list_explains_all_jobs_of_a_namespace_whose_pods_do_not_start(talk, asked, monkeypatch):
    monkeypatch.setattr(kubelet_events, "SOON_SECONDS", 0.01)
    monkeypatch.setattr(kubelet_events, "SHARE", 0.0)
    pods = [placed(job, number) for job in ("one", "two", "three") for number in range(8)]
    events = [warning("one-3", "busy", 1), warning("one-3", NO_SECRET, 2), warning("other", "busy", 3)]

    async def answer(request):
        asked[request.path] += 1
        assert "type=Warning" in request.query["fieldSelector"]
        return web.json_response({"metadata": {}, "items": events})

    told = []
    async with talk(answer) as api:
        known = kubelet_events.KubeletEvents(
            api, pods=lambda _namespace: pods, changed=lambda facts: told.append(facts.job_name)
        )
        async with closing(known):
            for facts in pods:
                known.look(facts)
            await until(lambda: told)
            assert known.why("one") == ("MissingSecret", "token")
            assert known.why("two") == ("", "")
            assert sum(asked.values()) == 1

            # A job that gets stuck later does not wait for the next turn; one that starts is forgotten.
            events.append(warning("four-0", NO_SECRET, 4))
            pods[:] = [placed("four", 0)]
            known.look(pods[0])
            await until(lambda: known.why("four") == ("MissingSecret", "token"))
            assert known.why("one") == ("", "")


async def test_a_node_that_is_well_is_read_less_and_less_often_and_at_once_when_it_is_marked(talk, asked, monkeypatch):
    monkeypatch.setattr(nodes, "LOOK_SECONDS", 0.01)
    ready, marked = "True", False

    async def answer(request):
        asked[request.path] += 1
        return web.json_response(
            {"metadata": {"name": "n"}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}
        )

    changed = []
    async with talk(answer) as api:
        known = nodes.Nodes(api, suspicion=lambda _name: marked, changed=changed.append, measured=lambda: None)
        async with closing(known):
            known.look("n")
            await until(lambda: asked["/api/v1/nodes/n"] == 3)
            monkeypatch.setattr(nodes, "SLOWEST_SECONDS", 3600.0)
            monkeypatch.setattr(nodes, "LOOK_SECONDS", 1000.0)
            await until(lambda: asked["/api/v1/nodes/n"] > 3)
            ready, marked = "False", True
            await until(lambda: known.look("n") or changed)
            assert changed == ["n"]
            assert "n" in known.lost


async def test_nodes_that_could_not_be_read_are_read_again_although_nothing_else_happens(talk, asked, monkeypatch):
    monkeypatch.setattr(nodes, "ALL_SECONDS", 0.01)

    async def answer(request):
        asked[request.path] += 1
        failed = asked[request.path] < 3
        return web.json_response(
            {"metadata": {}, "items": [{"metadata": {"name": "n"}}]}, status=503 if failed else 200
        )

    measured = []
    async with talk(answer) as api:
        known = nodes.Nodes(
            api, suspicion=lambda _name: None, changed=lambda _name: None, measured=lambda: measured.append(known.known)
        )
        async with closing(known):
            assert known.measure()
            await until(lambda: known.known)
            assert [len(each) for each in measured] == [0, 0, 1]


async def test_a_node_that_starts_other_pods_is_busy_and_not_read_before_it_starts_none(talk, monkeypatch):
    monkeypatch.setattr(kube_pods, "BUSY_SECONDS", 1.0)  # longer than a busy machine takes for the lines below
    monkeypatch.setattr(nodes, "LOOK_SECONDS", 1000.0)
    read = []

    async def answer(request):
        if request.path.startswith(nodes.PATH):
            read.append(request.path.rpartition("/")[2])
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        return web.json_response({"metadata": {}, "items": [], **ready})

    def tell(number, node, status):
        meta = {"uid": f"uid-{number}", "name": f"cvrp-0-{number}", "resourceVersion": str(next(versions))}
        known.put("team", text(pod(metadata=meta, spec={"nodeName": node}, status=status)))

    versions = itertools.count(1)
    running = on_node(container("running", startedAt="2026-11-21T10:00:05Z"), phase="Running")
    async with talk(answer) as api:
        known = kube_pods.Pods(
            api, (), made=lambda _pod: True, changed=lambda _key, _after: None, gone=lambda _uid: None
        )
        tell(0, "busy", {})
        tell(0, "busy", running)
        tell(1, "busy", on_node())
        tell(2, "idle", on_node())
        await until(lambda: len(read) == 2)
        assert read == ["idle", "busy"]
        await known._nodes.close()
        await known._stuck.close()
