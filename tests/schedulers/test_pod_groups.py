"""Each scheduler that places pod groups: its object, its changes of pods, and its message on a group that waits."""

import pytest
from msgspec.structs import replace
from tests.support.reconcile.world import TEMPLATE, World

from torchyard.api.spec_placement import Scheduling
from torchyard.kubernetes.manifests.names import Site
from torchyard.kubernetes.manifests.pod import pod
from torchyard.reconcile.actions import CreatePod
from torchyard.schedulers.backends import switched_on
from torchyard.schedulers.coscheduling import Coscheduling
from torchyard.schedulers.kai import Kai
from torchyard.schedulers.native import Native
from torchyard.schedulers.none import choose
from torchyard.schedulers.protocol import DIGEST, CreateObject, Gang, GangObject, PodChanges, Request
from torchyard.schedulers.volcano import Volcano

SITE = Site(operator_url="https://o", ca_pem="ca", agent_image="agent:1", trainer_image="trainer:1")
RESOURCES = {"cpu": "2", "nvidia.com/gpu": "16"}
NAME = "job-job-uid"


def condition(kind, status, reason, message):
    return {"type": kind, "status": status, "reason": reason, "message": message}


def gang(scheduler, *objects, unplaced=True, sources=None, version=0, now=0.0, **scheduling):
    job = World(2, scheduling=Scheduling(**scheduling)).job
    request = Request(
        name=scheduler.name, scheduler=scheduler, kind=scheduler.kinds[version], objects=objects, template=TEMPLATE,
        sources=sources or {},
    )  # fmt: skip
    return Gang(job=job, request=request, unplaced=unplaced, now=now)


def there(asked, **document):
    """The object that was asked for, as it exists."""
    return GangObject(kind=asked.kind, name=asked.name, uid="u", version="1", document=asked.manifest | document)


