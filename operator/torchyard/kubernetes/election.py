"""One leader by a Lease, and the fence before its writes.

A leader renews every 2 s and counts itself leader for 9 s from the moment it *sent* the last renewal that succeeded; a
candidate takes a lease that it has seen unchanged for 13 s. Both measure on their own clock, one that counts while a
machine sleeps, and never compare times of different machines. So a leader that is cut off or stopped ends its writing
at least 4 s before its lease can be taken, longer than anything handed to its kernel stays undelivered (client/api.py).
A killed leader is replaced within 15 s, one that stops cleanly releases its lease and is replaced within a second.

The Service of the intake follows the leader by a label that the leader sets on its own pod.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from torchyard.kubernetes.client.api import MERGE_PATCH, METADATA_OF_ALL, Api, Fence, boottime
from torchyard.kubernetes.client.errors import AlreadyExists, Gone, NotFound, Rejected
from torchyard.kubernetes.manifests import names
from torchyard.kubernetes.provenance import MAX_KEYS
from torchyard.reconcile.ports import Conflict, Unavailable

MAX_INT32 = 2**31 - 1
_log = logging.getLogger(__name__)


class Terms(Struct, frozen=True, kw_only=True):
    """Times of the election, in seconds."""

    lease: int = 13  # a candidate takes a lease that it has seen unchanged for this long
    writing: float = 9.0  # a leader writes for this long after it sent its last successful renewal
    renew: float = 2.0
    look: float = 1.0  # how often a candidate looks
    answer: float = 4.0  # how long one request may take


class Spec(Struct, frozen=True, rename="camel", kw_only=True):
    """`coordination.k8s.io/v1.LeaseSpec`; an edit by hand must not stop the operator."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Meta(Struct, frozen=True, rename="camel", kw_only=True):
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _Lease(Struct, frozen=True, kw_only=True):
    metadata: _Meta = _Meta()
    spec: Spec = Spec()


class Note(Protocol):
    """What the leader publishes in an annotation of the Lease, and the next one has read before it leads."""

    def published(self) -> str:
        """Return the text of the annotation; empty: there is none."""
        ...

    def read(self, text: str) -> None:
        """Take what the leader has published."""
        ...


class DeposedError(Exception):
    """Another process took over the lease of this one."""


