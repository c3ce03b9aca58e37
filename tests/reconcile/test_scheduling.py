"""A gang scheduler in the plan: the status before its object, that before the pods, what is given back and when."""

import pytest
from msgspec.structs import replace
from tests.support.reconcile.world import World

from torchyard.api.reasons import Reason
from torchyard.api.spec import OPERATOR
from torchyard.api.spec_placement import Scheduling
from torchyard.api.status import State
from torchyard.api.values import Duration, Time
from torchyard.reconcile import scheduling
from torchyard.reconcile.actions import CreatePod, Plan, WriteStatus
from torchyard.reconcile.observed import Refusal
from torchyard.reconcile.plan import plan
from torchyard.schedulers.kueue import LOCAL_QUEUE, Kueue
from torchyard.schedulers.protocol import (
    Admission,
    CreateObject,
    DeleteObject,
    GangObject,
    Kind,
    PatchObject,
    PodChanges,
    delete,
    ensure,
)
from torchyard.schedulers.volcano import Volcano


class Permits:
    """A further scheduler, of this test alone: pods may exist while a permit says so, and it can be taken back."""

    name = "permits"
    kinds = (Kind("permits.example", "v1", "Permit", "permits"),)
    sources = rights = ()
    places_together = True
    queues = "none"
    queue_kind = None

    def ask(self, gang):
        return ensure(gang, {"pods": gang.job.spec.nodes})

    def admission(self, gang):
        granted = gang.object.at("status", "granted") if gang.object is not None else None
        if granted:
            return Admission(admitted=True, message="the permit is granted")
        pods = "stop" if granted is False else "keep"
        return Admission(pods=pods, admitted=False, reason=Reason.WAITING_FOR_SCHEDULER, evidence="no permit yet")

    def pods(self, gang):
        return PodChanges(labels={"permit": gang.name})

    def give_back(self, gang, why):
        if why != "preempted":
            return delete(gang, why)
        there = gang.object
        patch = {"status": {"granted": None}}
        return (
            PatchObject(kind=there.kind, name=there.name, uid=there.uid, patch=patch, why=why, subresource="status"),
        )


@pytest.mark.parametrize("event", ["new", "running elsewhere", "deleted", "over"])
def test_a_job_of_another_controller_gets_neither_pods_nor_a_status(event):
    made = World(2, managed_by="kueue.x-k8s.io/multikueue", ttl_after_finished=Duration("1s"))
    assert made.job is not None
    states = {"running elsewhere": State.RUNNING, "over": State.SUCCEEDED}
    made.job = replace(made.job, status=replace(made.status, state=states.get(event, State.NEW)))
    if event == "deleted":
        metadata = replace(made.job.metadata, deletion_timestamp=Time.of(made.now), finalizers=["example.com/x"])
        made.job = replace(made.job, metadata=metadata)
    made.now += 3600
    assert plan(made.view()) == Plan()


def test_a_job_may_name_this_operator_as_its_controller():
    made = World(2, managed_by=OPERATOR)
    made.to_running()
    assert made.status.state == "Running"


def world(scheduler, **spec):
    made = World(2, **spec)
    made.scheduler = scheduler
    return made


def say(world, granted):
    (there,) = world.objects.values()
    world.objects[there.name] = replace(there, document=there.document | {"status": {"granted": granted}})


def settle(w):
    """Reconcile to the end: what is given back is given by a job at rest without live pods; return the states."""
    states = [w.status.state]
    for _ in range(20):
        decided = plan(w.view())
        for action in decided.actions:
            if isinstance(action, PatchObject | DeleteObject):
                assert w.status.state.at_rest
                assert not any(pod.alive for pod in w.pods.values())
            w.carry_out(action)
            if w.status.state != states[-1]:
                states.append(w.status.state)
        w.finish_deletions()
        if not decided.actions:
            return states
    raise AssertionError("no fixpoint")


def test_status_then_object_then_pods_each_after_the_one_before_is_seen():
    w = world(Volcano())
    first = w.step()
    assert [type(each) for each in first.actions[:2]] == [WriteStatus, CreateObject]
    assert w.status.gang.enforced_by == "volcano"
    assert not any(isinstance(each, CreatePod) for each in first.actions)
    assert not first.pods_first
    w.settle()
    assert [each.changes for each in w.created] == [scheduling.pod_changes(w.view())] * 2


def test_a_further_scheduler_needs_no_other_file():
    """Its whole life: asked for, granted, trained, taken back after the save, granted again, given back at the end."""
    w = world(Permits())
    w.settle()
    assert (w.status.state, w.status.reason, w.status.message) == (
        "Queued", "WaitingForScheduler", "the gang scheduler has not answered yet (no permit yet)",
    )  # fmt: skip
    assert (w.status.gang.enforced_by, w.status.gang.admitted) == ("permits", False)
    say(w, True)
    w.to_running()
    assert (w.status.gang.admitted, w.status.gang.message) == (True, "the permit is granted")
    assert all(each.changes.labels == {"permit": "job-job-uid"} for each in w.created)
    w.advance_training(7)
    say(w, False)
    states = settle(w)
    assert states == ["Running", "Suspending", "Suspended"]
    assert w.checkpoint == 8
    (there,) = w.objects.values()
    assert there.document["status"] == {}
    assert (w.status.state, w.status.reason, w.status.restarts.counted) == ("Suspended", "Preempted", 0)
    assert {each.type: each.status for each in w.status.conditions}["Ready"] == "False"
    say(w, True)
    w.to_running()
    assert w.status.round == 2
    for uid in list(w.training):
        w.end_workers(uid, 0)
    w.settle()
    assert w.status.state == "Succeeded"
    assert not w.objects


