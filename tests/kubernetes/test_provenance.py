"""Only pods that the operator created count, whatever other pods claim and whichever operator leads now."""

import asyncio

import msgspec
import pytest
from aiohttp import web
from tests.support.kubernetes.api_server import refused, talking
from tests.support.kubernetes.leases import LeaseServer, Wire
from tests.support.kubernetes.pod_json import container, placed, pod, seen, text
from tests.support.virtual_time import virtual_time

from torchyard.api.resource import TrainingJob
from torchyard.api.values import Time, rfc3339
from torchyard.kubernetes.cache.jobs import Jobs
from torchyard.kubernetes.cluster import KubeCluster
from torchyard.kubernetes.election import Lease
from torchyard.kubernetes.manifests import names
from torchyard.kubernetes.manifests.names import Site
from torchyard.kubernetes.provenance import LATE_SECONDS, MAX_KEYS, Provenance
from torchyard.reconcile.actions import CreatePod
from torchyard.reconcile.ports import NameTaken, Refused

CREATED = "2026-11-21T10:00:00Z"
NOW = Time.parse(CREATED)
JOB = {
    "apiVersion": "torchyard.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "cvrp", "namespace": "team", "uid": "job-uid", "resourceVersion": "800"},
    "spec": {"command": ["true"], "nodes": 2},
}
DECOY = JOB | {"metadata": JOB["metadata"] | {"namespace": "evil", "uid": "decoy-uid"}}
SITE = Site(operator_url="https://127.0.0.1:1", ca_pem="x", agent_image="agent", trainer_image="trainer")
RUNNING = placed(container("running"), phase="Running")


@pytest.fixture
def operator():
    """What signs: a leader at ten o'clock."""
    return Provenance(lambda: NOW)


@pytest.fixture
def cluster(operator):
    return known(operator)


def known(provenance, *jobs):
    found = Jobs()
    for job in jobs or (JOB, DECOY):
        found.put(text(job))
    return KubeCluster(None, found, SITE, provenance=provenance, clock=lambda: NOW, reporter="test")


def is_ours(provenance, document):
    record = seen(document)
    return provenance.verifies(record.uid, record.claim)


def signed(provenance, *, of=("team", "job-uid", "cvrp-0-1"), **metadata):
    """A pod with a signature for `of`, and what differs from the pod that it was made for."""
    annotations = {names.PROVENANCE: provenance.sign(*of)}
    return pod(
        metadata={"annotations": annotations, **metadata}, spec={"serviceAccountName": "default"}, status=RUNNING
    )


def accepted(cluster, document):
    """Whether a pod takes part in the job, and may speak for it."""
    cluster.tracked.put(document["metadata"]["namespace"], text(document))
    uid = document["metadata"]["uid"]
    takes_part = uid in {each.uid for each in cluster.pods("job-uid")}
    assert (cluster.tracked.member(uid) is not None) == takes_part
    return takes_part


def test_a_pod_that_was_created_here_counts(cluster, operator):
    assert accepted(cluster, signed(operator))


OTHER = pod()["metadata"]["ownerReferences"][0] | {"uid": "other-uid"}

FORGED = {
    "without a signature": lambda ours: pod(status=RUNNING),
    "with a signature that is none": lambda ours: pod(metadata={"annotations": {names.PROVENANCE: "a.b.c"}}),
    "with a long one": lambda ours: pod(metadata={"annotations": {names.PROVENANCE: "x" * 100_000}}),
    "signed with another key": lambda ours: signed(Provenance(lambda: NOW)),
    "with another pod's signature": lambda ours: signed(ours, of=("team", "job-uid", "cvrp-0-0")),
    "with another job's signature": lambda ours: signed(ours, of=("team", "decoy-uid", "cvrp-0-1")),
    "in another namespace": lambda ours: signed(ours, of=("evil", "decoy-uid", "cvrp-0-1"), namespace="evil"),
    "in another namespace, signature and all": lambda ours: signed(ours, namespace="evil"),
    "created much later": lambda ours: signed(ours, creationTimestamp="2026-11-21T10:10:02Z"),
    "created before": lambda ours: signed(ours, creationTimestamp="2026-11-21T09:58:00Z"),
    "of another API group": lambda ours: signed(
        ours, ownerReferences=[pod()["metadata"]["ownerReferences"][0] | {"apiVersion": "evil.example.com/v1"}]
    ),
}


@pytest.mark.parametrize("forgery", FORGED.values(), ids=FORGED)
def test_a_forged_pod_does_not_count_and_does_not_disturb_the_real_one(cluster, operator, forgery):
    assert not accepted(cluster, forgery(operator))
    real = signed(operator, uid="real", resourceVersion="900")
    assert accepted(cluster, real)
    assert [each.uid for each in cluster.pods("job-uid")] == ["real"]


