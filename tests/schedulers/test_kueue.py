"""Kueue's Workload: what is asked for, when pods may exist, how quota is given back, and what waiting means."""

import pytest
from msgspec.structs import replace
from tests.support.kueue import SOURCES, admit, conditions, evict, with_status, workload
from tests.support.reconcile.world import TEMPLATE, World

from torchyard.api.spec_placement import Scheduling
from torchyard.reconcile.actions import CreateObject, CreatePod, DeleteObject, PatchObject
from torchyard.reconcile.plan import plan
from torchyard.schedulers.kueue import Kueue
from torchyard.schedulers.protocol import Gang, ObjectCondition


def queued(nodes=2, **scheduling):
    world = World(nodes, scheduling=Scheduling(gang="kueue", queue="research", **scheduling))
    world.scheduler = Kueue()
    world.sources = SOURCES
    world.settle()
    return world


def training(**scheduling):
    world = queued(**scheduling)
    admit(world)
    world.to_running()
    world.advance_training(7)
    return world


def settle(world):
    """Reconcile to the end, each step checked; the given back quota and when."""
    given = []
    for _ in range(30):
        decided = plan(world.view())
        for action in decided.actions:
            if isinstance(action, PatchObject | DeleteObject):
                assert not any(pod.alive for pod in world.pods.values())
                assert world.status.state.at_rest
                given.append(action)
            world.carry_out(action)
        world.finish_deletions()
        if not decided.actions:
            return given
    raise AssertionError("no fixpoint")


def test_the_workload_of_a_job():
    world = queued(workload_priority_class="high")
    there = workload(world)
    assert there.document["spec"] == {
        "queueName": "research",
        "podSets": [{"name": "gang", "count": 2, "template": TEMPLATE}],
        "priority": 100,
        "priorityClassRef": {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "high"},
    }
    assert there.document["metadata"]["labels"] == {"kueue.x-k8s.io/job-uid": "job-uid"}
    assert (world.status.state, world.status.reason) == ("Queued", "WaitingInQueue")
    assert world.status.gang.message == "queue research: Kueue has not evaluated it yet"
    assert not world.pods


def test_a_priority_class_that_does_not_exist_is_named():
    world = queued(workload_priority_class="urgent")
    assert not world.objects
    assert (world.status.state, world.status.reason) == ("Queued", "MissingPriorityClass")
    assert "WorkloadPriorityClass urgent" in world.status.message


def test_an_admitted_gang_gets_labels_and_tolerations_of_its_flavor():
    world = queued()
    world.now += 3600
    admit(world)
    world.settle()
    assert len(world.pods) == 2
    assert not world.events
    changes = world.created[0].changes
    assert changes.node_selector == {"pool": "spot"}
    assert changes.tolerations == ({"key": "spot", "operator": "Exists"},)
    assert (world.status.gang.enforced_by, world.status.gang.admitted) == ("kueue", True)
    assert world.status.gang.message == "queue research: quota is reserved in cluster queue cluster"


def test_admission_checks_hold_the_pods_back_and_may_change_them():
    world = queued()
    admit(world)
    with_status(world, {"Admitted": (False, "UnsatisfiedChecks", "The workload has not all checks ready")})
    world.settle()
    assert (world.status.reason, world.pods) == ("WaitingForAdmissionChecks", {})
    update = {"name": "gang", "nodeSelector": {"zone": "a"}, "labels": {"l": "1"}, "annotations": {"n": "2"}}
    admit(world)
    with_status(world, {}, admissionChecks=[{"name": "check", "podSetUpdates": [update]}])
    world.settle()
    changes = world.created[0].changes
    assert (changes.node_selector, changes.labels, changes.annotations) == (
        {"pool": "spot", "zone": "a"}, {"l": "1"}, {"n": "2"},
    )  # fmt: skip


def test_a_preempted_job_saves_stops_gives_its_quota_back_and_continues():
    world = training()
    evict(world)
    (given,) = settle(world)
    assert world.checkpoint == 8
    assert (world.status.state, world.status.reason, world.status.restarts.counted) == ("Suspended", "Preempted", 0)
    assert "the job continues by itself" in world.status.message
    assert given.subresource == "status"
    assert given.version
    assert given.patch["status"]["admission"] is None
    assert {kind: held for kind, held in conditions(workload(world)).items() if kind != "Evicted"} == {
        "QuotaReserved": False, "Admitted": False, "Requeued": True,
    }  # fmt: skip
    admit(world)
    world.to_running()
    assert world.status.round == 2
    assert min(world.steps[uid] for uid in world.training) > 8


@pytest.mark.parametrize("reason", ["ClusterQueueStopped", "Deactivated", "PodsReadyTimeout"])
def test_after_other_evictions_kueue_decides_when_to_queue_again(reason):
    world = training()
    evict(world, reason, "the administrator")
    settle(world)
    assert conditions(workload(world))["Requeued"] is False
    assert world.status.reason == "Preempted"


def test_a_job_that_is_over_finishes_its_workload():
    world = training()
    for uid in list(world.training):
        world.end_workers(uid, 0)
    (given,) = settle(world)
    assert conditions(workload(world))["Finished"] is True
    assert workload(world).condition("Finished").reason == "Succeeded"
    assert settle(world) == []
    assert given.why == "the job is over"


