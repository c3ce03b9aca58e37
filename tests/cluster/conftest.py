"""Any cluster that KUBECONFIG names: a namespace for every test, operators for it, evidence when it fails."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import operators
from tests.support.cluster.evidence import collect
from tests.support.cluster.namespaces import EVIDENCE, delete_namespace, fresh_namespace, install, make_namespace
from tests.support.cluster.patient_api import connected

from torchyard.kubernetes.client.api import Api

HERE = Path(__file__).parent
FAILED = pytest.StashKey[bool]()


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.cluster)
    items.sort(key=_is_last)


def _is_last(item) -> bool:
    mark = item.get_closest_marker("alone")
    return mark is not None and mark.kwargs.get("last", False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


@pytest.fixture(scope="session")
def kubeconfig() -> str:
    """The file that KUBECONFIG names; without it there is no cluster to test on."""
    file = os.environ.get("KUBECONFIG")
    if not file:
        pytest.skip('no cluster: set KUBECONFIG, or make one: make kind-up; eval "$(make -s kind-env)"')
    return file


@pytest.fixture(scope="session")
def installed(kubeconfig) -> None:
    """The CRD of the working tree."""

    async def whole() -> None:
        async with connected() as api:
            await _alone(api)
            await install(api)

    asyncio.run(whole())


async def _alone(api: Api) -> None:
    """Two operators that manage the same jobs prove nothing about either."""
    params = {"labelSelector": "app.kubernetes.io/name=torchyard"}
    found = json.loads(await api.request("GET", "/apis/apps/v1/deployments", params=params))["items"]
    for each in found:
        words = [word for one in each["spec"]["template"]["spec"]["containers"] for word in one.get("args", ())]
        if not any(word.startswith("--namespace=") for word in words):
            where = each["metadata"]["namespace"]
            pytest.exit(f"an operator in namespace {where} manages every namespace: uninstall it first", 2)


@pytest.fixture
async def api(installed) -> AsyncIterator[Api]:
    """The API server, with all rights."""
    async with connected() as api:
        yield api


@pytest.fixture(scope="module")
def shared_namespace(installed) -> Iterator[str]:
    """A namespace for those tests of a file that leave nothing in it."""

    async def once(work: Callable[..., Coroutine[Any, Any, Any]], *given: str) -> Any:
        async with connected() as api:
            return await work(api, *given)

    name = asyncio.run(once(make_namespace))
    yield name
    asyncio.run(once(delete_namespace, name))


@pytest.fixture
async def namespace(api, request, tmp_path) -> AsyncIterator[str]:
    """A namespace of this test alone."""
    async with fresh_namespace(api) as name:
        yield name
        if request.node.stash.get(FAILED, False):
            await _keep_evidence(api, name, request.node.name, tmp_path)


@pytest.fixture
async def privileged_namespace(api) -> AsyncIterator[str]:
    """Another one, whose pods may use their node's network."""
    async with fresh_namespace(api, "privileged") as name:
        yield name


async def _keep_evidence(api: Api, namespace: str, what: str, logs: Path) -> None:
    folder = EVIDENCE / f"{what[:80]}-{namespace}".replace("/", "_")
    gist = await collect(api, namespace, folder)
    for log in sorted(logs.glob("*.log")):  # noqa: ASYNC240 -- nothing else runs now
        shutil.copy(log, folder)
    sys.stderr.write(f"\n{gist}\nevidence of this failure: {folder}\n")


@pytest.fixture(scope="session")
def address(kubeconfig) -> str:
    """Where pods reach this machine."""

    async def find() -> str:
        async with connected() as api:
            return await operators.address_for_pods(api)

    return asyncio.run(find())


@pytest.fixture(scope="session")
def certificates(tmp_path_factory, address) -> Path:
    """A folder of certificates for this machine."""
    return operators.make_certificates(tmp_path_factory.mktemp("tls"), address)


@pytest.fixture(scope="session")
def in_a_namespace(installed, certificates, address, tmp_path_factory) -> Callable[..., Any]:
    """Runs `work(api, namespace, make_operator)` once for several tests, in a namespace of its own."""

    def run(work: Callable[..., Coroutine[Any, Any, Any]]) -> Any:
        async def whole() -> Any:
            folder = tmp_path_factory.mktemp("operator")
            async with connected() as api, fresh_namespace(api) as name:
                with operators.several() as make:
                    try:
                        return await work(
                            api, name, lambda **given: make(folder, name, tls=certificates, address=address, **given)
                        )
                    except BaseException:
                        await _keep_evidence(api, name, work.__qualname__, folder)
                        raise

        return asyncio.run(whole())

    return run


@pytest.fixture
def make_operator(tmp_path, namespace, certificates, address) -> Iterator[Callable[..., operators.Operator]]:
    """Makes operators of this test's namespace; call `start()`. They end with the test."""
    with operators.several() as make:
        yield lambda **given: make(tmp_path, namespace, tls=certificates, address=address, **given)


@pytest.fixture
async def operator(make_operator, request) -> operators.Operator:
    """One operator of this test's namespace, ready and leading; a parameter: further arguments of `Operator`."""
    one = make_operator(**getattr(request, "param", {}))
    one.start()
    await one.ready()
    await operators.until(one.leads, why=lambda: one.log.read_text()[-3000:])
    return one
