"""What a cluster would do with a job: capacity, holders of GPUs, queue, quota, and changes to the job of its name."""

from decimal import Decimal

import msgspec
import pytest
from msgspec.structs import replace

from torchyard.api.resource import read_job
from torchyard.api.status import CheckpointStatus, Progress, State
from torchyard.api.values import Time
from torchyard.client.plans.changes import existing
from torchyard.client.plans.cluster_plan import cluster_plan
from torchyard.client.plans.cluster_view import ClusterView
from torchyard.client.plans.fit import fit, holders
from torchyard.client.plans.quota import Queue, of_cluster_queue, of_namespace
from torchyard.kubernetes.kueue_objects import ClusterQueue
from torchyard.kubernetes.objects import KubePod, Node

NOW = 1_800_000_000.0
GPU = "nvidia.com/gpu"


def job(name="cvrp", nodes=2, gpus=8, **spec):
    document = {"script": "1", "nodes": nodes, "gpusPerNode": gpus, **spec}
    return read_job({"metadata": {"name": name, "namespace": "team", "uid": "u"}, "spec": document})


def node(name, gpus=8, *, ready=True, labels=None, taints=(), cpu="64"):
    document = {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"taints": list(taints)},
        "status": {
            "allocatable": {GPU: str(gpus), "cpu": cpu, "memory": "512Gi"},
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }
    return msgspec.convert(document, Node)


def pod(on, gpus, owner="other", *, namespace="vision", kind="TrainingJob", phase="Running"):
    controller = {
        "apiVersion": "torchyard.dev/v1alpha1", "kind": kind, "name": owner, "uid": "o", "controller": True,
    }  # fmt: skip
    request = {"resources": {"requests": {GPU: str(gpus), "cpu": "1"}}}
    document = {
        "metadata": {"name": f"{owner}-{on}", "namespace": namespace, "ownerReferences": [controller]},
        "spec": {
            "nodeName": on,
            "containers": [request],
            "initContainers": [{"resources": {"requests": {"cpu": "2"}}}],
        },
        "status": {"phase": phase},
    }
    return msgspec.convert(document, KubePod)


NODES = (node("a"), node("b"))
TAINT = {"key": "team", "value": "x", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("asked", "nodes", "pods", "now", "ever", "words"),
    [
        (job(), NODES, (), True, True, "Yes: 2 nodes have capacity for it."),
        (job(gpus=4), (node("a"),), (), True, True, "Yes: 1 node has capacity for it."),
        (job(), NODES, (pod("a", 4),), False, True,
         "Not now: it needs 16 GPUs (2 pods x 8 GPUs), free are at most 12 GPUs, on one node at most 8 GPUs."),
        (job(), NODES, (pod("a", 4, phase="Succeeded"),), True, True, "Yes"),
        (job(), NODES, (pod("a", 8, owner="cvrp", namespace="team"),), True, True, "Yes"),
        (job(), NODES, (pod("a", 8, owner="cvrp", namespace="vision"),), False, True, "Not now"),
        (job(nodes=3), NODES, (), False, False,
         "Never on these nodes: it needs 24 GPUs (3 pods x 8 GPUs), the 2 nodes it may use have 16 GPUs"),
        (job(gpus=0, resources={"cpu": 65}), NODES, (), False, False, "Never on these nodes: it needs 130 CPU"),
        (job(), (node("a"), node("b", ready=False)), (), False, False, "Never on these nodes"),
        (job(scheduling={"nodeSelector": {"pool": "h100"}}), NODES, (), False, None, "no node has pool=h100"),
        (job(), (*NODES, node("c", taints=[{"key": GPU, "effect": "NoSchedule"}])), (pod("a", 8),), True, True, "Yes"),
        (job(), (node("a", taints=[TAINT]),), (), False, None, "team=x"),
        (job(), None, None, None, None, "Not known: nodes could not be read."),
        (job(), NODES, None, None, True, "Not known: pods of other namespaces could not be read."),
    ],
)  # fmt: skip
def test_whether_it_fits(asked, nodes, pods, now, ever, words):  # noqa: PLR0917 -- a table
    found = fit(asked, nodes, pods)
    assert (found.now, found.ever) == (now, ever)
    assert words in found.sentence


def test_resources_that_are_free_on_different_nodes_are_no_capacity():
    nodes = (node("a", gpus=8, cpu="1"), node("b", gpus=0, cpu="64"))
    found = fit(job(nodes=1, resources={"cpu": 8}), nodes, ())
    assert (found.now, found.ever) == (False, False)
    assert "not enough of all on the same nodes" in found.sentence


def running(name, minutes, namespace="vision"):
    made = replace(job(name), metadata=replace(job(name).metadata, namespace=namespace))
    eta = None if minutes is None else 60 * minutes
    status = replace(
        made.status, state=State.RUNNING, progress=Progress(eta_seconds=eta), last_update_time=Time.of(NOW - 60)
    )
    return replace(made, status=status)


def test_holders_of_gpus_with_their_forecasts():
    pods = (
        pod("a", 4, "late"),
        pod("a", 4, "soon"),
        pod("b", 4, "soon"),
        pod("b", 2, "web", kind="ReplicaSet"),
        pod("b", 0, "cpu"),
    )
    found = holders(pods, [running("late", 90), running("soon", 10)], NOW)
    assert [(each.name, each.kind, each.gpus, each.eta_seconds) for each in found] == [
        ("soon", "TrainingJob", 8, 540),
        ("late", "TrainingJob", 4, 5340),
        ("web", "ReplicaSet", 2, None),
    ]