class Lease:
    """The claim of this process to one Lease.

    Args:
        api: not behind the fence this makes.
        namespace: of the Lease.
        name: of the Lease.
        identity: of this process; a process of the same identity takes its own lease over at once.
        terms: times of the election.
        public_key: published in the Lease once this process leads.
        notes: published as well, by the key of the annotation.
        learned: called with the public keys of all leaders, before this process leads and whenever they change.
        clock: seconds that never jump.
    """

    def __init__(
        self,
        api: Api,
        *,
        namespace: str,
        name: str,
        identity: str,
        terms: Terms = Terms(),  # noqa: B008 -- frozen
        public_key: str = "",
        learned: Callable[[Iterable[str]], None] = lambda _keys: None,
        notes: Mapping[str, Note] | None = None,
        clock: Callable[[], float] = boottime,
    ) -> None:
        self.identity, self.holder = identity, ""
        self._api, self._terms, self._clock = api, terms, clock
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._metadata = {"name": name, "namespace": namespace}
        self._public_key, self._learned, self._notes = public_key, learned, notes or {}
        self._keys: tuple[str, ...] = ()
        self._seen: _Lease | None = None
        self._since = 0.0  # when `_seen` was first seen as it is
        self.fence = Fence(identity, retry_after=terms.renew, clock=clock)
        """Keeps this process from writing unless it leads."""
        self._was_leader = False
        self._gained = asyncio.Event()
        self._known = asyncio.Event()

    @property
    def leading(self) -> bool:
        """Whether this process may write now."""
        return self.fence.left > 0

    async def acquired(self) -> None:
        """Wait until this process leads."""
        while not self.leading:
            self._gained.clear()
            await self._gained.wait()

    async def lapsed(self) -> None:
        """Wait until this process may not write any more, for any reason."""
        while (left := self.fence.left) > 0:  # noqa: ASYNC110 -- renewals move the time
            await asyncio.sleep(left)

    async def known(self) -> None:
        """Wait until the leader is known."""
        await self._known.wait()

    async def run(self) -> None:
        """Claim the lease and keep it until cancelled.

        Raises:
            DeposedError: we led, and another process leads now. The memory of this one is out of date.
        """
        logged = ""
        while True:
            try:
                delay = await self._step()
            except (Unavailable, Conflict, NotFound, Rejected, msgspec.ValidationError) as error:
                delay = self._terms.look * random.uniform(0.5, 1.0)  # noqa: S311 -- jitter
                if isinstance(error, Conflict | NotFound):
                    self._seen = None
                elif logged != (logged := str(error)):
                    _log.warning("the lease cannot be read or renewed, retrying: %s", error)
            else:
                logged = ""
            await asyncio.sleep(delay)

    async def release(self) -> None:
        """Release the lease, so that another process need not wait; nothing may be written any more.

        Raises:
            Unavailable, Conflict, NotFound, Rejected: it could not be released and expires by itself.
        """
        self.fence.until = float("-inf")
        try:
            await self._give_up(self._seen)
        except Conflict:  # a renewal was under way when `run` was cancelled, and it counted
            await self._give_up(await self._read())

    async def _give_up(self, seen: _Lease | None) -> None:
        if seen is not None and seen.spec.holder_identity == self.identity:
            await self._put(seen, msgspec.structs.replace(seen.spec, holder_identity=None))

    async def _step(self) -> float:
        """Do what is due; return the seconds until the next step."""
        seen = self._seen
        if seen is None or seen.spec.holder_identity != self.identity:
            seen = await self._read()
        holder = seen.spec.holder_identity or ""
        if holder not in {"", self.identity}:
            if self._was_leader:
                self.fence.until = float("-inf")
                raise DeposedError(f"{holder} took over the lease of {self.identity}")
            left = self._since + (seen.spec.lease_duration_seconds or self._terms.lease) - self._clock()
            if left > 0:
                return min(left, self._terms.look)
        await self._claim(seen)
        return self._terms.renew

    async def _read(self) -> _Lease:
        try:
            answer = await self._api.request("GET", self._path, timeout=self._terms.answer)
        except NotFound as error:
            if error.details.kind not in {"leases", ""}:
                raise
            answer = await self._create()
        found = msgspec.json.decode(answer, type=_Lease)
        if self._seen is None or found.metadata.resource_version != self._seen.metadata.resource_version:
            self._since = self._clock()
        self._note(found)
        return found

    async def _create(self) -> bytes:
        """Return an empty lease, to be claimed like any other."""
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": self._metadata, "spec": {}}
        try:
            return await self._api.request("POST", self._folder, body=body, timeout=self._terms.answer)
        except AlreadyExists:
            return await self._api.request("GET", self._path, timeout=self._terms.answer)

    async def _claim(self, seen: _Lease) -> None:
        """Renew or take over; only one of several candidates meets the resourceVersion."""
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        ours = seen.spec.holder_identity == self.identity
        wished = Spec(
            holder_identity=self.identity,
            lease_duration_seconds=self._terms.lease,
            acquire_time=seen.spec.acquire_time if ours else now,
            renew_time=now,
            # The API server rejects a larger number, and any client may have written this one.
            lease_transitions=min((seen.spec.lease_transitions or 0) + (not ours), MAX_INT32),
        )
        # An annotation that was edited by hand does not make us forget a key.
        self._learn(seen)
        own = (self._public_key,) if self._public_key and self._public_key not in self._keys else ()
        self._keys = (*self._keys, *own)[-MAX_KEYS:]
        sent = self._clock()
        await self._put(seen, wished)
        self.fence.until = sent + self._terms.writing
        if not self._was_leader:
            _log.info("leading as %s", self.identity)
        self._was_leader = True
        self._gained.set()

    async def _put(self, seen: _Lease, spec: Spec) -> None:
        annotations = {**(seen.metadata.annotations or {}), names.POD_KEYS: " ".join(self._keys)}
        for key, note in self._notes.items():
            annotations.pop(key, None)
            if text := note.published():
                annotations[key] = text
        version = {"resourceVersion": seen.metadata.resource_version}
        body: dict[str, Any] = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {**self._metadata, **version, "annotations": annotations},
            "spec": spec,
        }
        answer = await self._api.request("PUT", self._path, body=body, timeout=self._terms.answer)
        self._note(msgspec.json.decode(answer, type=_Lease))

    def _note(self, lease: _Lease) -> None:
        self._seen = lease
        self._learn(lease)
        if not self._was_leader:
            for key, note in self._notes.items():
                note.read((lease.metadata.annotations or {}).get(key, ""))
        self.holder = lease.spec.holder_identity or ""
        if self.holder:
            self._known.set()

    def _learn(self, lease: _Lease) -> None:
        """Add the keys of the Lease to those that are known; the newest are last."""
        published = (lease.metadata.annotations or {}).get(names.POD_KEYS, "").split()
        keys = tuple(dict.fromkeys((*published, *self._keys)))[-MAX_KEYS:]
        if keys != self._keys:
            self._keys = keys
            self._learned(keys)

    @property
    def _path(self) -> str:
        return f"{self._folder}/{self._metadata['name']}"


