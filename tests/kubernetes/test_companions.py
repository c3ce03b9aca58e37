"""What the pods of a job need beside themselves: present before the first pod, the job's own, once for a whole gang."""

import asyncio
import contextlib

import msgspec
import pytest
from aiohttp import web
from tests.support.kubernetes.api_server import refused, talking

from torchyard.api.resource import TrainingJob
from torchyard.kubernetes.cache.jobs import Jobs
from torchyard.kubernetes.cluster import KubeCluster
from torchyard.kubernetes.companions import FRESH_SECONDS
from torchyard.kubernetes.manifests.companions import network_policy, service
from torchyard.kubernetes.manifests.names import Site
from torchyard.reconcile.actions import CreatePod
from torchyard.reconcile.ports import Conflict, Refused

JOB = {
    "apiVersion": "torchyard.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "cvrp", "namespace": "team", "uid": "1-2-3"},
    "spec": {"command": ["true"], "nodes": 3},
}
AGENTLESS = JOB | {"spec": JOB["spec"] | {"launcher": {"kind": "none"}}}
PEERS = ({"namespaceSelector": {"matchLabels": {"team": "monitoring"}}},)
POLICY = "PATCH /apis/networking.k8s.io/v1/namespaces/team/networkpolicies/ty-1-2-3"
SERVICE = "POST /api/v1/namespaces/team/services"
PODS = "POST /api/v1/namespaces/team/pods"


def job(document):
    return msgspec.convert(document, TrainingJob)


class Server:
    """An API server that creates everything, except where a test answers."""

    def __init__(self):
        self.calls, self.bodies, self.answers, self.now = [], {}, {}, 1000.0

    async def answer(self, request):
        call = f"{request.method} {request.path}"
        self.calls.append(call)
        self.bodies[call] = await request.json() if request.can_read_body else None
        found = self.answers.get(call)
        sent = (self.bodies[call] or {}).get("metadata", {})
        return found() if found else web.json_response({"metadata": {**sent, "uid": "u", "resourceVersion": "1"}})

    @contextlib.asynccontextmanager
    async def cluster(self, folder, monkeypatch, peers=PEERS):
        site = Site(operator_url="https://x:1", ca_pem="x", agent_image="a", trainer_image="t", network_peers=peers)
        async with talking(folder, self.answer, monkeypatch) as api:
            yield KubeCluster(api, Jobs(), site, clock=lambda: self.now)


async def create(cluster, document, *indexes):
    pods = (CreatePod(name=f"cvrp-0-{index}", index=index, incarnation=0) for index in indexes)
    return await asyncio.gather(*(cluster.create_pod(job(document), pod) for pod in pods), return_exceptions=True)


@pytest.fixture
def server():
    return Server()


