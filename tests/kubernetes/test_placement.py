"""Which demand keeps a pod off every node, in the names that the scheduler only counts, and how much room there is."""

import itertools

import msgspec
import pytest
from aiohttp import web
from tests.support.kubernetes.api_server import talking, until
from tests.support.kubernetes.pod_json import pod, text, unplaced

from torchyard.kubernetes.cache import pods as kube_pods
from torchyard.kubernetes.diagnostics import node_fit
from torchyard.kubernetes.diagnostics.capacity import OTHERS
from torchyard.kubernetes.diagnostics.node_fit import Demands
from torchyard.kubernetes.manifests import names
from torchyard.kubernetes.objects import Node

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
    assert node_fit.reason(known, Demands(labels={})) == (reason, evidence)


def other_job(number):
    owner = {"kind": "TrainingJob", "name": "cvrp", "uid": "other-uid", "controller": True}
    return {"ownerReferences": [{"apiVersion": "torchyard.dev/v1alpha1", **owner}], "name": f"cvrp-7-{number}"}


@pytest.mark.parametrize(
    ("gang", "short", "expected"),
    [
        (
            ({"nvidia.com/gpu": "8"}, 3),
            "nvidia.com/gpu",
            (
                "ClusterTooSmall",
                "it needs 24 GPUs (3 pods x 8 GPUs), the 2 nodes it may use have 16 GPUs, at most 8 GPUs on one",
            ),
        ),
        (
            ({"nvidia.com/gpu": "9"}, 1),
            "nvidia.com/gpu",
            (
                "ClusterTooSmall",
                "it needs 9 GPUs in one pod, the 2 nodes it may use have 16 GPUs, at most 8 GPUs on one",
            ),
        ),
        (
            ({"nvidia.com/gpu": "8"}, 2),
            "nvidia.com/gpu",
            (
                "InsufficientGPU",
                "it needs 16 GPUs (2 pods x 8 GPUs), free are at most 10 GPUs, on one node at most 8 GPUs",
            ),
        ),
        (
            ({"nvidia.com/gpu": "6"}, 1),
            "nvidia.com/gpu",
            (
                "InsufficientGPU",
                "it needs 6 GPUs in one pod, free are at most 10 GPUs, on one node at most 8 GPUs" + OTHERS,
            ),
        ),
        (
            ({"cpu": "500m"}, 1),
            "cpu",
            (
                "InsufficientCPU",
                "it needs 0.5 CPU in one pod, free are at most 1 CPU, on one node at most 0.5 CPU" + OTHERS,
            ),
        ),
        (
            ({"cpu": "1500m"}, 1),
            "cpu",
            ("InsufficientCPU", "it needs 1.5 CPU in one pod, free are at most 1 CPU, on one node at most 0.5 CPU"),
        ),
        (
            ({"cpu": "64"}, 1),
            "cpu",
            ("ClusterTooSmall", "it needs 64 CPU in one pod, the 2 nodes it may use have 4 CPU, at most 2 CPU on one"),
        ),
        (
            ({"memory": "3Gi"}, 1),
            "memory",
            (
                "InsufficientMemory",
                "it needs 3.0 GiB in one pod, free are at most 2.0 GiB, on one node at most 1.0 GiB",
            ),
        ),
    ],
)
async def test_what_a_gang_lacks_its_own_pods_aside(tmp_path, monkeypatch, gang, short, expected):
    """Another job holds 1.5 CPU and 3 GiB of each of two nodes, and 6 of the 8 GPUs of the second one."""
    requests, pods = gang
    nodes = [node(name, cpu="2", memory="4Gi", **{names.GPU: "8"}) for name in "ab"]

    async def answer(_request):
        return web.json_response({"metadata": {}, "items": nodes})

    versions = itertools.count(1)

    def tell(number, requests, **changes):
        meta = {"uid": f"uid-{number}", "name": f"cvrp-0-{number}", "resourceVersion": str(next(versions))}
        meta |= changes.pop("owner", {})
        trainer = {"name": "trainer", "image": "x", "resources": {"requests": requests}}
        spec = {"containers": [trainer]} | changes.pop("spec", {})
        known.put("team", text(pod(metadata=meta, spec=spec, **changes)))

    async with talking(tmp_path, answer, monkeypatch) as api:
        told = []
        known = kube_pods.Pods(
            api, (), made=lambda _pod: True, changed=lambda key, _after: told.append(key), gone=lambda _uid: None
        )
        for number, name in enumerate("ab"):
            theirs = {"cpu": "1500m", "memory": "3Gi", names.GPU: str(6 * number)}
            tell(number + 10, theirs, spec={"nodeName": name}, owner=other_job(number))
        for number in range(1, pods):  # those of the gang that found room
            tell(number, requests, spec={"nodeName": "a"})
        told.clear()
        tell(0, requests, status=unplaced(f"0/2 nodes are available: 2 Insufficient {short}. none"))
        (seen,) = (each for each in known.of("job-uid") if not each.node)
        assert seen.reason == "", "said once it can be said whole"
        await until(lambda: told)
        (seen,) = (each for each in known.of("job-uid") if not each.node)
        assert (seen.reason, seen.message) == expected
        await known._nodes.close()
