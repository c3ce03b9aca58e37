"""A leader that cannot renew its lease stops writing before anybody else can begin, and stays silent afterwards."""

import asyncio
import contextlib
import itertools
import json
import time

import pytest
from tests.support.cluster.fault_proxy import FaultProxy, Request
from tests.support.cluster.operators import holder, until

from torchyard.kubernetes.election import Terms

TERMS = Terms()
# A request is seen when it arrives, which on a slow machine is later than it was sent.
LATE = (TERMS.lease - TERMS.writing) / 2


@pytest.fixture
async def proxy(api):
    async with FaultProxy(api).listening() as proxy:
        yield proxy


@pytest.fixture
async def two_operators(api, namespace, proxy, make_operator, tmp_path):
    """One behind the proxy, which leads, and one that is not."""
    one = make_operator(name="one", kubeconfig=proxy.kubeconfig(tmp_path / "proxied"))
    two = make_operator(name="two")
    one.start()
    await until(one.leads)
    two.start()
    await two.ready()
    return one, two


@contextlib.asynccontextmanager
async def job_after_job(api, namespace):
    """A new job every 0.3 s: there is always something to write. Suspended ones, so that no pod is ever started."""
    path = f"/apis/torchyard.dev/v1alpha1/namespaces/{namespace}/trainingjobs"

    async def create() -> None:
        for number in itertools.count():
            spec = {"command": ["true"], "suspend": True}
            body = {
                "apiVersion": "torchyard.dev/v1alpha1",
                "kind": "TrainingJob",
                "metadata": {"name": f"job-{number}"},
                "spec": spec,
            }
            await api.request("POST", path, body=body)
            await asyncio.sleep(0.3)

    task = asyncio.create_task(create())
    try:
        yield path
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_a_leader_whose_renewals_are_lost_ends_its_writing_before_its_lease_can_be_taken(
    api, namespace, proxy, two_operators
):
    """Only the lease is out of reach: it sees every new job, and could write."""
    one, two = two_operators
    async with job_after_job(api, namespace):
        await until(lambda: len(proxy.writes()) > 5)
        first = await holder(api, namespace)
        renewed = max(request.at for request in proxy.requests if _renews(request))
        proxy.held = lambda request: "/leases/" in request.path and request.at > renewed
        cut = time.monotonic()
        await until(lambda: _held_by_another(api, namespace, first))
        taken = time.monotonic()
        await until(two.leads)
        await asyncio.sleep(3)  # there is more to write all the time
        last = proxy.writes()[-1].at
        assert last > cut, "it must have gone on writing for a while, or the test shows nothing"
        assert last < renewed + TERMS.writing + LATE
        assert taken > renewed + TERMS.lease - 0.1
        assert proxy.writes(since=taken) == []
        proxy.held = lambda _request: False
        assert await one.ended() == 1
    assert proxy.writes(since=taken) == []


async def test_a_leader_that_is_cut_off_altogether_sends_nothing_once_the_network_is_back(
    api, namespace, proxy, two_operators
):
    one, two = two_operators
    async with job_after_job(api, namespace) as jobs:
        await until(lambda: len(proxy.writes()) > 5)
        cut = time.monotonic()
        proxy.held = lambda _request: True
        await until(two.leads)
        taken = time.monotonic()
        proxy.held = lambda request: request.at < taken  # what it sent before is lost
        assert await one.ended() == 1
        assert proxy.writes(since=cut + TERMS.writing + LATE) == []
    await until(lambda: _all_have_a_state(api, jobs))


async def test_an_api_server_that_is_away_for_a_while_deposes_no_leader(api, namespace, proxy, make_operator, tmp_path):
    one = make_operator(name="one", kubeconfig=proxy.kubeconfig(tmp_path / "proxied"))
    one.start()
    await until(one.leads)
    away = time.monotonic()
    proxy.held = lambda request: request.at > away
    await until(lambda: _not(one.leads))
    assert (await one.page("/healthz"))[0] == 200
    await asyncio.sleep(10)
    proxy.held = lambda _request: False
    await until(one.leads)
    async with job_after_job(api, namespace) as jobs:
        await asyncio.sleep(1)
    await until(lambda: _all_have_a_state(api, jobs))
    assert one.process.poll() is None


def _renews(request: Request) -> bool:
    return request.verb == "PUT" and "/leases/" in request.path


async def _held_by_another(api, namespace, first) -> bool:
    return await holder(api, namespace) not in {first, ""}


async def _not(condition) -> bool:
    return not await condition()


async def _all_have_a_state(api, jobs) -> bool:
    return all(job.get("status", {}).get("state") for job in json.loads(await api.request("GET", jobs))["items"])
