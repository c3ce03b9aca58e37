"""What a queue and the quotas of a namespace leave for a gang. Pure."""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from msgspec import Struct

from torchyard.api.resource import TrainingJob
from torchyard.client.plans.fit import RESOURCES, requests
from torchyard.kubernetes.kueue_objects import ClusterQueue, amounts
from torchyard.kubernetes.manifests.names import GPU

NAMES = {"GPU": GPU, "CPU": "cpu", "memory": "memory"}


class Limit(Struct, frozen=True, kw_only=True, rename="camel"):
    """A limit on a resource. `quota` and `free` are in cores, bytes and devices.

    Attributes:
        source: `ClusterQueue gpus` or `ResourceQuota compute`.
        resource: as Kubernetes names it.
        needed: by the whole gang.
        free: what is left of it.
        quota: the limit itself.
    """

    source: str
    resource: str
    needed: float
    free: float
    quota: float

    @property
    def short(self) -> bool:
        """Whether the gang does not fit into what is free."""
        return self.needed > self.free

    @property
    def never(self) -> bool:
        """Whether the gang does not fit into the whole of it."""
        return self.needed > self.quota

    def __str__(self) -> str:
        shown = next((RESOURCES[name].shown for name, of in NAMES.items() if self.resource.endswith(of)), _plain)
        needed, free, quota = (shown(Decimal(str(each))) for each in (self.needed, self.free, self.quota))
        verdict = "exceeds it" if self.never else "waits" if self.short else "fits"
        return f"{self.source}, {self.resource}: needs {needed}, free {free} of {quota} ({verdict})"


class Queue(Struct, frozen=True, kw_only=True, rename="camel"):
    """The queue of a job. `waiting`: Workloads that wait in its ClusterQueue; None: not known."""

    name: str
    cluster_queue: str
    waiting: int | None = None


def _plain(amount: Decimal) -> str:
    return f"{amount.normalize():f}"


def needs(job: TrainingJob) -> dict[str, Decimal]:
    """Return what the gang requests, by the names of Kubernetes, spares included."""
    pods = job.spec.nodes + job.spec.spares
    found = {NAMES[name]: each * pods for name, each in requests(job.spec).items() if each > 0}
    return {**found, "pods": Decimal(pods)}


def of_cluster_queue(job: TrainingJob, name: str, queue: ClusterQueue) -> list[Limit]:
    """Return the limits of a ClusterQueue; what may be borrowed is not in them."""
    quota, free = queue.quota(), queue.free()
    return _limits(f"ClusterQueue {name}", needs(job), {each: (free[each], quota[each]) for each in quota})


def of_namespace(job: TrainingJob, quotas: Iterable[Mapping[str, Any]]) -> list[Limit]:
    """Return the limits of ResourceQuotas; those with a scope are left out, since they may not concern the pods."""
    found: list[Limit] = []
    for document in quotas:
        spec, status = document.get("spec") or {}, document.get("status") or {}
        if spec.get("scopes") or spec.get("scopeSelector"):
            continue
        hard, used = amounts(status.get("hard") or {}), amounts(status.get("used") or {})
        left = {name: (max(Decimal(0), each - used.get(name, Decimal(0))), each) for name, each in hard.items()}
        name = str((document.get("metadata") or {}).get("name"))
        wanted = needs(job)
        both = {f"{prefix}{of}": each for of, each in wanted.items() for prefix in ("", "requests.", "limits.")}
        found += _limits(f"ResourceQuota {name}", both, left)
    return found


def _limits(source: str, needed: Mapping[str, Decimal], left: Mapping[str, tuple[Decimal, Decimal]]) -> list[Limit]:
    return [
        Limit(source=source, resource=name, needed=float(each), free=float(left[name][0]), quota=float(left[name][1]))
        for name, each in needed.items()
        if name in left
    ]
