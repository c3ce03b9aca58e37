"""What the API server's refusals of a pod mean: its own words (1.36), and what a user reads."""

import pytest
from msgspec.structs import replace
from tests.support.reconcile.world import START, World

from torchyard.api.reasons import Reason
from torchyard.kubernetes.client.errors import Details, NotFound, Rejected
from torchyard.kubernetes.diagnostics.admission import forbidden, refused
from torchyard.reconcile.loop.executor import Refusals
from torchyard.reconcile.observed import Refusal
from torchyard.reconcile.ports import Refused, Unavailable


def no(code, message, reason="Forbidden"):
    return Rejected(code, reason, message, Details())


POD = 'pods "cvrp-0-3" is forbidden: '
REFUSALS = {
    "the quota is used up": (
        no(
            403,
            f"{POD}exceeded quota: gpu-quota, requested: requests.nvidia.com/gpu=4, used: requests.nvidia.com/gpu=6, "
            "limited: requests.nvidia.com/gpu=8",
        ),
        "QuotaExceeded",
        "gpu-quota, requests.nvidia.com/gpu 6/8 and 4 asked for by a pod",
    ),
    "two resources of a quota are used up": (
        no(
            403,
            f"{POD}exceeded quota: team, requested: limits.cpu=4,pods=1, used: limits.cpu=8,pods=3, "
            "limited: limits.cpu=8,pods=3",
        ),
        "QuotaExceeded",
        "team, limits.cpu 8/8 and 4 asked for by a pod, pods 3/3 and 1 asked for by a pod",
    ),
    "the quota is new": (
        no(403, f"{POD}status unknown for quota: team, resources: pods"),
        "QuotaExceeded",
        "team, whose use is not counted yet",
    ),
    "the quota wants limits": (
        no(403, f"{POD}failed quota: team: must specify limits.cpu for: trainer; limits.memory for: trainer"),
        "QuotaNeedsLimits",
        "team wants limits.cpu for: trainer; limits.memory for: trainer",
    ),
    "a limit range": (
        no(403, f"{POD}maximum memory usage per Container is 1Gi, but limit is 4Gi"),
        "LimitRangeExceeded",
        "maximum memory usage per Container is 1Gi, but limit is 4Gi",
    ),
    "a ratio that nothing was asked for": (
        no(403, f"{POD}cpu max limit to request ratio per Container is 2, but no request is specified or request is 0"),
        "LimitRangeExceeded",
        "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0",
    ),
    "several faults of a limit range": (
        no(
            403,
            f"{POD}[memory max limit to request ratio per Pod is 1, but 2, minimum cpu usage per Pod is 1]",
        ),
        "LimitRangeExceeded",
        "[memory max limit to request ratio per Pod is 1, but 2, minimum cpu usage per Pod is 1]",
    ),
    "Pod Security": (
        no(
            403, f'{POD}violates PodSecurity "restricted:latest": runAsNonRoot != true (pod must set runAsNonRoot=true)'
        ),
        "PodSecurityViolation",
        '"restricted:latest": runAsNonRoot != true (pod must set runAsNonRoot=true)',
    ),
    "a policy": (
        no(
            422,
            f"{POD}ValidatingAdmissionPolicy 'no-latest' with binding 'all' denied request: image has no digest",
            "Invalid",
        ),
        "AdmissionDenied",
        "no-latest: image has no digest",
    ),
    "a webhook": (
        no(403, 'admission webhook "pods.example.com" denied the request: team label is missing'),
        "AdmissionDenied",
        "pods.example.com: team label is missing",
    ),
    "a webhook that is down": (
        Unavailable(
            'POST /api/v1/namespaces/x/pods: 500 Internal error occurred: failed calling webhook "broken.example.com": '
            'failed to call webhook: Post "https://10.0.0.1:1/x?timeout=2s": connect: connection refused'
        ),
        "WebhookUnavailable",
        "broken.example.com",
    ),
    "no such service account": (
        no(403, f'{POD}error looking up service account team/trainer: serviceaccount "trainer" not found'),
        "MissingServiceAccount",
        "trainer",
    ),
    "no such priority class": (
        no(403, f"{POD}no PriorityClass with name high was found"),
        "MissingPriorityClass",
        "high",
    ),
    "no such runtime class": (
        no(403, f'{POD}pod rejected: RuntimeClass "nvidia" not found'),
        "MissingRuntimeClass",
        "nvidia",
    ),
    "the namespace is being deleted": (
        no(403, f"{POD}unable to create new content in namespace team because it is being terminated"),
        "NamespaceTerminating",
        "",
    ),
    "the namespace is gone": (NotFound('namespaces "team" not found', Details()), "NamespaceTerminating", "it is gone"),
    "we may not": (
        no(
            403,
            'pods is forbidden: User "system:serviceaccount:torchyard:torchyard" cannot create resource "pods" in API '
            'group "" in the namespace "team"',
        ),
        "Forbidden",
        "create pods in namespace team",
    ),
    "the pod is invalid": (
        no(422, 'Pod "cvrp-0-3" is invalid: spec.containers[0].image: Required value', "Invalid"),
        "PodInvalid",
        "spec.containers[0].image: Required value",
    ),
    "something else forbids it": (no(403, f"{POD}because I say so"), "AdmissionDenied", "because I say so"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_rejection_is_explained_without_the_name_of_one_pod(name):
    error, reason, message = REFUSALS[name]
    found = refused(error)
    assert (found.reason, found.message) == (reason, message)
    assert found.permanent is (reason == "PodInvalid")
    assert reason in set(Reason)


def test_a_server_that_does_not_answer_has_refused_nothing():
    assert refused(Unavailable("POST /api/v1/namespaces/x/pods: 503 try later")) is None


def test_a_missing_right_is_named_for_every_kind_of_write():
    error = no(
        403,
        'trainingjobs.torchyard.dev "a" is forbidden: User "x" cannot patch resource "trainingjobs/status" '
        'in API group "torchyard.dev" in the namespace "team"',
    )
    assert forbidden(error).message == "patch trainingjobs/status.torchyard.dev in namespace team"
    assert forbidden(no(409, "something else")) is None


# What the plan makes of it.


def test_a_rejected_job_reports_the_reason_and_backs_off():
    world = World(4)
    world.refusal = Refusal(reason=Reason("QuotaExceeded"), message="team, pods 3/3", since=START, until=START + 30)
    world.settle()
    assert world.created == []
    assert (world.status.state, world.status.reason) == ("Pending", "QuotaExceeded")
    assert "team, pods 3/3" in world.status.message
    world.now += 31
    world.settle()
    assert len(world.created) == 4
    assert world.status.reason == "WaitingForPods"


def test_what_only_a_person_can_fix_stalls_the_job():
    world = World(1)
    world.refusal = Refusal(
        reason=Reason("Forbidden"), message="create pods in namespace x", since=START, until=START + 30
    )
    world.settle()
    (stalled,) = [each for each in world.status.conditions if each.type == "Stalled"]
    assert (stalled.status, stalled.reason) == ("True", "Forbidden")
    assert "create pods in namespace x" in stalled.message
    world.refusal = None
    world.settle()
    assert [each.status for each in world.status.conditions if each.type == "Stalled"] == ["False"]


def test_an_invalid_pod_ends_the_job_at_once():
    world = World(1)
    world.refusal = Refusal(
        reason=Reason("PodInvalid"), message="spec.x: bad", permanent=True, since=START, until=START + 1
    )
    world.settle()
    assert (world.status.state, world.status.reason) == ("Failed", "PodInvalid")
    assert world.created == []


def test_a_refused_replacement_waits_as_part_of_the_recovery():
    world = World(2).to_running()
    world.vanish(world.at(1))
    world.refusing = True
    world.settle()
    assert (world.status.state, world.status.reason) == ("Recovering", "QuotaExceeded")
    world.refusing = False
    world.now += 6
    world.settle()
    world.start_pods()
    world.settle()
    world.now += 1
    world.advance_training()
    world.settle()
    assert world.status.state == "Running"


def test_a_recovery_no_longer_names_a_delay_that_has_ended():
    world = World(2).to_running()
    world.vanish(world.at(1))
    world.settle()
    assert world.status.reason == "PodLost", "the cause of the failure, until there is more to say"
    uid = world.at(1)
    world.pods[uid] = replace(world.pods[uid], reason="InsufficientGPU", message="need 8, free at most 0")
    world.settle()
    assert (world.status.state, world.status.reason) == ("Recovering", "InsufficientGPU")
    world.pods[uid] = replace(world.pods[uid], reason="", message="")
    world.settle()
    assert (world.status.state, world.status.reason) == ("Recovering", "Recovering")
    world.pods[uid] = replace(world.pods[uid], phase="Running", started=world.now)
    world.now += 31
    world.settle()
    assert world.status.reason == "AgentSilent"
    assert "job-1-1" in world.status.message
    world.call_in(uid)
    world.settle()
    assert world.status.round == 2


def test_back_off_doubles_while_the_reason_stays_and_starts_over_with_another_spec():
    now = [START]
    refusals = Refusals(lambda: now[0], jitter=lambda: 0.0)
    job = World(1).job
    quota = Refused("QuotaExceeded", "team, pods 3/3")
    assert refusals.note(job, quota) == 0.0, "news is announced at once"
    waits = []
    for _ in range(8):
        now[0] = refusals.of(job).until
        waits.append(refusals.note(job, quota))
    assert waits == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert refusals.of(job).since == START
    edited = replace(job, metadata=replace(job.metadata, generation=2))
    assert refusals.of(edited) is None
    refusals.note(edited, quota)
    assert refusals.of(edited).until == now[0] + 1.0
