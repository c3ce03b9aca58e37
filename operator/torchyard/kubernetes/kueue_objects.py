"""Queues of Kueue as their API and the visibility API send them, as far as places and quota are concerned."""

import logging
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

from msgspec import Struct

from torchyard.api.values import amount
from torchyard.schedulers.kueue import VISIBILITY, WORKLOAD
from torchyard.schedulers.protocol import GangObject, ObjectCondition

API = f"/apis/{WORKLOAD.api_version}"
_log = logging.getLogger(__name__)


def local_queue_path(namespace: str, name: str) -> str:
    """Return the path of a LocalQueue."""
    return f"{API}/namespaces/{namespace}/localqueues/{name}"


def pending_path(namespace: str, name: str) -> str:
    """Return the path of the Workloads that wait in a LocalQueue."""
    return f"/apis/{VISIBILITY}/v1beta2/namespaces/{namespace}/localqueues/{name}/pendingworkloads"


def cluster_queue_path(name: str) -> str:
    """Return the path of a ClusterQueue."""
    return f"{API}/clusterqueues/{name}"


def requested(workload: GangObject) -> dict[str, Decimal]:
    """Return what all pods of a Workload request, with `pods` themselves."""
    sums: dict[str, Decimal] = {}
    for pod_set in workload.at("spec", "podSets") or ():
        count = Decimal(int(pod_set.get("count") or 0))
        sums["pods"] = sums.get("pods", Decimal(0)) + count
        containers = ((pod_set.get("template") or {}).get("spec") or {}).get("containers") or ()
        for container in containers:
            for name, each in amounts((container.get("resources") or {}).get("requests") or {}).items():
                sums[name] = sums.get(name, Decimal(0)) + each * count
    return sums


def amounts(quantities: Mapping[str, Any]) -> dict[str, Decimal]:
    """Return quantities as numbers; one in a form that is not understood is left out."""
    found: dict[str, Decimal] = {}
    for name, quantity in quantities.items():
        try:
            found[name] = amount(quantity)
        except ValueError:
            _log.debug("quantity %s of %s is not understood", quantity, name)
    return found


class _Read(Struct, frozen=True, rename="camel", kw_only=True):
    """What is read of an object."""


class _Name(_Read, frozen=True, kw_only=True):
    name: str = ""


class PendingWorkload(_Read, frozen=True, kw_only=True):
    """A Workload that waits; its position is counted from 0."""

    metadata: _Name = _Name()
    position_in_cluster_queue: int = 0


class Pending(_Read, frozen=True, kw_only=True):
    """The Workloads that wait in a LocalQueue, as the visibility API lists them."""

    items: list[PendingWorkload] | None = None


class LocalQueueSpec(_Read, frozen=True, kw_only=True):
    """The spec of a LocalQueue."""

    cluster_queue: str = ""


class LocalQueue(_Read, frozen=True, kw_only=True):
    """A LocalQueue: the name of its ClusterQueue."""

    spec: LocalQueueSpec = LocalQueueSpec()


class _Quota(_Read, frozen=True, kw_only=True):
    name: str = ""
    nominal_quota: str | int = 0
    total: str | int = 0


class _Flavor(_Read, frozen=True, kw_only=True):
    name: str = ""
    resources: list[_Quota] | None = None


class _Group(_Read, frozen=True, kw_only=True):
    flavors: list[_Flavor] | None = None


class ClusterQueueSpec(_Read, frozen=True, kw_only=True):
    """The quotas of a ClusterQueue."""

    resource_groups: list[_Group] | None = None


class _Condition(_Read, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class ClusterQueueStatus(_Read, frozen=True, kw_only=True):
    """What Workloads hold of the quotas, how many wait, and whether the queue is active."""

    pending_workloads: int = 0
    conditions: list[_Condition] | None = None
    flavors_reservation: list[_Flavor] | None = None


class ClusterQueue(_Read, frozen=True, kw_only=True):
    """A ClusterQueue as far as its quota is concerned."""

    spec: ClusterQueueSpec = ClusterQueueSpec()
    status: ClusterQueueStatus = ClusterQueueStatus()

    def active(self) -> ObjectCondition:
        """Return the condition that says whether the queue admits Workloads."""
        listed = (each for each in self.status.conditions or () if each.type == "Active")
        return next((ObjectCondition(each.status, each.reason, each.message) for each in listed), ObjectCondition())

    def quota(self) -> dict[str, Decimal]:
        """Return the nominal quota over all flavors."""
        flavors = [flavor for group in self.spec.resource_groups or () for flavor in group.flavors or ()]
        return _sum(flavors, lambda each: each.nominal_quota)

    def reserved(self) -> dict[str, Decimal]:
        """Return the quota that Workloads hold, over all flavors."""
        return _sum(self.status.flavors_reservation or (), lambda each: each.total)

    def free(self) -> dict[str, Decimal]:
        """Return the nominal quota that no Workload holds, over all flavors; what may be borrowed is not in it."""
        held = self.reserved()
        return {name: max(Decimal(0), each - held.get(name, Decimal(0))) for name, each in self.quota().items()}


def _sum(flavors: Iterable[_Flavor], of: Callable[[_Quota], str | int]) -> dict[str, Decimal]:
    sums: dict[str, Decimal] = {}
    for flavor in flavors:
        for each in flavor.resources or ():
            known = amounts({each.name: of(each)})
            sums[each.name] = sums.get(each.name, Decimal(0)) + known.get(each.name, Decimal(0))
    return sums
