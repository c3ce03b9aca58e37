"""The objects of gang schedulers: which kinds the API server serves, and an informer for each that is used.

A kind is asked for by group and version, never derived from a release; the answer is renewed, since an administrator
may install or upgrade a scheduler at any time. Objects are kept as documents: their schedulers know what is in them.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from torchyard.api.resource import GROUP, KIND
from torchyard.kubernetes.cache.informer import Informer
from torchyard.kubernetes.client.api import Api, version
from torchyard.kubernetes.client.errors import Gone, NotFound, Rejected
from torchyard.kubernetes.manifests import names
from torchyard.reconcile.ports import Key, Unavailable
from torchyard.schedulers.protocol import GangObject, Kind, Scheduler, Source

REFRESH_SECONDS, RETRY_SECONDS = 60.0, 2.0
SOON_SECONDS = 0.2  # many objects of the cluster may change together
_log = logging.getLogger(__name__)


class ObjectRecord(Struct, frozen=True, kw_only=True):
    """What is kept of an object, with what an informer needs."""

    uid: str
    version: int
    namespace: str
    job_name: str
    job_uid: str  # empty: it belongs to no job
    object: GangObject
    whole: bool = True


class GangObjects:
    """Objects by job uid, of the schedulers that are switched on.

    Args:
        api: the server.
        namespaces: the watched ones; none: all.
        schedulers: switched on, the preferred one first.
        changed: called with the key of a job when one of its objects changed.
        source_changed: called with the name of a scheduler when it becomes usable, and when objects of the cluster that
            it reads changed.
    """

    def __init__(
        self,
        api: Api,
        namespaces: Iterable[str],
        schedulers: Sequence[Scheduler],
        *,
        changed: Callable[[Key, float], None],
        source_changed: Callable[[str], None],
    ) -> None:
        self.schedulers = tuple(schedulers)
        self.served: dict[str, Kind] = {}
        """By name of the scheduler: the preferred kind of its object that the API server serves."""
        self.discovered = asyncio.Event()
        """Set once the API server has said what it serves."""
        self._api, self._changed, self._source_changed = api, changed, source_changed
        self._namespaces = tuple(namespaces) or ("",)
        self._informers: dict[Kind, dict[str, Informer[dict[str, Any], ObjectRecord]]] = {}
        self._tasks: dict[Kind, list[asyncio.Task[None]]] = {}
        self._absent: dict[str, set[Kind]] = {}  # by name of the scheduler: kinds of sources that are not served
        self._jobs: dict[str, dict[str, GangObject]] = {}  # by job uid, by uid of the object
        if not self.schedulers:
            self.discovered.set()

    async def run(self) -> None:
        """Follow what is served, and its objects, until cancelled; without schedulers there is nothing to follow."""
        if not self.schedulers:
            return
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    try:
                        await self._discover(group)
                    except (Unavailable, Rejected, Gone) as error:
                        _log.warning("the kinds of gang schedulers cannot be discovered: %s", error)
                    pause = REFRESH_SECONDS if self.discovered.is_set() else RETRY_SECONDS
                    await asyncio.sleep(pause * random.uniform(0.8, 1.0))  # noqa: S311 -- jitter
        finally:
            self._informers.clear()

    def of(self, job_uid: str) -> tuple[GangObject, ...]:
        """Return the objects of a job."""
        return tuple(self._jobs.get(job_uid, {}).values())

    def known(self, scheduler: Scheduler) -> bool:
        """Return whether the objects of a scheduler, and those that it reads, have been listed."""
        kind = self.served.get(scheduler.name)
        kinds = [*([kind] if kind is not None else []), *(source.kind for source in self._sources_of(scheduler))]
        return all(each in self._informers and self._synced(each) for each in kinds)

    def sources(self, scheduler: Scheduler, namespace: str) -> Mapping[str, tuple[GangObject, ...]]:
        """Return the objects of the cluster and of a namespace that a scheduler reads, by the plural of their kind."""
        return {source.kind.plural: self._all(source.kind, namespace) for source in self._sources_of(scheduler)}

    def queues(self, namespace: str) -> Mapping[str, frozenset[str]]:
        """Return the names of the queues that jobs of a namespace may name, by scheduler, as far as they are listed."""
        return {
            each.name: frozenset(queue.name for queue in self._all(each.queue_kind, namespace))
            for each in self.schedulers
            if each.queue_kind is not None and each.queue_kind in self._informers and self._synced(each.queue_kind)
        }

    def put(self, kind: Kind, namespace: str, answer: bytes) -> None:
        """Apply the answer to a write of our own."""
        if (informer := self._informer(kind, namespace)) is not None:
            informer.put(answer)

    def forget(self, kind: Kind, namespace: str, uid: str) -> None:
        """Forget an object that is gone."""
        if (informer := self._informer(kind, namespace)) is not None:
            informer.bury(uid)

    async def sweep(self) -> None:
        """Compare every cache with the API server.

        Raises:
            Unavailable, Rejected, NotFound, Gone: an answer could not be read.
        """
        informers = [informer for of_kind in self._informers.values() for informer in of_kind.values()]
        await asyncio.gather(*(informer.sweep() for informer in informers if informer.synced.is_set()))

    # What is served.

    async def _discover(self, group: asyncio.TaskGroup) -> None:
        served: dict[str, set[str]] = {}
        kinds = {kind for each in self.schedulers for kind in each.kinds}
        kinds |= {source.kind for each in self.schedulers for source in each.sources}
        for version_path in sorted({_root(kind) for kind in kinds}):
            served[version_path] = await self._resources(version_path)
        before, self.served = self.served, {}
        sources: dict[Kind, list[tuple[str, Source]]] = {}
        for scheduler in self.schedulers:
            kind = next((each for each in scheduler.kinds if each.plural in served[_root(each)]), None)
            if kind is not None:
                self.served[scheduler.name] = kind
                absent = {each.kind for each in scheduler.sources if each.kind.plural not in served[_root(each.kind)]}
                self._absent[scheduler.name] = absent
                for source in self._sources_of(scheduler):
                    sources.setdefault(source.kind, []).append((scheduler.name, source))
        for kind in set(self.served.values()) - self._informers.keys():
            paths = {name: kind.path(name) for name in self._namespaces}
            read = _reader(kind)
            self._follow(group, kind, [(name, self._make(path, read)) for name, path in paths.items()])
        for kind, readers in sources.items():
            if kind not in self._informers:
                self._follow(group, kind, self._make_source(kind, readers))
        for scheduler in self.schedulers:
            if scheduler.name in self.served and scheduler.name not in before:
                group.create_task(self._announce(scheduler))
        for kind in self._informers.keys() - set(self.served.values()) - sources.keys():
            self._abandon(kind)
        self.discovered.set()

    def _sources_of(self, scheduler: Scheduler) -> list[Source]:
        """Return the sources of a scheduler, without optional ones that are not served."""
        absent = self._absent.get(scheduler.name, set())
        return [each for each in scheduler.sources if not (each.optional and each.kind in absent)]

    async def _announce(self, scheduler: Scheduler) -> None:
        """Report a scheduler as usable once its objects are listed: no event of an object may ever come."""
        kinds = {self.served[scheduler.name], *(source.kind for source in self._sources_of(scheduler))}
        for informer in [each for kind in kinds for each in self._informers.get(kind, {}).values()]:
            await informer.synced.wait()
        self._source_changed(scheduler.name)

    async def _resources(self, path: str) -> set[str]:
        try:
            answer = await self._api.request("GET", path)
        except NotFound:
            return set()
        return {each.name for each in msgspec.json.decode(answer, type=_ResourceList).resources}

    def _follow(self, group: asyncio.TaskGroup, kind: Kind, made: list[tuple[str, "_Informer"]]) -> None:
        self._informers[kind] = dict(made)
        self._tasks[kind] = [group.create_task(informer.run()) for _, informer in made]

    def _abandon(self, kind: Kind) -> None:
        _log.warning("%s of %s is not served any more", kind.kind, kind.api_version)
        for task in self._tasks.pop(kind):
            task.cancel()
        for informer in self._informers.pop(kind).values():
            for uid in list(informer.objects):
                informer.bury(uid)

    # What is followed.

    def _make(self, path: str, read: "_Read") -> "_Informer":
        of = dict[str, Any]
        return Informer(self._api, path, of=of, read=read, changed=self._take, selector=names.JOB_UID)

    def _make_source(self, kind: Kind, readers: list[tuple[str, Source]]) -> list[tuple[str, "_Informer"]]:
        fields = tuple(dict.fromkeys(path for _, source in readers for path in source.fields))

        def changed(before: ObjectRecord | None, after: ObjectRecord | None) -> None:
            if (before and before.object.document) != (after and after.object.document):
                for name, _ in readers:
                    self._source_changed(name)

        read = _source_reader(kind, fields)
        return [
            (name, Informer(self._api, kind.path(name), of=dict[str, Any], read=read, changed=changed))
            for name in (self._namespaces if kind.namespaced else ("",))
        ]

    def _take(self, before: ObjectRecord | None, after: ObjectRecord | None) -> None:
        for record in (before, after):
            if record is None:
                continue
            mine = self._jobs.setdefault(record.job_uid, {})
            mine.pop(record.uid, None)
            if record is after:
                mine[record.uid] = record.object
            if not mine:
                del self._jobs[record.job_uid]
        newest = after or before
        if newest is not None:
            self._changed((newest.namespace, newest.job_name), 0.0)

    def _all(self, kind: Kind, namespace: str) -> tuple[GangObject, ...]:
        informers = self._informers.get(kind, {}).values()
        return tuple(
            record.object
            for informer in informers
            for record in informer.objects.values()
            if record.namespace in {"", namespace}
        )

    def _synced(self, kind: Kind) -> bool:
        return all(informer.synced.is_set() for informer in self._informers[kind].values())

    def _informer(self, kind: Kind, namespace: str) -> "_Informer | None":
        informers = self._informers.get(kind, {})
        return informers.get(namespace) or informers.get("")


_Informer = Informer[dict[str, Any], ObjectRecord]
_Read = Callable[[dict[str, Any]], ObjectRecord | None]


class _Resource(Struct, frozen=True):
    name: str = ""


class _ResourceList(Struct, frozen=True):
    resources: list[_Resource] = []


def _root(kind: Kind) -> str:
    return f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.version}"


def _reader(kind: Kind) -> _Read:
    """Return what to keep of an object of a kind: those whose controller is the job of their label."""

    def read(document: dict[str, Any]) -> ObjectRecord | None:
        meta = document.get("metadata")
        if not isinstance(meta, dict) or not meta.get("uid"):
            return None
        labels = meta.get("labels") or {}
        job_uid = str(labels.get(names.JOB_UID, ""))
        if not job_uid or not owned(document, job_uid):
            return None
        return _record(kind, document, meta, job_name=str(labels.get(names.JOB, "")), job_uid=job_uid)

    return read


def _source_reader(kind: Kind, fields: tuple[str, ...]) -> _Read:
    def read(document: dict[str, Any]) -> ObjectRecord | None:
        meta = document.get("metadata")
        if not isinstance(meta, dict) or not meta.get("uid"):
            return None
        return _record(kind, _only(document, fields), meta)

    return read


def _record(
    kind: Kind, document: dict[str, Any], meta: dict[str, Any], *, job_name: str = "", job_uid: str = ""
) -> ObjectRecord:
    newest = str(meta.get("resourceVersion", ""))
    return ObjectRecord(
        uid=str(meta["uid"]),
        version=version(newest),
        namespace=str(meta.get("namespace", "")),
        job_name=job_name,
        job_uid=job_uid,
        object=GangObject(
            kind=kind,
            name=str(meta.get("name", "")),
            uid=str(meta["uid"]),
            version=newest,
            deleting=meta.get("deletionTimestamp") is not None,
            document=document,
        ),
    )


def owned(document: Mapping[str, Any], job_uid: str) -> bool:
    """Return whether the job of this uid controls an object."""
    owners = (document.get("metadata") or {}).get("ownerReferences") or ()
    return any(
        each.get("controller")
        and (each.get("uid"), each.get("kind")) == (job_uid, KIND)
        and str(each.get("apiVersion", "")).partition("/")[0] == GROUP
        for each in owners
        if isinstance(each, dict)
    )


def _only(document: dict[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    """Return the document with these paths only."""
    kept: dict[str, Any] = {}
    for field in fields:
        value: Any = document
        for name in field.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if value is None:
            continue
        *path, last = field.split(".")
        at = kept
        for name in path:
            at = at.setdefault(name, {})
        at[last] = value
    return kept