def test_nothing_is_given_back_while_a_pod_may_run():
    w = world(Permits())
    w.settle()
    say(w, True)
    w.to_running()
    deaf = w.at(0)
    w.obey = lambda uid: None if uid == deaf else World.obey(w, uid)  # its agent does not end
    w.edit(suspend=True)
    settle(w)
    assert w.status.state == "Suspending"
    assert w.objects
    w.vanish(deaf)
    assert settle(w) == ["Suspending", "Suspended"]
    assert not w.objects


def test_what_is_not_known_stops_nothing_and_creates_nothing():
    w = world(Permits())
    w.settle()
    say(w, True)
    w.to_running()
    before = w.status
    w.objects_known = False
    w.objects.clear()
    w.restart_operator()
    changes = [each for decided in w.settle() for each in decided.actions]
    assert all(isinstance(each, WriteStatus) or each.verb == "run" for each in changes)
    assert (w.status.state, w.status.gang) == ("Running", before.gang)


def test_an_object_deleted_by_hand_is_created_again_and_training_goes_on():
    w = world(Volcano())
    w.to_running()
    w.objects.clear()
    w.settle()
    assert list(w.objects) == ["job-job-uid"]
    assert (w.status.state, w.status.round) == ("Running", 1)


def test_a_scheduler_that_is_not_there_is_waited_for_by_name():
    w = World(2, scheduling=Scheduling(gang="volcano"))
    w.settle()
    assert (w.status.state, w.status.reason) == ("Queued", "SchedulerUnavailable")
    assert "volcano is not among the schedulers of the operator" in w.status.message
    assert w.status.gang.enforced_by == "volcano"
    w.scheduler = Volcano()
    w.settle()
    assert len(w.pods) == 2


def test_a_queue_that_is_created_later_is_used():
    w = World(2, scheduling=Scheduling(queue="research"))
    w.scheduler = Kueue()
    w.settle()
    assert (w.status.state, w.status.reason) == ("Queued", "QueueNotFound")
    assert "the namespace has no LocalQueue of kueue of this name" in w.status.message
    w.sources = {"localqueues": (GangObject(kind=LOCAL_QUEUE, name="research", uid="q"),)}
    w.settle()
    assert (w.status.gang.enforced_by, len(w.objects), w.status.reason) == ("kueue", 1, "WaitingInQueue")


def test_a_choice_stays_until_the_job_is_at_rest():
    w = World(2).to_running()
    assert w.status.gang.enforced_by == "torchyard"
    w.scheduler = Volcano()
    w.settle()
    assert (w.status.gang.enforced_by, dict(w.objects)) == ("torchyard", {})
    w.edit(suspend=True)
    w.settle()
    w.finish_deletions()
    w.settle()
    w.edit(suspend=False)
    w.settle()
    assert w.status.gang.enforced_by == "volcano"


def test_a_gang_of_another_size_gets_another_object():
    w = world(Volcano())
    w.to_running()
    w.edit(suspend=True)
    w.settle()
    w.finish_deletions()
    w.settle()
    w.edit(suspend=False, nodes=3)
    w.settle()
    (there,) = w.objects.values()
    assert there.document["spec"]["minMember"] == 3
    assert len([pod for pod in w.pods.values() if pod.alive]) == 3


@pytest.mark.parametrize("scheduler", [Volcano(), None], ids=["volcano", "operator"])
def test_only_gangs_that_nothing_places_together_are_released(scheduler):
    w = world(scheduler)
    w.room = 1
    w.settle()
    w.now += 600
    w.settle()
    assert (w.status.reason == "GangIncomplete") == (scheduler is None)


@pytest.mark.parametrize("why", ["ended", "preempted"])
def test_what_was_refused_is_given_back_later_though_nothing_else_happens(why):
    w = world(Permits())
    w.settle()
    say(w, True)
    w.to_running()
    w.refusal = Refusal(reason=Reason.WEBHOOK_UNAVAILABLE, since=w.now, until=w.now + 60)
    if why == "ended":
        for uid in list(w.training):
            w.end_workers(uid, 0)
    else:
        say(w, False)
    for _ in range(10):
        w.step()
        w.finish_deletions()
    decided = plan(w.view())
    assert not decided.actions
    assert decided.requeue_after == 60
    w.now += 60
    assert [type(each) for each in plan(w.view()).actions] == [DeleteObject if why == "ended" else PatchObject]
