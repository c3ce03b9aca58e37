"""The installations that a cluster has, and the jobs that depend on them."""

from collections import Counter
from typing import Any, NamedTuple

import msgspec

from torchyard.api.resource import GROUP, PLURAL, VERSION
from torchyard.client.installation.manifests import INSTANCE, MANAGED_BY, MANAGER
from torchyard.kubernetes.client.api import METADATA_OF_ALL, Api
from torchyard.kubernetes.client.errors import NotFound
from torchyard.kubernetes.client.pages import pages
from torchyard.kubernetes.objects import Listed
from torchyard.sweeps.resource import PLURAL as SWEEPS

Document = dict[str, Any]
SELECTOR = "app.kubernetes.io/component=operator,app.kubernetes.io/name=torchyard"


class Installation(NamedTuple):
    """An operator of the cluster, by the labels of its Deployment."""

    namespace: str
    release: str
    deployment: str
    manager: str
    """Program that installed it, as its labels say."""

    @property
    def by_helm(self) -> bool:
        """Whether Helm installed it."""
        return self.manager == "Helm"

    @property
    def by_us(self) -> bool:
        """Whether `torchyard install` installed it without Helm."""
        return self.manager == MANAGER


async def installations(api: Api) -> list[Installation]:
    """Return the installations of the cluster.

    Raises:
        Rejected: Deployments of all namespaces may not be listed.
    """
    answer = await api.request("GET", "/apis/apps/v1/deployments", params={"labelSelector": SELECTOR})
    return [_installation(each) for each in msgspec.json.decode(answer).get("items") or []]


def _installation(deployment: Document) -> Installation:
    metadata = deployment["metadata"]
    labels = metadata["labels"]
    return Installation(
        namespace=metadata["namespace"],
        release=labels.get(INSTANCE, ""),
        deployment=metadata["name"],
        manager=labels.get(MANAGED_BY, ""),
    )


async def objects_of_users(api: Api) -> list[tuple[str, str, str]]:
    """Return resource, namespace and name of every sweep and job of the cluster; sweeps first."""
    read = msgspec.json.Decoder(Listed[Document]).decode
    found = []
    for plural in (SWEEPS, PLURAL):
        path = f"/apis/{GROUP}/{VERSION}/{plural}"
        try:
            async for page in pages(api, path, read, {}, accept=METADATA_OF_ALL, timeout=60.0):
                metadata = [each["metadata"] for each in page.items or []]
                found += [(plural, each["namespace"], each["name"]) for each in metadata]
        except NotFound:  # the resource is not installed
            continue
    return found


def by_namespace(objects: list[tuple[str, str, str]]) -> str:
    """Return how many jobs and sweeps each namespace has, in words."""
    counts = Counter((namespace, resource) for resource, namespace, _ in objects)
    words = {PLURAL: "job", SWEEPS: "sweep"}
    parts = [
        f"{count} {words[resource]}{'' if count == 1 else 's'} in namespace {namespace}"
        for (namespace, resource), count in sorted(counts.items())
    ]
    return ", ".join(parts[:10]) + (f" and {len(parts) - 10} more" if len(parts) > 10 else "")