def test_a_pod_that_is_handed_to_another_job_counts_for_neither(cluster, operator):
    real = signed(operator, of=("team", "other-uid", "cvrp-0-1"), ownerReferences=[OTHER])
    cluster.tracked.put("team", text(real))
    assert cluster.tracked.member(real["metadata"]["uid"]) is not None
    moved = {"ownerReferences": pod()["metadata"]["ownerReferences"], "resourceVersion": "900"}
    assert not accepted(cluster, real | {"metadata": real["metadata"] | moved})
    back = real | {"metadata": real["metadata"] | {"resourceVersion": "901"}}
    cluster.tracked.put("team", text(back))
    assert cluster.tracked.member(real["metadata"]["uid"]) is not None


async def test_a_signature_is_worth_one_pod_even_after_that_one_is_gone(cluster, operator):
    real = signed(operator)
    assert accepted(cluster, real)
    cluster.tracked.forget(real["metadata"]["uid"])
    copy = pod(metadata=real["metadata"] | {"uid": "copy", "resourceVersion": "900"}, status=RUNNING)
    assert not accepted(cluster, copy)


async def test_a_request_that_was_thought_lost_creates_a_pod_that_is_recognized_so_that_it_is_deleted(
    cluster, operator
):
    """It was sent again within the same second, and arrives when the name is free again."""
    late, repeated = signed(operator, uid="late", resourceVersion="900"), signed(operator)
    assert accepted(cluster, repeated)
    cluster.tracked.forget(repeated["metadata"]["uid"])
    assert accepted(cluster, late)


def test_pods_that_a_former_release_signed_without_a_nonce_count(cluster, operator):
    key, signature = (
        "S00gQFLr2Gfg5wwn1t53XkSmgN4VICD1QJHou54nErg",
        "PvQiiPhgHR46EKWEZPK45isyde90QOURUrxkJyYipuYuvI6hxyePzt3VZFJl5k8iZvmVkFUtc-jhJFMytlTUDw",
    )
    operator.trust((key,))
    annotations = {names.PROVENANCE: f"{key}.1795255200.{signature}"}
    assert accepted(cluster, pod(metadata={"annotations": annotations}, status=RUNNING))


def test_a_member_of_a_round_counts_when_no_key_is_left(operator):
    """The status names it, and users who may create pods may not write the status."""
    document = signed(operator)
    meet = {"status": {"rendezvous": {"members": [document["metadata"]["uid"]]}}}
    assert accepted(known(Provenance(lambda: NOW), JOB | meet), document)
    of_the_decoy = known(Provenance(lambda: NOW), JOB, DECOY | meet)
    assert not accepted(of_the_decoy, document), "the status of another job says nothing"


def test_forged_pods_are_reported_once_and_to_a_job_of_their_own_namespace_alone(cluster, caplog):
    events = []
    cluster.recorder.record = lambda job, event: events.append((job.key, event.reason, event.message))
    for namespace in ("team", "evil"):
        cluster.tracked.put(namespace, text(pod(metadata={"namespace": namespace, "uid": namespace})))
    cluster.report_forged()
    cluster.report_forged()
    ((key, reason, message),) = events
    assert (key, reason) == (("team", "cvrp"), "ForgedPod")
    assert "pod cvrp-0-1" in message
    assert sum("claims to belong to TrainingJob cvrp" in each.getMessage() for each in caplog.records) == 2


def test_forged_pods_cost_one_look_each(cluster, operator, monkeypatch):
    """A tenant may make many, and copy signatures that are costly to verify."""
    verified = []
    monkeypatch.setattr(operator, "_is_signed", lambda claim: bool(verified.append(claim.uid)))
    for number in range(50):
        cluster.tracked.put("team", text(signed(operator, uid=f"forged-{number}")))
    for _ in range(3):
        assert cluster.pods("job-uid") == ()
    assert sorted(verified) == sorted({f"forged-{number}" for number in range(50)})


@virtual_time
async def test_the_next_leader_recognizes_the_pods_of_all_former_ones():
    server = LeaseServer()
    pods = []
    for number in range(3):
        former = Provenance(lambda: NOW)
        lease = candidate(server, "pod-a", former)
        task = lease_task(lease)
        await lease.acquired()
        pods.append(signed(former, uid=f"of-{number}", of=("team", "job-uid", "cvrp-0-1")))
        await end(task)
    late = Provenance(lambda: NOW)
    assert not any(is_ours(late, each) for each in pods), "it has not read the Lease"
    lease = candidate(server, "pod-b", late)
    task = lease_task(lease)
    await lease.acquired()
    await end(task)
    assert all(is_ours(late, each) for each in pods)