def test_a_suspended_job_deletes_its_workload_and_asks_again_when_it_resumes():
    world = training()
    world.edit(suspend=True)
    (given,) = settle(world)
    assert isinstance(given, DeleteObject)
    assert not world.objects
    world.edit(suspend=False, nodes=3)
    world.settle()
    assert workload(world).document["spec"]["podSets"][0]["count"] == 3
    assert world.status.state == "Queued"


def test_a_workload_deleted_by_hand_comes_back_and_training_goes_on_until_kueue_objects():
    world = training()
    world.objects.clear()
    decided = plan(world.view())
    assert [type(each) for each in decided.actions if isinstance(each, CreateObject | CreatePod)] == [CreateObject]
    world.settle()
    assert (world.status.state, world.status.round) == ("Running", 1)
    with_status(world, {"QuotaReserved": (False, "Pending", "insufficient unused quota for cpu in flavor spot")})
    settle(world)
    assert (world.status.state, world.status.reason, world.checkpoint) == ("Suspended", "Preempted", 8)


def test_a_workload_that_is_finished_by_hand_is_replaced():
    world = training()
    with_status(world, {"Finished": (True, "Failed", "by hand")})
    settle(world)
    assert (world.status.state, conditions(workload(world))) == ("Suspended", {})


def test_a_lost_pod_waits_for_quota_that_was_taken_back():
    world = training()
    evict(world)
    world.vanish(world.at(1))
    settle(world)
    assert world.status.state == "Suspended"
    assert not [pod for pod in world.pods.values() if pod.alive]


@pytest.mark.parametrize(
    ("reason", "message", "ours"),
    [
        ("Pending", "insufficient unused quota for cpu in flavor spot, 2 more needed", "WaitingForQuota"),
        ("Pending", "insufficient quota for cpu in flavor spot, request > maximum capacity (4)", "ExceedsMaxQuota"),
        ("Pending", "Workload no longer fits after processing another workload", "WaitingForQuota"),
        ("Pending", "resource ephemeral-storage unavailable in ClusterQueue", "QueueMisconfigured"),
        ("Inadmissible", "Workload namespace doesn't match ClusterQueue selector", "QueueMisconfigured"),
        ("Pending", "untolerated taint gpu in flavor spot", "NoMatchingFlavor"),
        ("Pending", "flavor spot doesn't match node affinity", "NoMatchingFlavor"),
        ("Pending", "flavor spot not found", "FlavorNotFound"),
        ("Inadmissible", "LocalQueue research doesn't exist", "QueueNotFound"),
        ("Inadmissible", "ClusterQueue cluster is terminating or missing", "QueueNotFound"),
        ("Inadmissible", "LocalQueue research is stopped", "QueueStopped"),
        ("Inadmissible", "ClusterQueue cluster is inactive", "QueueStopped"),
        ("WaitingForQuota", "words of a later version", "WaitingForQuota"),
        ("Misconfigured", "LocalQueue research doesn't exist", "QueueNotFound"),
        ("Misconfigured", "a LimitRange forbids it", "QueueMisconfigured"),
        ("Pending", "words that no version has used", "WaitingInQueue"),
    ],
)  # fmt: skip
def test_why_a_job_waits(reason, message, ours):
    world = queued()
    with_status(world, {"QuotaReserved": (False, reason, message)})
    world.settle()
    assert (world.status.state, world.status.reason) == ("Queued", ours)
    assert message in world.status.message
    assert world.status.gang.message == message


def test_a_deactivated_workload_has_a_reason():
    world = queued()
    there = workload(world)
    world.objects[there.name] = replace(
        there, document=there.document | {"spec": there.document["spec"] | {"active": False}}
    )
    with_status(world, {"QuotaReserved": (False, "Inadmissible", "The workload is deactivated")})
    world.settle()
    assert world.status.reason == "WorkloadDeactivated"
    assert world.status.gang.message == f"spec.active of Workload {there.name} is false"


def test_a_flavor_that_is_not_there_holds_the_pods_back():
    world = queued()
    world.sources = SOURCES | {"resourceflavors": ()}
    admit(world)
    world.settle()
    assert (world.status.reason, world.pods) == ("FlavorNotFound", {})
    world.sources = SOURCES
    world.settle()
    assert len(world.pods) == 2


def test_a_queue_that_is_not_ready_says_what_it_lacks():
    world = queued()
    with_status(world, {"QuotaReserved": (False, "Inadmissible", "ClusterQueue gpus is inactive")})
    for active, reason in (
        (ObjectCondition(), "QueueStopped"),
        (ObjectCondition("False", "Stopped", "is stopped"), "QueueStopped"),
        (ObjectCondition("False", "FlavorNotFound", "references missing ResourceFlavor(s): h100."), "FlavorNotFound"),
        (ObjectCondition("False", "TopologyNotFound", "there is no Topology racks"), "QueueMisconfigured"),
    ):
        request = replace(world.scheduling(), queue_condition=active)
        verdict = Kueue().admission(Gang(job=world.job, request=request))
        assert (verdict.pods, verdict.reason) == ("keep", reason)
        assert active.message in verdict.evidence
