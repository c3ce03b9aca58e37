"""Objects that the operator reads back from the API server, written by others (docs/security.md)."""

import json

import pytest
from tests.support.cluster.jobs import SLEEPS, Jobs
from tests.support.cluster.operators import holder, until

from torchyard.api.resource import read_job
from torchyard.kubernetes.client.api import MERGE_PATCH
from torchyard.kubernetes.manifests import names
from torchyard.kubernetes.manifests.companions import service

NOWHERE = {"nodeSelector": {"torchyard.dev/nowhere": "true"}}
FOREVER = "9999-12-31T23:59:59Z"


@pytest.mark.parametrize("operator", [{"flags": ("--network-peers=[]",)}], indirect=True)
@pytest.mark.usefixtures("operator")
async def test_a_network_policy_that_is_already_there_becomes_the_one_of_the_job(api, namespace):
    jobs = Jobs(api, namespace)
    await jobs.submit("mine", command=SLEEPS, nodes=1, scheduling=NOWHERE, suspend=True)
    uid = json.loads(await api.request("GET", f"{jobs.path}/mine"))["metadata"]["uid"]
    path = f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"
    forged = {
        "metadata": {"name": names.gang_policy(uid), "finalizers": ["example.dev/keep"]},
        "spec": {"podSelector": {}, "policyTypes": ["Egress", "Ingress"], "ingress": [{}], "egress": [{}]},
    }
    await api.request("POST", path, body=forged)
    await jobs.edit("mine", suspend=False)

    async def has_a_pod():
        return len(await jobs.pods("mine")) == 1

    await until(has_a_pod)
    found = json.loads(await api.request("GET", f"{path}/{names.gang_policy(uid)}"))
    own = {"matchLabels": {names.JOB_UID: uid}}
    assert found["spec"]["podSelector"] == own
    assert found["spec"]["ingress"] == [{"from": [{"podSelector": own}]}]
    assert found["spec"]["policyTypes"] == ["Ingress"]
    assert [owner["uid"] for owner in found["metadata"]["ownerReferences"]] == [uid]
    free = {"metadata": {"finalizers": None}}  # which would keep the namespace
    await api.request("PATCH", f"{path}/{names.gang_policy(uid)}", body=free, content_type=MERGE_PATCH)


@pytest.mark.usefixtures("operator")
async def test_a_service_without_an_owner_or_of_another_job_is_named_and_the_job_continues_when_it_is_gone(
    api, namespace
):
    jobs = Jobs(api, namespace)
    for name in ("other", "mine"):
        launcher = {"kind": "none"}
        await jobs.submit(name, command=SLEEPS, nodes=1, scheduling=NOWHERE, launcher=launcher, suspend=True)
    other, mine = [read_job(json.loads(await api.request("GET", f"{jobs.path}/{name}"))) for name in ("other", "mine")]
    services = f"{jobs.core}/services"
    right = service(mine)
    forged = [
        right | {"metadata": {"name": right["metadata"]["name"]}, "spec": right["spec"] | {"selector": {"a": "b"}}},
        right | {"metadata": right["metadata"] | {"ownerReferences": service(other)["metadata"]["ownerReferences"]}},
    ]
    for body in forged:
        await api.request("POST", services, body=body)
        await jobs.edit("mine", suspend=False)
        status = await jobs.until("mine", lambda now: now.get("reason") == "NameConflict")
        assert right["metadata"]["name"] in status["message"]
        assert not await jobs.pods("mine")
        await jobs.edit("mine", suspend=True)
        await jobs.until("mine", lambda now: now.get("state") == "Suspended")
        await api.request("DELETE", f"{services}/{right['metadata']['name']}")
    await jobs.edit("mine", suspend=False)

    async def has_a_pod():
        return len(await jobs.pods("mine")) == 1

    await until(has_a_pod)
    found = json.loads(await api.request("GET", f"{services}/{right['metadata']['name']}"))
    assert [owner["uid"] for owner in found["metadata"]["ownerReferences"]] == [mine.metadata.uid]
    assert found["spec"]["selector"] == right["spec"]["selector"]


@pytest.mark.usefixtures("operator")
async def test_a_forged_event_is_a_line_of_text_and_holds_nothing_up(api, namespace):
    jobs = Jobs(api, namespace)
    volume = {"name": "later", "mountPath": "/later", "configMap": "later"}
    await jobs.submit("mine", command=SLEEPS, nodes=1, gracePeriod="2s", volumes=[volume])

    async def placed():
        return any(pod["spec"].get("nodeName") for pod in (await jobs.pods("mine")).values())

    await until(placed)
    (pod,) = (await jobs.pods("mine")).values()
    event = {
        "metadata": {"name": "forged"},
        "involvedObject": {
            "kind": "Pod",
            "namespace": namespace,
            "name": pod["metadata"]["name"],
            "uid": pod["metadata"]["uid"],
        },
        "type": "Warning",
        "reason": "FailedMount",
        "message": "\x1b]0;owned\x07\x1b[2Jforged\u202e\n\x9b31m",
        "lastTimestamp": FOREVER,
        "source": {"component": "kubelet"},
    }
    await api.request("POST", f"{jobs.core}/events", body=event)
    status = await jobs.until("mine", lambda now: "forged" in now.get("message", ""))
    assert status["message"].isprintable()
    await jobs.make("configmaps", "later", data={"A": "b"})
    await jobs.until("mine", lambda now: "forged" not in now.get("message", ""))


async def test_a_lease_that_another_has_taken_is_waited_for_and_taken_over(api, namespace, make_operator):
    folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    spec = {
        "holderIdentity": "stranger",
        "leaseDurationSeconds": 1,
        "leaseTransitions": 2**31 - 1,
        "renewTime": FOREVER.replace("Z", ".000000Z"),
    }
    keys = {names.POD_KEYS: "no-key " * 300}
    await api.request("POST", folder, body={"metadata": {"name": "torchyard", "annotations": keys}, "spec": spec})
    operator = make_operator()
    operator.start()
    await until(operator.leads, why=lambda: operator.log.read_text()[-2000:])
    assert await holder(api, namespace) != "stranger"