@virtual_time
async def test_an_emptied_or_overlong_list_of_keys_loses_none_that_a_leader_knows():
    server = LeaseServer()
    ours = Provenance(lambda: NOW)
    lease = candidate(server, "one", ours)
    task = lease_task(lease)
    await lease.acquired()
    for edited in ("", " ".join(f"no-key-{number}" for number in range(2 * MAX_KEYS))):
        metadata = server.lease["metadata"] | {"annotations": {names.POD_KEYS: edited}}
        server.serve("PUT", server.lease | {"metadata": metadata})
        version = server.version
        await pass_renewals(server, version)
        kept = server.lease["metadata"]["annotations"][names.POD_KEYS].split()
        assert ours.public_key in kept
        assert len(kept) <= MAX_KEYS
    await end(task)


def candidate(server, identity, provenance):
    loop = asyncio.get_running_loop()
    more = {"public_key": provenance.public_key, "learned": provenance.trust, "clock": loop.time}
    return Lease(Wire(server), namespace="ty", name="torchyard", identity=identity, **more)


async def end(task):
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def lease_task(lease):
    return asyncio.create_task(lease.run())


async def pass_renewals(server, version):
    while server.version < version + 2:  # noqa: ASYNC110 -- virtual time
        await asyncio.sleep(0.5)


FIRST = CreatePod(name="cvrp-0-1", index=1, incarnation=0)


async def test_the_signature_of_a_pod_just_created_is_spent_before_any_watch_shows_it(tmp_path, monkeypatch, operator):
    """A user who sees the pod can copy its annotations at once, delete it and create another in its place."""
    bodies = []

    async def answer(request):
        if request.method == "POST" and request.path.endswith("/pods"):
            bodies.append(await request.json())
            return web.json_response(pod(metadata={**bodies[-1]["metadata"], "uid": "real"}))
        return web.json_response({})

    async with talking(tmp_path, answer, monkeypatch) as api:
        jobs = Jobs()
        jobs.put(text(JOB))
        one = KubeCluster(api, jobs, SITE, provenance=operator, clock=lambda: NOW)
        await one.create_pod(msgspec.convert(JOB, TrainingJob), FIRST)
    copied = {"annotations": bodies[0]["metadata"]["annotations"], "uid": "copy", "resourceVersion": "900"}
    assert not accepted(one, pod(metadata=copied, status=RUNNING))


async def creates(tmp_path, monkeypatch, provenance, there):
    """Create a pod where another one has its name."""

    async def answer(request):
        if request.method == "POST" and request.path.endswith("/pods"):
            return refused(409, "AlreadyExists", 'pods "cvrp-0-1" already exists')
        return web.json_response(there)

    async with talking(tmp_path, answer, monkeypatch) as api:
        jobs = Jobs()
        jobs.put(text(JOB))
        one = KubeCluster(api, jobs, SITE, provenance=provenance, clock=lambda: NOW)
        await one.create_pod(msgspec.convert(JOB, TrainingJob), FIRST)
        return [each.uid for each in one.pods("job-uid")]


async def test_a_creation_whose_answer_was_lost_is_taken_for_done_by_the_next_leader(tmp_path, monkeypatch, operator):
    there = signed(operator)
    after = Provenance(lambda: NOW + 100)
    after.trust([operator.public_key])
    assert await creates(tmp_path, monkeypatch, after, there) == [there["metadata"]["uid"]]


OF_A_FORMER_JOB = [pod()["metadata"]["ownerReferences"][0] | {"uid": "former-uid"}]


@pytest.mark.parametrize(
    "forgery",
    [
        *FORGED.values(),
        lambda ours: pod(metadata={"ownerReferences": []}),
        lambda ours: pod(metadata={"ownerReferences": OF_A_FORMER_JOB}),
    ],
    ids=[*FORGED, "without an owner", "as of a former job"],
)
async def test_a_forged_pod_that_has_the_name_asks_for_another_name(tmp_path, monkeypatch, operator, forgery):
    with pytest.raises(NameTaken):
        await creates(tmp_path, monkeypatch, operator, forgery(operator))


async def test_a_pod_of_a_former_job_of_the_name_is_waited_for(tmp_path, monkeypatch, operator):
    former = signed(operator, of=("team", "former-uid", "cvrp-0-1"), ownerReferences=OF_A_FORMER_JOB)
    with pytest.raises(Refused, match="PredecessorStopping"):
        await creates(tmp_path, monkeypatch, operator, former)


def test_a_creation_may_wait_for_its_turn(operator):
    document = signed(operator, creationTimestamp=rfc3339(NOW + LATE_SECONDS))
    assert is_ours(operator, document)