class Unelected:
    """The lease of an operator without leader election, which leads always."""

    holder = ""
    leading = True

    def __init__(self) -> None:
        self.fence = Fence()
        self.fence.until = float("inf")

    async def acquired(self) -> None:
        """Return at once."""

    async def known(self) -> None:
        """Return at once."""

    async def lapsed(self) -> None:
        """Wait until cancelled."""
        await asyncio.Event().wait()

    async def run(self) -> None:
        """Wait until cancelled: there is no lease to keep."""
        await asyncio.Event().wait()

    async def release(self) -> None:
        """Do nothing: there is no lease to release."""


LABEL = "torchyard.dev/leader"
RETRY_SECONDS = 2.0


class _Named(Struct, frozen=True):
    name: str = ""


class _Pod(Struct, frozen=True):
    metadata: _Named = _Named()


class _Pods(Struct, frozen=True):
    items: list[_Pod] | None = None


class LeaderLabel:
    """The label on the pods of the operator.

    Args:
        api: not behind a fence: a process that stops removes its label when it no longer leads.
        namespace: of the operator.
        pod: name of the pod this process runs in.
        fence: keeps a process that no longer leads from attracting agents.
    """

    def __init__(self, api: Api, *, namespace: str, pod: str, fence: Fence) -> None:
        self._api, self._pod = api, pod
        self._leading = api.guarded(budget=None, fence=fence)
        self._folder = f"/api/v1/namespaces/{namespace}/pods"

    async def move_here(self) -> None:
        """Set the label on this pod only; retry until that succeeds."""
        logged = ""
        while True:
            try:
                await self._set(self._leading, self._pod, "true")
                for other in await self._elsewhere():
                    await self._set(self._leading, other, None)
            except (Unavailable, Conflict, Rejected, Gone, NotFound) as error:
                if logged != (logged := str(error)):
                    _log.warning("agents cannot find this leader yet: label %s is not set: %s", LABEL, error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def take_off(self) -> None:
        """Remove it from this pod, so that no agent is sent here any more.

        Raises:
            Unavailable, Conflict, Rejected, NotFound: it is still there.
        """
        await self._set(self._api, self._pod, None)

    async def _elsewhere(self) -> list[str]:
        """Remove the label from pods that no longer lead and could not remove it: killed, or disconnected."""
        params = {"labelSelector": f"{LABEL}=true"}
        answer = await self._api.request("GET", self._folder, params=params, accept=METADATA_OF_ALL)
        found = msgspec.json.decode(answer, type=_Pods)
        return [pod.metadata.name for pod in found.items or () if pod.metadata.name != self._pod]

    async def _set(self, api: Api, pod: str, value: str | None) -> None:
        body = {"metadata": {"labels": {LABEL: value}}}
        try:
            await api.request("PATCH", f"{self._folder}/{pod}", body=body, content_type=MERGE_PATCH)
        except NotFound:
            if value is not None:
                raise
