"""Which demand keeps a pod off every node, in the names that the scheduler only counts, and how much room there is."""

import itertools

import msgspec
import pytest
from aiohttp import web
from tests.support.kube.api_server import talking, until
from tests.support.kube.pod_json import pod, text, unplaced

from torchyard.cluster.kube import pods as kube_pods
from torchyard.cluster.kube.manifest import names
from torchyard.cluster.kube.objects import Node
from torchyard.cluster.kube.why import placement
from torchyard.cluster.kube.why.placement import Demands

CONTROL = [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]
AWAY = [
    {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"},
    {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"},
]
FULL = [{"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}]
TEAM = [{"key": "team", "value": "vision", "effect": "NoSchedule"}]


def node(name, taints=(), *, cordoned=False, **allocatable):
    return {
        "metadata": {"name": name},
        "spec": {"taints": list(taints), "unschedulable": cordoned},
        "status": {"allocatable": allocatable},
    }


@pytest.mark.parametrize(
    ("nodes", "reason", "evidence"),
    [
        ([node("a", TEAM), node("c", CONTROL)], "Untolerated", "team=vision"),
        ([node("a", AWAY), node("b", FULL), node("c", CONTROL)], "NodesNotReady", "a: unreachable, b: disk-pressure"),
        ([node("a", AWAY), node("b", TEAM)], "NodesNotReady", "a: unreachable"),
        ([node("a", [*AWAY, *TEAM]), node("b", TEAM)], "Untolerated", "node.kubernetes.io/unreachable, team=vision"),
        ([node("a", AWAY, cordoned=True), node("b", cordoned=True)], "NodesCordoned", "b"),
        ([node("a"), node("b", AWAY)], "", ""),
    ],
    ids=["a taint", "two nodes that are ill", "an ill node", "an ill node with a taint", "cordoned", "a free node"],
)
def test_what_keeps_a_pod_off_the_nodes(nodes, reason, evidence):
    known = [msgspec.convert(each, Node) for each in nodes]
    assert placement.reason(known, Demands(labels={})) == (reason, evidence)


@pytest.mark.parametrize(
    ("requests", "short", "expected"),
    [
        (
            {"cpu": "500m"},
            "cpu",
            "a pod needs 500m, the largest node has 2, of which jobs leave at most 0.5 free on one" + kube_pods.OTHERS,
        ),
        (
            {"nvidia.com/gpu": "6"},
            "nvidia.com/gpu",
            "need 6, free at most 10, largest node 8" + kube_pods.OTHERS,
        ),
        ({"nvidia.com/gpu": "9"}, "nvidia.com/gpu", "need 9, free at most 10, largest node 8"),
        (
            {"cpu": "1500m"},
            "cpu",
            "a pod needs 1500m, the largest node has 2, of which jobs leave at most 0.5 free on one",
        ),
        ({"cpu": "64"}, "cpu", "a pod needs 64, the largest node has 2, of which jobs leave at most 0.5 free on one"),
        (
            {"memory": "3Gi"},
            "memory",
            "a pod needs 3Gi, the largest node has 4.0Gi, of which jobs leave at most 1.0Gi free on one",
        ),
    ],
)
async def test_a_node_that_jobs_fill_is_not_said_to_have_room(tmp_path, monkeypatch, requests, short, expected):
    nodes = [node(name, cpu="2", memory="4Gi", **{names.GPU: "8"}) for name in "ab"]

    async def answer(_request):
        return web.json_response({"metadata": {}, "items": nodes})

    versions = itertools.count(1)

    def tell(number, requests, **changes):
        meta = {"uid": f"uid-{number}", "name": f"cvrp-0-{number}", "resourceVersion": str(next(versions))}
        trainer = {"name": "trainer", "image": "x", "resources": {"requests": requests}}
        spec = {"containers": [trainer]} | changes.pop("spec", {})
        known.put("team", text(pod(metadata=meta, spec=spec, **changes)))

    async with talking(tmp_path, answer, monkeypatch) as api:
        told = []
        known = kube_pods.Pods(
            api, (), made=lambda _pod: True, changed=lambda key, _after: told.append(key), gone=lambda _uid: None
        )
        for number, name in enumerate("ab"):
            tell(number, {"cpu": "1500m", "memory": "3Gi", names.GPU: str(6 * number)}, spec={"nodeName": name})
        told.clear()
        tell(2, requests, status=unplaced(f"0/2 nodes are available: 2 Insufficient {short}. none"))
        assert known.of("job-uid")[-1].reason == "", "said once it can be said whole"
        await until(lambda: told)
        assert known.of("job-uid")[-1].message == expected
        await known._nodes.close()
