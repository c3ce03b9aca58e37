"""The operator as a process, against a real API server: start, leadership, end, and objects that are no good."""

import asyncio
import datetime as dt
import json
import signal
import ssl
import time

import pytest
from cryptography import x509
from tests.support.cluster.fault_proxy import FaultProxy
from tests.support.cluster.jobs import counts
from tests.support.cluster.operators import holder, sign_again, sign_for, until

from torchyard.kubernetes.client.api import MERGE_PATCH
from torchyard.kubernetes.client.errors import NotFound

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainingjobs.torchyard.dev"
# On no node, so that it stays as it is.
JOB = {
    "apiVersion": "torchyard.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "job"},
    "spec": {"command": ["true"], "nodes": 2, "scheduling": {"nodeSelector": {"torchyard.dev/nowhere": "true"}}},
}


@pytest.fixture
def jobs(namespace) -> str:
    return f"/apis/torchyard.dev/v1alpha1/namespaces/{namespace}/trainingjobs"


@pytest.fixture
def pods(namespace) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


@pytest.fixture
def authority(certificates, address):
    """The folder of certificates, and the address that they are for."""
    return certificates, address


async def listed(api, path) -> list[dict]:
    return json.loads(await api.request("GET", path))["items"]


async def state_of(api, jobs, name="job") -> str:
    return json.loads(await api.request("GET", f"{jobs}/{name}")).get("status", {}).get("state", "")


async def test_a_job_gets_its_pods(api, jobs, pods, operator):
    await api.request("POST", jobs, body=JOB)
    await until(lambda: _number(api, pods, 2))
    created = await listed(api, pods)
    job = json.loads(await api.request("GET", f"{jobs}/job"))
    assert {pod["metadata"]["name"] for pod in created} == {"job-0-0", "job-0-1"}
    owners = [owner for pod in created for owner in pod["metadata"]["ownerReferences"]]
    assert {(owner["uid"], owner["controller"]) for owner in owners} == {(job["metadata"]["uid"], True)}

    async def is_pending() -> bool:
        return await state_of(api, jobs) == "Pending"

    await until(is_pending)  # pods of a new job come first


async def _number(api, path, number) -> bool:
    return len(await listed(api, path)) == number


async def test_a_deleted_job_takes_its_pods_along_without_an_operator(api, jobs, pods, operator):
    await api.request("POST", jobs, body=JOB)
    await until(lambda: _number(api, pods, 2))
    await operator.kill()
    await api.request("DELETE", f"{jobs}/job")
    with pytest.raises(NotFound):
        await api.request("GET", f"{jobs}/job")
    await until(lambda: _number(api, pods, 0))  # a collector of garbage has its own times


async def test_a_renewed_certificate_is_served_and_disturbs_no_agent(api, jobs, pods, operator, authority):
    """The sidecar of the chart replaces the pair after 60 of 90 days; here one ends before, under a running job."""
    certificates, address = authority
    spec = {"command": counts(steps=100_000, seconds=0.5), "gracePeriod": "5s"}
    await api.request("POST", jobs, body={**JOB, "spec": spec})

    async def status() -> dict:
        return json.loads(await api.request("GET", f"{jobs}/job")).get("status", {})

    async def is_state(state) -> bool:
        return (await status()).get("state") == state

    async def served() -> bytes:
        pem = await asyncio.to_thread(ssl.get_server_certificate, (address, operator.intake_port))
        return ssl.PEM_cert_to_DER_cert(pem)

    async def is_new() -> bool:
        return await served() == ssl.PEM_cert_to_DER_cert((certificates / "tls.crt").read_text())

    await until(lambda: is_state("Running"))
    (before,) = await listed(api, pods)

    async def has_ended() -> bool:
        return dt.datetime.now(dt.UTC) > ends

    try:
        ends = sign_for(certificates, 25)
        await until(is_new)
        old = await served()
        assert x509.load_der_x509_certificate(old).not_valid_after_utc == ends
        await until(has_ended)
    finally:
        sign_again(certificates, address)
    await until(is_new)
    assert await served() != old
    assert "reloaded the intake's certificate" in operator.log.read_text()
    found = await status()
    (pod,) = await listed(api, pods)
    assert (found["state"], pod["metadata"]["uid"]) == ("Running", before["metadata"]["uid"])
    assert found.get("restarts", {}).get("total", 0) == 0
    # Over the connection from before, the agent is asked to end; a new agent connects by the new certificate.
    for suspend, state in ((True, "Suspended"), (False, "Running")):
        await api.request("PATCH", f"{jobs}/job", body={"spec": {"suspend": suspend}}, content_type=MERGE_PATCH)
        await until(lambda state=state: is_state(state))


