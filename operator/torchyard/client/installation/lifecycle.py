"""Install, upgrade and remove an operator: which way is taken, and in which order objects are written."""

import asyncio
from typing import NamedTuple

from torchyard.api.resource import GROUP, VERSION
from torchyard.client.backend import Notice
from torchyard.client.errors import FAILED, TorchYardError
from torchyard.client.installation import manifests
from torchyard.client.installation.apply import Applied, Applier
from torchyard.client.installation.existing import Installation, installations
from torchyard.client.installation.helm import LINK, Helm, Values
from torchyard.kubernetes.client.api import Api
from torchyard.kubernetes.client.errors import NotFound

OURS = f"{manifests.MANAGED_BY}={manifests.MANAGER},{manifests.INSTANCE}={manifests.RELEASE}"
"""Labels of the objects that were applied without Helm."""


class Installed(NamedTuple):
    """The objects of an installation, and its Deployment."""

    objects: list[Applied]
    deployment: str


class Found(NamedTuple):
    """The installations of a cluster."""

    here: Installation | None
    """That of the namespace and release in question."""
    others: list[Installation]


async def existing(api: Api, namespace: str, release: str) -> Found:
    """Return the installation of a namespace and release, and all others."""
    found = await installations(api)
    here = [each for each in found if (each.namespace, each.release) == (namespace, release)]
    return Found(next(iter(here), None), [each for each in found if each not in here])


async def with_helm(api: Api, helm: Helm, values: Values, *, force: bool, notice: Notice) -> Installed:
    """Install or upgrade a release. Helm takes over what was installed without it.

    Args:
        api: the API server.
        helm: the release.
        values: of the chart.
        force: whether fields that another program manages are taken over.
        notice: called with what is done.

    Raises:
        TorchYardError: Helm fails.
    """
    found = await existing(api, helm.namespace, helm.release)
    by_us = found.here is not None and found.here.by_us
    notice(f"helm upgrade --install {helm.release} --namespace {helm.namespace}, with the chart of this version")
    await asyncio.to_thread(helm.upgrade, values, take=not found.others, force=force or by_us)
    objects = await asyncio.to_thread(helm.objects)
    deployment = next(each["metadata"]["name"] for each in objects if each["kind"] == "Deployment")
    if by_us:
        await _hand_over(Applier(api, force=True), helm.namespace)
    return Installed([Applied(each, "applied") for each in objects], deployment)


async def _hand_over(applier: Applier, namespace: str) -> None:
    """Leave to Helm what it applied as well, and delete what the values of the release leave out."""
    authority = {"name": manifests.AUTHORITY, "namespace": namespace}
    kept = [*manifests.definitions(), {"apiVersion": "v1", "kind": "Secret", "metadata": authority}]
    for each in [*kept, *manifests.operator_objects(namespace)]:
        current = await applier.current(each)
        labels = (current or {}).get("metadata", {}).get("labels", {})
        if each not in kept and labels.get(manifests.MANAGED_BY) == manifests.MANAGER:
            await applier.delete(each)
        elif current is not None:
            await applier.hand_over(current)


async def without_helm(api: Api, namespace: str, images: manifests.Images, *, force: bool, notice: Notice) -> Installed:
    """Apply the objects that the chart has by default, after a check of all of them.

    Args:
        api: the API server.
        namespace: of the operator.
        images: that replace those of the chart.
        force: whether fields that another program manages are taken over.
        notice: called with every change.

    Raises:
        TorchYardError: Helm manages the installation, another operator runs, or a right is missing.
    """
    found = await existing(api, namespace, manifests.RELEASE)
    if found.here is not None and found.here.by_helm:
        raise TorchYardError(
            f"release {manifests.RELEASE} in namespace {namespace} is managed by Helm", _needs_helm(), FAILED
        )
    for other in found.others:
        what = f"an operator runs in namespace {other.namespace} already (release {other.release})"
        fix = f"`torchyard install -n {other.namespace} --release {other.release}` upgrades it"
        raise TorchYardError(what, f"{fix}; for two operators, set watchNamespaces of each with Helm", FAILED)
    applier = Applier(api, force=force)
    definitions, objects = manifests.definitions(), manifests.operator_objects(namespace, images)
    await applier.check([*definitions, *objects])
    applied = [await applier.create(manifests.namespace_object(namespace))]
    applied += [await applier.apply(each) for each in definitions]
    for definition in definitions:
        await applier.established(definition)
    applied += [await applier.create(manifests.authority_secret(namespace))]
    applied += [await applier.apply(each) for each in objects]
    # Objects of an earlier version that this one no longer has.
    for old in await applier.others(objects, OURS):
        await applier.delete(old)
        applied.append(Applied(old, "deleted"))
    changed = [each for each in applied if each.change != "unchanged"]
    for each in changed:
        notice(f"{each.title} {each.change}")
    notice(f"{len(applied)} objects, {len(applied) - len(changed)} of them unchanged")
    return Installed(applied, manifests.RELEASE)


async def remove(api: Api, installation: Installation, helm: Helm | None) -> None:
    """Remove an operator with the program that installed it.

    Args:
        api: the API server.
        installation: the operator.
        helm: its release; None: Helm is not there.

    Raises:
        TorchYardError: Helm installed it and is not there, or another program did.
    """
    if installation.by_helm:
        if helm is None:
            what = f"release {installation.release} in namespace {installation.namespace} is managed by Helm"
            raise TorchYardError(what, _needs_helm(), FAILED)
        await asyncio.to_thread(helm.uninstall)
        return
    if not installation.by_us:
        what = (
            f"the operator in namespace {installation.namespace} was installed by {installation.manager or 'kubectl'}"
        )
        raise TorchYardError(what, "remove it with the program that installed it", FAILED)
    applier = Applier(api)
    # The operator first: without its rights it would only report errors.
    objects = sorted(manifests.operator_objects(installation.namespace), key=lambda each: each["kind"] != "Deployment")
    for each in [*objects, *await applier.others(objects, OURS)]:
        await applier.delete(each)


async def delete_users_objects(api: Api, objects: list[tuple[str, str, str]]) -> None:
    """Delete jobs and sweeps, and their pods with them.

    Args:
        api: the API server.
        objects: resource, namespace and name of each.
    """
    for resource, namespace, name in objects:
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{resource}/{name}"
        try:
            await api.request("DELETE", path, params={"propagationPolicy": "Background"})
        except NotFound:
            continue


async def delete_resources(api: Api, namespace: str, release: str) -> str | None:
    """Delete the custom resources and the CA, and the namespace if `without_helm` created it.

    Returns:
        The namespace if it remains; None: it is deleted, or there is none.
    """
    applier = Applier(api)
    for each in manifests.definitions():
        await applier.delete(each)
    authority = {"name": f"{release}-ca", "namespace": namespace}
    await applier.delete({"apiVersion": "v1", "kind": "Secret", "metadata": authority})
    space = manifests.namespace_object(namespace)
    current = await applier.current(space)
    if current is None:
        return None
    if current["metadata"].get("labels", {}).get(manifests.MANAGED_BY) != manifests.MANAGER:
        return namespace
    await applier.delete(space)
    return None


def _needs_helm() -> str:
    return f"install Helm ({LINK}), and omit --no-helm"