QUEUE = msgspec.convert(
    {
        "spec": {"resourceGroups": [{"flavors": [
            {"name": "x", "resources": [{"name": GPU, "nominalQuota": "16"}, {"name": "cpu", "nominalQuota": "64"}]},
            {"name": "y", "resources": [{"name": GPU, "nominalQuota": 8}]},
        ]}]},
        "status": {"flavorsReservation": [{"name": "x", "resources": [{"name": GPU, "total": "12"}]}]},
    },
    ClusterQueue,
)  # fmt: skip


def test_the_quota_of_the_queue():
    (gpus,) = of_cluster_queue(job(), "gpus", QUEUE)
    assert (gpus.needed, gpus.free, gpus.quota, gpus.short, gpus.never) == (16, 12, 24, True, False)
    assert str(gpus) == "ClusterQueue gpus, nvidia.com/gpu: needs 16 GPUs, free 12 GPUs of 24 GPUs (waits)"
    assert QUEUE.free() == {GPU: Decimal(12), "cpu": Decimal(64)}


def test_the_quotas_of_the_namespace():
    hard = {"hard": {"requests.nvidia.com/gpu": "8", "pods": "10", "limits.memory": "1Ti"}, "used": {"pods": "9"}}
    quotas = [
        {"metadata": {"name": "compute"}, "status": hard},
        {"metadata": {"name": "scoped"}, "spec": {"scopes": ["BestEffort"]}, "status": {"hard": {"pods": "0"}}},
    ]
    found = of_namespace(job(resources={"memory": "64Gi"}), quotas)
    assert "ResourceQuota compute, pods: needs 2, free 1 of 10 (waits)" in map(str, found)
    assert {(each.resource, each.short, each.never) for each in found} == {
        ("requests.nvidia.com/gpu", True, True), ("pods", True, False), ("limits.memory", False, False),
    }  # fmt: skip


def change(before, after, **status):
    left = job(**before)
    left = replace(left, status=replace(left.status, state=State.RUNNING, **status))
    return existing(job(**after), left)


def test_a_change_that_restarts_the_job():
    found = change({}, {"env": [{"name": "A", "value": "1"}]}, checkpoint=CheckpointStatus(step=120))
    assert found.restarts
    assert found.possible
    assert [(each.field, each.effect) for each in found.changes] == [("spec.env", "suspend first")]
    assert found.checkpoint_step == 120


def test_changes_that_restart_nothing_and_that_are_not_possible():
    free = change({}, {"gracePeriod": "5m", "restart": {"maxRestarts": 9}})
    assert (free.restarts, free.possible) == (False, True)
    assert {each.field: each.effect for each in free.changes} == {
        "spec.gracePeriod": "at once", "spec.restart.maxRestarts": "at once",
    }  # fmt: skip
    program = change({}, {"script": "2"})
    assert (program.restarts, program.possible) == (False, False)
    elastic = {"elastic": {"minNodes": 1, "maxNodes": 4}}
    assert not change({"nodes": 2, **elastic}, {"nodes": 3, **elastic}).restarts


def test_a_suspended_job_is_changed_without_a_restart():
    before = replace(job(suspend=True), status=replace(job().status, state=State.SUSPENDED))
    found = existing(job(suspend=True, nodes=3), before)
    assert (found.restarts, [each.effect for each in found.changes]) == (False, ["at once"])


WORDS = """\
cvrp in namespace team of context test
  fits now? Not now: it needs 24 GPUs (3 pods x 8 GPUs), free are at most 20 GPUs, on one node at most 8 GPUs.
  GPUs      4 GPUs: vision/soon (TrainingJob, Running), ends in 40m by its forecast
  queue     research, ClusterQueue gpus, 2 Workloads wait in it
  quota     ClusterQueue gpus, nvidia.com/gpu: needs 24 GPUs, free 12 GPUs of 24 GPUs (waits)
  job       exists and is Running; this file changes:
            spec.nodes: 2 -> 3 (suspend first)
            spec.scheduling.queue: not set -> "research" (suspend first)
            spec.gracePeriod: "30s" -> "60s" (at once)
            this restarts it from its checkpoint, step 120 or later: `torchyard suspend cvrp`, change it, \
`torchyard resume cvrp`
  not read  ClusterQueue x: forbidden
"""


def plan(asked, **view):
    return cluster_plan(asked, ClusterView(where="namespace team of context test", **view), NOW)


def test_the_plan_in_words():
    before = replace(
        job(gracePeriod="30s"),
        status=replace(job().status, state=State.RUNNING, checkpoint=CheckpointStatus(step=120)),
    )
    found = plan(
        job(nodes=3, scheduling={"queue": "research"}),
        nodes=(*NODES, node("c")),
        pods=(pod("a", 4, "soon"),),
        jobs=(running("soon", 41),),
        existing=before,
        queue=Queue(name="research", cluster_queue="gpus", waiting=2),
        cluster_queue=QUEUE,
        unread=("ClusterQueue x: forbidden",),
    )
    assert str(found).splitlines() == WORDS.splitlines()
    assert found.possible


def test_a_job_that_can_never_run_is_not_possible():
    assert not plan(job(nodes=3), nodes=NODES, pods=()).possible
    assert not plan(job(), rejection="spec.x: wrong", accepted=False).possible
    assert plan(job()).possible, "what is not known is not a no"