def test_only_pods_of_the_job_and_peers_of_the_site_connect_to_its_pods():
    members = {"matchLabels": {"torchyard.dev/job-uid": "1-2-3"}}
    document = network_policy(job(JOB), PEERS)
    assert document["spec"] == {
        "podSelector": members,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": members}, *PEERS]}],
    }
    (owner,) = document["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("TrainingJob", "1-2-3", True)


async def test_a_gang_has_its_policy_before_its_first_pod_for_one_request(server, tmp_path, monkeypatch):
    async with server.cluster(tmp_path, monkeypatch) as cluster:
        assert await create(cluster, JOB, 0, 1, 2) == [None] * 3
        assert server.calls == [POLICY, PODS, PODS, PODS]
        assert server.bodies[POLICY] == network_policy(job(JOB), PEERS)
        # One that was removed meanwhile is there again before the next pod.
        server.now += FRESH_SECONDS
        await create(cluster, JOB, 1)
        assert server.calls[4:] == [POLICY, PODS]


async def test_no_pod_is_created_without_its_policy(server, tmp_path, monkeypatch):
    message = (
        'networkpolicies.networking.k8s.io "ty-1-2-3" is forbidden: User "x" cannot patch resource "networkpolicies" '
        'in API group "networking.k8s.io" in the namespace "team"'
    )
    server.answers[POLICY] = lambda: refused(403, "Forbidden", message)
    async with server.cluster(tmp_path, monkeypatch) as cluster:
        found = await create(cluster, JOB, 0, 1, 2)
        assert [(type(each), each.reason) for each in found] == [(Refused, "Forbidden")] * 3
        assert "patch networkpolicies.networking.k8s.io in namespace team" in found[0].message
        assert server.calls == [POLICY]


async def test_where_the_operator_makes_no_policies_none_is_asked_for(server, tmp_path, monkeypatch):
    async with server.cluster(tmp_path, monkeypatch, peers=None) as cluster:
        await create(cluster, JOB, 0)
        assert server.calls == [PODS]


def there(change):
    """The Service as the API server returns it, with its defaults, after `change`."""
    document = service(job(AGENTLESS))
    document["spec"] |= {"clusterIPs": ["None"], "sessionAffinity": "None", "internalTrafficPolicy": "Cluster"}
    change(document)
    return lambda: web.json_response(document)


def of(**owner):
    return lambda document: document["metadata"]["ownerReferences"][0].update(owner)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda _document: None, None),
        (of(name="other", uid="4-5-6"), "does not belong to this job"),
        (lambda document: document["metadata"].pop("ownerReferences"), "does not belong to this job"),
        (lambda document: document["spec"].update(selector={"app": "evil"}), "was changed: spec.selector"),
        (
            lambda document: document["spec"].update(type="ExternalName", externalName="evil.example"),
            "was changed: spec.type",
        ),
        (lambda document: document["spec"]["ports"][0].update(targetPort=1), "was changed: spec.ports"),
    ],
)
async def test_a_service_counts_as_the_jobs_only_as_the_operator_writes_it(server, tmp_path, monkeypatch, change, why):
    server.answers[SERVICE] = lambda: refused(409, "AlreadyExists", 'services "ty-cvrp" already exists')
    server.answers["GET /api/v1/namespaces/team/services/ty-cvrp"] = there(change)
    async with server.cluster(tmp_path, monkeypatch, peers=None) as cluster:
        (found,) = await create(cluster, AGENTLESS, 0)
    if why is None:
        assert found is None
        assert server.calls[-1] == PODS
    else:
        assert (found.reason, found.message) == ("NameConflict", f"service ty-cvrp {why}")
        assert PODS not in server.calls


async def test_a_service_that_goes_while_it_is_read_is_tried_again(server, tmp_path, monkeypatch):
    """As that of a job of the same name does, which was deleted a moment ago."""
    server.answers[SERVICE] = lambda: refused(409, "AlreadyExists", 'services "ty-cvrp" already exists')
    path = "GET /api/v1/namespaces/team/services/ty-cvrp"
    server.answers[path] = lambda: refused(404, "NotFound", details={"name": "ty-cvrp", "kind": "services"})
    async with server.cluster(tmp_path, monkeypatch) as cluster:
        (found,) = await create(cluster, AGENTLESS, 0)
    assert isinstance(found, Conflict)


async def test_the_service_of_a_former_job_of_the_name_is_waited_for(server, tmp_path, monkeypatch):
    """It goes by itself, and GitOps tools must not read that the job has failed."""
    server.answers[SERVICE] = lambda: refused(409, "AlreadyExists", 'services "ty-cvrp" already exists')
    server.answers["GET /api/v1/namespaces/team/services/ty-cvrp"] = there(of(uid="4-5-6"))
    async with server.cluster(tmp_path, monkeypatch, peers=None) as cluster:
        (found,) = await create(cluster, AGENTLESS, 0)
    assert (found.reason, found.message, found.retry_after > 0) == ("PredecessorStopping", "service ty-cvrp", True)
    assert PODS not in server.calls
