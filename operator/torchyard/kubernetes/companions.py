"""Objects beside the pods of a job, created before any pod: a NetworkPolicy, and a Service if there is no agent.

Both are owned by the job, so that the garbage collector deletes them.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from torchyard.api.launch import is_agentless
from torchyard.api.reasons import Reason
from torchyard.api.resource import TrainingJob
from torchyard.kubernetes.client.api import APPLY_PATCH, Api
from torchyard.kubernetes.client.errors import AlreadyExists, Conflict, NotFound
from torchyard.kubernetes.manifests import names
from torchyard.kubernetes.manifests.companions import network_policy, service
from torchyard.kubernetes.manifests.names import Site
from torchyard.kubernetes.objects import PodMeta
from torchyard.reconcile.ports import Refused

FRESH_SECONDS = 60.0
"""How long an object counts as present, so that a gang costs one request; a removed one is replaced later."""
PREDECESSOR_SECONDS = 3.0
"""What belongs to a former job of the name is gone soon, and no event of this job reports it."""
MAX_JOBS = 65536
_APPLY = {"fieldManager": names.MANAGER, "force": "true"}


class Companions:
    """Ensures that these objects of a job exist.

    Args:
        api: for writes.
        clock: unix seconds.
    """

    def __init__(self, api: Api, clock: Callable[[], float]) -> None:
        self._api, self._clock = api, clock
        self._checked: OrderedDict[str, float] = OrderedDict()  # by job uid
        self._pending: dict[str, asyncio.Task[None]] = {}  # by job uid
        self._service = msgspec.json.Decoder(_Service)

    async def ensure(self, job: TrainingJob, site: Site) -> None:
        """Create what is missing, once for all pods that are created at the same time.

        Raises:
            Refused: the name of the Service is taken, or not free yet.
            Conflict: the Service was deleted while it was read.
            Rejected, NotFound, Unavailable: the API server did not create it.
        """
        uid = job.metadata.uid
        if self._clock() < self._checked.get(uid, float("-inf")) + FRESH_SECONDS:
            return
        task = self._pending.get(uid)
        if task is None:
            task = self._pending[uid] = asyncio.create_task(self._ensure(job, site))
            task.add_done_callback(lambda done: self._finish(uid, done))
        await asyncio.shield(task)

    def _finish(self, uid: str, task: asyncio.Task[None]) -> None:
        del self._pending[uid]
        if not task.cancelled():
            task.exception()  # every caller that still waits raises it

    async def _ensure(self, job: TrainingJob, site: Site) -> None:
        if site.network_peers is not None:
            await self._apply_policy(job, site.network_peers)
        if is_agentless(job.spec):
            await self._create_service(job)
        self._checked[job.metadata.uid] = self._clock()
        while len(self._checked) > MAX_JOBS:
            self._checked.popitem(last=False)

    async def _apply_policy(self, job: TrainingJob, peers: tuple[dict[str, Any], ...]) -> None:
        """Write the policy over any other of its name: the name holds the uid of the job, and nothing else needs it."""
        path = f"/apis/networking.k8s.io/v1/namespaces/{job.metadata.namespace}/networkpolicies"
        manifest = network_policy(job, peers)
        await self._api.request(
            "PATCH",
            f"{path}/{manifest['metadata']['name']}",
            params=_APPLY,
            body=manifest,
            content_type=APPLY_PATCH,
        )

    async def _create_service(self, job: TrainingJob) -> None:
        path = f"/api/v1/namespaces/{job.metadata.namespace}/services"
        manifest = service(job)
        try:
            await self._api.request("POST", path, body=manifest)
        except AlreadyExists:
            name = manifest["metadata"]["name"]
            try:
                found = self._service.decode(await self._api.request("GET", f"{path}/{name}"))
            except NotFound as error:
                raise Conflict(f"service {name} was deleted while it was read") from error
            owner = found.metadata.controller
            if owner is not None and owner.is_job(name=job.metadata.name) and owner.uid != job.metadata.uid:
                # Of a former job of this name, which is deleted already: the garbage collector is on its way.
                raise Refused(Reason.PREDECESSOR_STOPPING, f"service {name}", retry_after=PREDECESSOR_SECONDS) from None
            if (why := _foreign(found, job, manifest["spec"])) is not None:
                raise Refused(Reason.NAME_CONFLICT, f"service {name} {why}") from None


class _Service(Struct, frozen=True):
    metadata: PodMeta
    spec: dict[str, Any] = {}


def _foreign(found: _Service, job: TrainingJob, spec: dict[str, Any]) -> str | None:
    """Return why this is not the Service that the operator would create, None if it is.

    Its content counts, not the creator that it names: a signature would still hold after the selector was changed.
    """
    owner = found.metadata.controller
    if owner is None or not owner.is_job(name=job.metadata.name, uid=job.metadata.uid):
        return "does not belong to this job"
    changed = sorted(field for field, value in spec.items() if found.spec.get(field) != value)
    return f"was changed: spec.{', spec.'.join(changed)}" if changed else None
