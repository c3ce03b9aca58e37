"""Where tests of a cluster take place: TrainingJobs as the working tree has them, and namespaces that come and go."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

from tests.support.cluster import operators
from tests.support.cluster.patient_api import connected

from torchyard.api.crd import crd
from torchyard.api.profiles.crd import profile_crd
from torchyard.kubernetes.client.api import APPLY_PATCH, Api
from torchyard.kubernetes.client.errors import NotFound
from torchyard.sweeps.crd import sweep_crd

EVIDENCE = Path(__file__).parents[3] / "build" / "evidence"
NAMESPACES = "/api/v1/namespaces"


async def install(api: Api) -> None:
    """Have the API server serve TrainingJobs and TrainingSweeps as the working tree has them."""
    for document in (crd(), sweep_crd(), profile_crd()):
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{document['metadata']['name']}"
        params = {"fieldManager": "torchyard-tests", "force": "true"}
        await api.request("PATCH", path, params=params, body=document, content_type=APPLY_PATCH)
    await operators.until(lambda: _served(api), why=lambda: "the API server does not serve TrainingJobs")


async def make_namespace(api: Api, level: str = "restricted") -> str:
    """A namespace under a level of Pod Security, ready for pods."""
    name = f"ty-{secrets.token_hex(4)}"
    labels = {"torchyard.dev/test": "true", "pod-security.kubernetes.io/enforce": level}
    await api.request("POST", NAMESPACES, body={"metadata": {"name": name, "labels": labels}})
    await operators.until(lambda: _has_account(api, name), why=lambda: f"{name} has no default service account")
    return name


async def delete_namespace(api: Api, name: str) -> None:
    """Have it deleted, which takes a while."""
    await api.request("DELETE", f"{NAMESPACES}/{name}", body={"gracePeriodSeconds": 0})


@contextlib.asynccontextmanager
async def fresh_namespace(api: Api, level: str = "restricted") -> AsyncIterator[str]:
    """A namespace that goes afterwards."""
    name = await make_namespace(api, level)
    try:
        yield name
    finally:
        await delete_namespace(api, name)


@contextlib.contextmanager
def shared_namespace(make: Callable[[], Awaitable[tuple[str, list[str]]]]) -> Iterator[str]:
    """Yield the namespace that `make` returns; afterwards it goes, with the objects whose paths `make` returns."""

    async def remove(namespace: str, made: list[str]) -> None:
        async with connected() as api:
            for path in made:
                await api.request("DELETE", path, body={})
            await delete_namespace(api, namespace)

    namespace, made = asyncio.run(make())
    try:
        yield namespace
    finally:
        asyncio.run(remove(namespace, made))


async def _served(api: Api) -> bool:
    try:
        served = await api.request("GET", "/apis/torchyard.dev/v1alpha1")
    except NotFound:
        return False
    return all(name in served for name in (b'"trainingjobs"', b'"trainingsweeps"', b'"trainingprofiles"'))


async def _has_account(api: Api, namespace: str) -> bool:
    try:
        await api.request("GET", f"{NAMESPACES}/{namespace}/serviceaccounts/default")
    except NotFound:
        return False
    return True