@pytest.mark.parametrize(
    ("scheduler", "scheduling", "api_version", "spec", "changes"),
    [
        (
            Native(), {}, "scheduling.k8s.io/v1beta1",
            {"schedulingPolicy": {"gang": {"minCount": 2}}},
            PodChanges(spec={"schedulingGroup": {"podGroupName": NAME}}),
        ),
        (
            Volcano(), {"queue": "research", "priority_class": "high"}, "scheduling.volcano.sh/v1beta1",
            {"minMember": 2, "queue": "research", "priorityClassName": "high"},
            PodChanges(annotations={"scheduling.k8s.io/group-name": NAME}, spec={"schedulerName": "volcano"}),
        ),
        (
            Coscheduling(scheduler_name="gangs"), {}, "scheduling.x-k8s.io/v1alpha1",
            {"minMember": 2, "minResources": RESOURCES},
            PodChanges(labels={"scheduling.x-k8s.io/pod-group": NAME}, spec={"schedulerName": "gangs"}),
        ),
        (
            Kai(), {"queue": "team"}, "scheduling.run.ai/v2alpha2",
            {"minMember": 2, "stalenessGracePeriod": "-1s", "queue": "team"},
            PodChanges(
                labels={"kai.scheduler/queue": "team"},
                annotations={"pod-group-name": NAME, "kai.scheduler/skip-podgrouper": "true"},
                spec={"schedulerName": "kai-scheduler"},
            ),
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)  # fmt: skip
def test_the_object_and_the_pods_that_name_it(scheduler, scheduling, api_version, spec, changes):
    asked = gang(scheduler, **scheduling)
    (made,) = scheduler.ask(asked)
    assert isinstance(made, CreateObject)
    assert (made.name, made.manifest["apiVersion"], made.manifest["kind"]) == (NAME, api_version, "PodGroup")
    assert made.manifest["spec"] == spec
    assert scheduler.pods(asked) == changes
    assert scheduler.admission(asked).pods == "keep"
    exists = gang(scheduler, there(made), **scheduling)
    assert scheduler.ask(exists) == () or scheduler.name == "coscheduling"
    assert scheduler.admission(exists).pods == "create"


def test_changes_are_in_the_pod_beside_those_of_the_job():
    job = World(scheduling=Scheduling(node_selector={"a": "b"})).job
    changes = PodChanges(
        labels={"l": "1"}, annotations={"n": "2"}, node_selector={"c": "d"}, tolerations=({"key": "t"},),
        spec={"schedulerName": "volcano"},
    )  # fmt: skip
    made = pod(job, CreatePod(name="job-0-0", index=0, incarnation=0, changes=changes), SITE)
    plain = pod(job, CreatePod(name="job-0-0", index=0, incarnation=0), SITE)
    assert made["metadata"]["labels"] == plain["metadata"]["labels"] | {"l": "1"}
    assert made["metadata"]["annotations"] == plain["metadata"]["annotations"] | {"n": "2"}
    assert made["spec"]["nodeSelector"] == {"a": "b", "c": "d"}
    assert made["spec"]["tolerations"] == [*plain["spec"]["tolerations"], {"key": "t"}]
    assert (made["spec"]["schedulerName"], plain["spec"].get("schedulerName")) == ("volcano", None)


@pytest.mark.parametrize(
    ("scheduler", "status", "message"),
    [
        (
            Native(), {"conditions": [condition("PodGroupScheduled", "False", "Unschedulable", "2 of 3")]},
            "kube-scheduler: Unschedulable: 2 of 3",
        ),
        (Volcano(), {"phase": "Pending"}, "volcano: queue research has not admitted the pod group"),
        (
            Volcano(),
            {"phase": "Inqueue", "conditions": [condition("Unschedulable", "True", "NotEnoughResources", "2/2 tasks")]},
            "volcano: NotEnoughResources: 2/2 tasks",
        ),
        (Coscheduling(), {"phase": "Scheduling"}, "coscheduling: pod group job-job-uid is Scheduling"),
        (Kai(), {"schedulingConditions": [{"message": "no GPUs"}]}, "kai: no GPUs"),
        (Kai(), None, "pod group job-job-uid is placed once all its pods fit"),
    ],
)  # fmt: skip
def test_the_message_of_the_scheduler_on_a_group_that_waits(scheduler, status, message):
    queue = {"queue": "research"} if scheduler.queues != "none" else {}
    (made,) = scheduler.ask(gang(scheduler, **queue))
    assert scheduler.admission(gang(scheduler, there(made, status=status), **queue)).message == message


def test_a_group_that_waits_is_woken_at_each_change_of_nodes_and_each_interval():
    scheduler = Coscheduling()
    (made,) = scheduler.ask(gang(scheduler))
    group = there(made)

    def woken(group, count, **facts):
        nodes = tuple(
            GangObject(kind=scheduler.sources[0].kind, name=f"n{each}", uid=f"{each}") for each in range(count)
        )
        return scheduler.ask(gang(scheduler, group, sources={"nodes": nodes}, **facts))

    (first,) = woken(group, 1)
    metadata = made.manifest["metadata"]
    annotations = metadata["annotations"] | first.patch["metadata"]["annotations"]
    group = replace(group, document=made.manifest | {"metadata": metadata | {"annotations": annotations}})
    assert annotations[DIGEST] == metadata["annotations"][DIGEST]
    assert woken(group, 1) == ()
    assert woken(group, 2) != ()
    assert woken(group, 2, unplaced=False) == ()
    due = scheduler.admission(gang(scheduler, group, now=7.0)).again
    assert woken(group, 1, now=due - 1) == ()
    assert woken(group, 1, now=due) != ()
    assert scheduler.admission(gang(scheduler, group, unplaced=False)).again is None


ON = switched_on(["native", "volcano"])


@pytest.mark.parametrize(
    ("scheduling", "before", "served", "name", "missing"),
    [
        ({}, "", "native volcano", "native", ""),
        ({}, "", "volcano", "volcano", ""),
        ({}, "", "", "torchyard", ""),
        ({"queue": "q"}, "", "native volcano", "volcano", ""),
        ({"queue": "q"}, "", "native", "torchyard", "spec.scheduling.queue q: no scheduler with queues"),
        ({"gang": "none"}, "", "native", "none", ""),
        ({"gang": "volcano"}, "", "native", "volcano", "does not serve PodGroup of scheduling.volcano.sh/v1beta1"),
        ({"gang": "kai"}, "", "native", "kai", "not among the schedulers of the operator"),
        ({}, "volcano", "native volcano", "volcano", ""),
        ({}, "volcano", "native", "volcano", "does not serve"),
        ({}, "torchyard", "native", "torchyard", ""),
    ],
)
def test_which_scheduler_a_job_gets(scheduling, before, served, name, missing):
    kinds = {each.name: each.kinds[0] for each in ON if each.name in served}
    request = choose(Scheduling(**scheduling), before, ON, kinds, {})
    assert request.name == name
    assert missing in request.missing
    assert bool(missing) == bool(request.missing)
    assert (request.kind is not None) == (name in kinds)


@pytest.mark.parametrize(
    ("before", "queues", "name", "known", "missing"),
    [
        ("", {"kueue": ["q", "other"]}, "kueue", True, ""),
        ("", {}, "kueue", False, ""),
        ("", {"kueue": ["other"]}, "torchyard", True, "queue q: the namespace has no LocalQueue of kueue of this name"),
        ("kueue", {"kueue": []}, "kueue", True, ""),
    ],
    ids=["it exists", "not listed yet", "it does not exist", "deleted since"],
)
def test_a_queue_of_kueue_is_looked_up_before_kueue_is_chosen(before, queues, name, known, missing):
    on = switched_on(["native", "kueue"])
    request = choose(Scheduling(queue="q"), before, on, {each.name: each.kinds[0] for each in on}, queues)
    assert (request.name, request.known, bool(request.missing)) == (name, known, bool(missing))
    assert missing in request.missing
    if missing:
        assert request.reason == "QueueNotFound"
        with_volcano = (*on, *switched_on(["volcano"]))
        served = {each.name: each.kinds[0] for each in with_volcano}
        assert choose(Scheduling(queue="q"), before, with_volcano, served, queues).name == "volcano"


@pytest.mark.parametrize(
    ("text", "why"), [("slurm", "is not a gang scheduler"), ("native=x", "keep the default scheduler")]
)
def test_a_scheduler_that_cannot_be_switched_on_is_named(text, why):
    with pytest.raises(ValueError, match=why):
        switched_on([text])
