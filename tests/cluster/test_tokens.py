"""Tokens that a real API server signs, and reviews in doubt: who may speak for which pod, over TLS."""

import contextlib
import json
import ssl
from types import SimpleNamespace

import aiohttp
import pytest
from tests.support.cluster.namespaces import delete_namespace, make_namespace
from tests.support.cluster.operators import until

from torchyard.agents.auth.tokens import AUDIENCE, REVIEW_PATH, Tokens, review_document
from torchyard.kubernetes.client.errors import NotFound

JOB = {
    "apiVersion": "torchyard.dev/v1alpha1",
    "kind": "TrainingJob",
    # On no node, so that no agent of theirs speaks beside us.
    "spec": {"command": ["true"], "nodes": 1, "scheduling": {"nodeSelector": {"torchyard.dev/nowhere": "true"}}},
}
POD = {
    "metadata": {"name": "bystander"},
    "spec": {
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "schedulingGates": [{"name": "torchyard.dev/never"}],
        "containers": [
            {
                "name": "main",
                "image": "bystander",
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
    },
}


@pytest.fixture
def sign(api, namespace):
    """A token as the kubelet asks for it, bound to a pod."""

    async def signed(pod, audience=AUDIENCE, namespace=namespace):
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        spec = {"audiences": [audience], "expirationSeconds": 3600, "boundObjectRef": bound if pod else None}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token"
        answer = await api.request("POST", path, body={"spec": spec})
        return json.loads(answer)["status"]["token"]

    return signed


@pytest.fixture
async def bystander(api, namespace):
    """A pod of no TrainingJob."""
    return json.loads(await api.request("POST", f"/api/v1/namespaces/{namespace}/pods", body=POD))


@pytest.fixture
async def members(api, namespace, operator):
    """The pods of two jobs of one pod each, by the job's name."""
    jobs = f"/apis/torchyard.dev/v1alpha1/namespaces/{namespace}/trainingjobs"
    for name in ("first", "second"):
        await api.request("POST", jobs, body=JOB | {"metadata": {"name": name}})
    found = {}

    async def both():
        pods = json.loads(await api.request("GET", f"/api/v1/namespaces/{namespace}/pods"))["items"]
        found.update({pod["metadata"]["labels"]["torchyard.dev/job"]: pod for pod in pods})
        return len(found) == 2

    await until(both)
    return found


@pytest.fixture
async def forge(api, namespace, members, sign):
    """Makes a copy of a job's pod in a namespace, and a token of it; None: the garbage collector was faster."""
    elsewhere = await make_namespace(api)
    jobs = f"/apis/torchyard.dev/v1alpha1/namespaces/{elsewhere}/trainingjobs"
    decoy = JOB | {"metadata": {"name": "first"}, "spec": JOB["spec"] | {"suspend": True}}
    await api.request("POST", jobs, body=decoy)
    real = members["first"]["metadata"]
    copied = {name: real[name] for name in ("labels", "annotations", "ownerReferences")}

    async def forged(*, in_the_jobs_namespace):
        where = namespace if in_the_jobs_namespace else elsewhere
        body = POD | {"metadata": {"name": "first-1-0", **copied}}
        pod = json.loads(await api.request("POST", f"/api/v1/namespaces/{where}/pods", body=body))
        with contextlib.suppress(NotFound):  # its owner is not in that namespace
            return await sign(pod, namespace=where)

    yield forged
    left = json.loads(await api.request("GET", f"/api/v1/namespaces/{namespace}/pods"))["items"]
    assert {pod["metadata"]["name"] for pod in left} == {"first-0-0", "first-1-0", "second-0-0"}
    assert not any("deletionTimestamp" in pod["metadata"] for pod in left)
    await delete_namespace(api, elsewhere)


@pytest.fixture
async def sync(operator, certificates, address):
    """Call the operator as an agent does; return status and body of the answer."""
    trust = ssl.create_default_context(cafile=certificates / "ca.crt")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session:

        async def call(token, **fields):
            body = {"protocol": 1, "instance": "i", "sequence": 1, "state": "starting"} | fields
            url = f"https://{address}:{operator.intake_port}/v1/sync"
            async with session.post(url, json=body, headers={"Authorization": f"Bearer {token}"}) as response:
                return response.status, await response.json()

        yield call


async def test_only_pods_of_jobs_are_heard(members, bystander, sign, sync, operator):
    for pod in members.values():
        status, answer = await sync(await sign(pod))
        assert (status, answer["command"]) == (200, {"verb": "wait"})
    assert await operator.figure("torchyard_intake_vouched_total") == 2
    assert await operator.figure("torchyard_intake_reviews_total") == 0, "the API server's keys say enough"

    refused = {
        "of no job": await sign(bystander),
        "for the API server": await sign(members["first"], "https://kubernetes.default.svc"),
        "not signed": (await sign(members["first"])).rpartition(".")[0] + ".c2lnbmVk",
    }
    for what, token in refused.items():
        status, answer = await sync(token)
        assert (status, answer["error"]) == (403, "The token does not belong to a pod of this operator."), what
    assert await operator.figure("torchyard_intake_syncs_total") == 2
    assert await operator.figure("torchyard_intake_reviews_total") == 1, "the one whose signature is not true"


async def test_a_forged_pod_is_not_heard_takes_no_place_and_is_reported(forge, members, sign, sync, operator):
    for here in (True, False):
        token = await forge(in_the_jobs_namespace=here)
        assert token is not None or not here
        if token is not None:
            assert (await sync(token, state="ready"))[0] == 403, here
    assert (await sync(await sign(members["first"])))[0] == 200

    async def counted():
        return await operator.figure("torchyard_pods_forged") >= 1

    await until(counted)


async def test_a_token_of_another_jobs_pod_speaks_for_its_own_pod_alone(members, sign, sync):
    first, second = await sign(members["first"]), await sign(members["second"])
    assert (await sync(first, instance="of first", state="ready"))[0] == 200
    # The body says nothing of who speaks. A new instance supersedes the one before it, in the pod of its token only.
    assert (await sync(second, instance="of second", state="ready"))[0] == 200
    assert (await sync(second, instance="pretender", sequence=2, state="exiting"))[0] == 200
    assert (await sync(second, instance="of second", sequence=3, state="ready"))[0] == 409
    assert (await sync(first, instance="of first", sequence=2, state="ready"))[0] == 200


async def test_the_token_of_a_deleted_pod_is_worth_nothing(members, sign, sync, api, namespace):
    token = await sign(members["first"])
    assert (await sync(token))[0] == 200
    pod = f"/api/v1/namespaces/{namespace}/pods/{members['first']['metadata']['name']}"
    await api.request("DELETE", pod, body={"gracePeriodSeconds": 0})

    async def refused():
        return (await sync(token))[0] == 403

    await until(refused)


async def test_the_api_server_names_the_pod_in_its_review(api, namespace, bystander, sign):
    async def review(text, audience):
        return await api.request("POST", REVIEW_PATH, body=review_document(text, audience))

    tokens = Tokens(review, lambda _uid: SimpleNamespace(namespace=namespace, account="default"))
    assert await tokens.authenticate(await sign(bystander)) == bystander["metadata"]["uid"]
    elsewhere = Tokens(review, lambda _uid: SimpleNamespace(namespace="elsewhere", account="default"))
    assert await elsewhere.authenticate(await sign(bystander)) is None
    assert await tokens.authenticate(await sign(bystander, "other")) is None
    assert tokens.counters.reviews == 1, "a token for another audience is not even sent to the API server"