@pytest.mark.alone
async def test_a_resource_that_is_not_served_for_a_while(api, jobs, pods, operator):
    await api.request("POST", jobs, body=JOB)
    await until(lambda: _number(api, pods, 2))
    try:
        await _serve(api, jobs, served=False)
        await api.request("DELETE", f"{pods}/job-0-1")
        await until(lambda: "are not served at the moment" in operator.log.read_text())
    finally:
        await _serve(api, jobs, served=True)
    await until(lambda: _has_pods(api, pods, {"job-0-0", "job-1-1"}))


async def _serve(api, jobs, *, served) -> None:
    resource = json.loads(await api.request("GET", CRD))
    versions = [{**each, "served": served} for each in resource["spec"]["versions"]]
    await api.request("PATCH", CRD, body={"spec": {"versions": versions}}, content_type=MERGE_PATCH)

    await until(lambda: _is_served(api, jobs, served))


async def _is_served(api, jobs, served) -> bool:
    try:
        await api.request("GET", jobs)
    except NotFound:
        return not served
    return served


async def _has_pods(api, pods, names) -> bool:
    return {pod["metadata"]["name"] for pod in await listed(api, pods)} == names


async def test_a_second_process_is_ready_and_takes_over_after_a_kill(api, jobs, make_operator):
    one, two = make_operator(name="one"), make_operator(name="two")
    for each in (one, two):
        each.start()
    for each in (one, two):
        await each.ready()
    await until(lambda: _one_leads(one, two))
    leader, standby = (one, two) if await one.leads() else (two, one)
    assert not await standby.leads()
    await leader.kill()
    await until(standby.leads)
    await api.request("POST", jobs, body=JOB)
    await until(lambda: _is(api, jobs, "Pending"))


async def _one_leads(*several) -> bool:
    return sum([await each.leads() for each in several]) == 1


async def _is(api, jobs, state) -> bool:
    return await state_of(api, jobs) == state


async def test_a_clean_stop_hands_over_at_once(api, jobs, namespace, make_operator):
    one, two = make_operator(name="one"), make_operator(name="two")
    one.start()
    await until(one.leads)
    before = await holder(api, namespace)
    two.start()
    await two.ready()
    await api.request("POST", jobs, body=JOB)
    await until(lambda: _is(api, jobs, "Pending"))
    one.signal(signal.SIGTERM)
    assert await one.ended() == 0
    assert await holder(api, namespace) != before, (
        "it gave its lease back, so that no standby waits for the lease to end"
    )
    await until(two.leads)
    assert await state_of(api, jobs) == "Pending"


async def test_a_stopped_leader_that_wakes_up_writes_nothing(api, jobs, make_operator, tmp_path):
    async with FaultProxy(api).listening() as proxy:
        one, two = (
            make_operator(name="one", kubeconfig=proxy.kubeconfig(tmp_path / "proxied")),
            make_operator(name="two"),
        )
        one.start()
        await until(one.leads)
        two.start()
        await two.ready()
        one.signal(signal.SIGSTOP)
        await until(two.leads)
        await api.request("POST", jobs, body=JOB)  # news that the first one finds when it wakes up
        await until(lambda: _is(api, jobs, "Pending"))
        woken = time.monotonic()
        one.signal(signal.SIGCONT)
        assert await one.ended() == 1
        assert proxy.writes(since=woken) == []
    assert "took over the lease of" in one.log.read_text()
    assert await two.leads()
