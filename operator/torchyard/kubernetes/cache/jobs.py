"""TrainingJobs and TrainingSweeps, as a watch sends them: in any order, repeatedly, and with gaps."""

import asyncio
import contextlib
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from torchyard.api.resource import API_VERSION, GROUP, KIND, PLURAL, VERSION, ObjectMeta, TrainingJob
from torchyard.api.validation.parse import InvalidJob, parse_job
from torchyard.kubernetes.client.api import METADATA_OF_ALL, METADATA_OF_ONE, UNCHECKED, Api, version
from torchyard.kubernetes.client.errors import NotFound, TooLarge
from torchyard.kubernetes.client.pages import PAGE_BYTES, pages
from torchyard.reconcile.ports import Key, Unavailable

LIST_SECONDS = 60.0
CATCH_UP_SECONDS = 10.0
MAX_BURIED = 4096
_log = logging.getLogger(__name__)


def job_path(key: Key) -> str:
    """Path of one TrainingJob; `/status` below it is its status."""
    return object_path(PLURAL, key)


def object_path(plural: str, key: Key) -> str:
    """Return the path of one object of a TorchYard resource."""
    namespace, name = key
    return f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{plural}/{name}"


Handler = Callable[[Key, float], None]
"""Called with the key of an object that has changed, and the seconds in which more of the same is to be expected."""


class Kept(Protocol):
    """What is kept of an object."""

    @property
    def metadata(self) -> ObjectMeta:
        """Of the object."""
        ...

    @property
    def key(self) -> Key:
        """(namespace, name)."""
        ...


Valid = TypeVar("Valid", bound=Kept)
Invalid = TypeVar("Invalid", bound=Kept)


class Objects(Generic[Valid, Invalid]):
    """Objects of one kind by key. An object never goes back in time: its resourceVersion decides.

    Args:
        plural: of the kind.
        read: converts a document into the entry to keep; also receives the former entry.
        valid: type of an object that can be run.
    """

    def __init__(
        self,
        plural: str,
        read: Callable[[Mapping[str, Any], Valid | Invalid | None], Valid | Invalid | None],
        valid: type[Valid],
    ) -> None:
        self._plural, self._read, self._valid = plural, read, valid
        self._handlers: list[Handler] = []
        self._invalid_handlers: list[Handler] = []
        self._jobs: dict[Key, Valid | Invalid] = {}
        self._buried: OrderedDict[str, None] = OrderedDict()
        self._news = asyncio.Event()

    def __iter__(self) -> Iterator[Valid]:
        return (job for job in list(self._jobs.values()) if isinstance(job, self._valid))

    @contextlib.contextmanager
    def subscribed(self, handler: Handler, *, invalid: bool = False) -> Iterator[None]:
        """Call `handler` with the key of each object that appears, changes or goes, for the duration of a block.

        Args:
            handler: to call.
            invalid: call it only for objects that cannot be run as they are, each time that one is seen.
        """
        handlers = self._invalid_handlers if invalid else self._handlers
        handlers.append(handler)
        try:
            yield
        finally:
            handlers.remove(handler)

    def notify(self, key: Key, after: float = 0.0) -> None:
        """Call the handlers: the object, or something that belongs to it, has changed.

        Args:
            key: of the object.
            after: seconds in which more of the same is to be expected.
        """
        for handler in self._handlers:
            handler(key, after)

    def child_changed(self, key: Key, after: float = 0.0) -> None:
        """Notify of the object that owns a child of this key, by its name with a number, if there is one."""
        namespace, name = key
        parent = (namespace, name.rpartition("-")[0])
        if parent in self._jobs:
            self.notify(parent, after)

    def get(self, key: Key) -> Valid | None:
        """Return the object of this name; None if it does not exist or cannot be run."""
        job = self._jobs.get(key)
        return job if isinstance(job, self._valid) else None

    def find(self, key: Key) -> Valid | Invalid | None:
        """Return the object of this name, whether or not it can be run."""
        return self._jobs.get(key)

    def keys(self) -> list[Key]:
        """Return the keys of all objects."""
        return list(self._jobs)

    def record(self, kind: str | None, document: Mapping[str, Any]) -> None:
        """Apply one event of a watch: ADDED, MODIFIED, DELETED, or None for an object of a list."""
        metadata = document.get("metadata")
        known = None
        if isinstance(metadata, Mapping):
            known = self._jobs.get(_key(metadata))
            listed = version(str(metadata.get("resourceVersion") or ""))
            # What could not be run may be another object by now without a new version: another CRD reads it otherwise.
            read = known is not None and _version(known) >= listed + (not isinstance(known, self._valid))
            if read and kind != "DELETED":
                return  # late, or, as most events of the watch, a write of this operator
        job = self._read(document, known)
        if job is None:
            _log.warning("ignored an object without metadata")
        elif kind == "DELETED":
            self._bury(job)
        else:
            self._take(job)

    def put(self, answer: bytes) -> None:
        """Apply the answer to a write of this operator."""
        self.record("MODIFIED", msgspec.json.decode(answer))

    def written(self, job: Valid) -> None:
        """Store a job as our own write left it; it queues no plan, since a plan asked for it."""
        before = self._jobs.get(job.key)
        if before is not None and before.metadata.uid == job.metadata.uid and _version(before) < _version(job):
            self._keep(job)

    def missed(self, key: Key, uid: str, error: NotFound) -> None:
        """Check a job for which the API server answered 404.

        Raises:
            Unavailable: it does not serve the resource now, since the CRD is being replaced: the job may exist.
        """
        if error.details.name != key[1]:
            raise Unavailable(f"{self._plural} are not served at the moment: {error}") from error
        self.gone(key, uid)

    def gone(self, key: Key, uid: str) -> None:
        """Remove a job that no longer exists."""
        job = self._jobs.get(key)
        if job is not None and job.metadata.uid == uid:
            self._bury(job)

    async def compare(self, api: Api, namespaces: Iterable[str]) -> None:
        """Compare with what is there: an event that never came, a deletion while there was no watch.

        Args:
            api: the server.
            namespaces: to look into; an empty name: all of them.

        Raises:
            Unavailable, Rejected, NotFound, Gone: it could not be read.
        """
        before = dict(self._jobs)
        there: dict[Key, _Meta] = {}
        for namespace in namespaces:
            there |= await _list(api, self._plural, namespace)
        for key in before.keys() | there.keys():
            known = self._jobs.get(key)
            if known is not before.get(key):
                continue  # an event came since it was listed
            listed = there.get(key, _Meta())
            runs = isinstance(known, self._valid) and known.metadata.uid == listed.uid
            if not runs or known is None or _version(known) < version(listed.resource_version):
                await self.read(api, key)

    async def caught_up(self, api: Api, namespaces: Iterable[str]) -> None:
        """Wait until every existing job was seen, including the last ones that a former operator created.

        A watch does not report when it has sent all that it found.

        Raises:
            Unavailable, Rejected, NotFound, Gone: it could not be read what is there.
        """
        missing: dict[Key, _Meta] = {}
        for namespace in namespaces:
            missing |= await _list(api, self._plural, namespace, latest=True)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_SECONDS):
                while missing := {key: listed for key, listed in missing.items() if self._is_news(key, listed)}:
                    self._news.clear()
                    await self._news.wait()
        for key in missing:
            await self.read(api, key)

    async def read(self, api: Api, key: Key) -> None:
        """Read one object from the server, whether or not it is cached.

        Raises:
            Unavailable, Rejected, Gone: it could not be read.
        """
        known = self._jobs.get(key)
        await self._read_one(api, key, known.metadata.uid if known is not None else "")

    def _is_news(self, key: Key, listed: "_Meta") -> bool:
        """Return whether a job of a list was not seen yet: none of its name, or one that was there before it."""
        known = self._jobs.get(key)
        return known is None or (
            known.metadata.uid != listed.uid and _version(known) < version(listed.resource_version)
        )

    async def _read_one(self, api: Api, key: Key, uid: str) -> None:
        """Read the object itself: a list may be outdated, the object is not."""
        try:
            self.put(await api.request("GET", object_path(self._plural, key)))
        except NotFound as error:
            self.missed(key, uid, error)

    def _take(self, job: Valid | Invalid) -> None:
        before = self._jobs.get(job.key)
        if job.metadata.uid in self._buried:
            return
        if before is not None and before.metadata.uid != job.metadata.uid:
            self._exclude(before.metadata.uid)
        self._keep(job)
        self._news.set()
        if not isinstance(job, self._valid):
            for handler in self._invalid_handlers:
                handler(job.key, 0.0)
        self.notify(job.key)

    def _bury(self, job: Valid | Invalid) -> None:
        """Forget a uid for good: it never comes back, whatever arrives late."""
        self._exclude(job.metadata.uid)
        known = self._jobs.get(job.key)
        if known is not None and known.metadata.uid == job.metadata.uid:
            self._drop(job.key)
            self.notify(job.key)

    def _exclude(self, uid: str) -> None:
        self._buried[uid] = None
        if len(self._buried) > MAX_BURIED:
            self._buried.popitem(last=False)

    def _keep(self, job: Valid | Invalid) -> None:
        self._jobs[job.key] = job

    def _drop(self, key: Key) -> None:
        del self._jobs[key]


class Jobs(Objects[TrainingJob, InvalidJob]):
    """The jobs of the cluster; see `Objects`."""

    def __init__(self) -> None:
        super().__init__(PLURAL, parse_job, TrainingJob)
        self._owned: defaultdict[str, set[Key]] = defaultdict(set)
        self.synced = asyncio.Event()
        """Set once all jobs are known that existed when this process started, and everything that belongs to them."""

    def owned_by(self, uid: str) -> list[TrainingJob | InvalidJob]:
        """Return the jobs that name the object of this uid as an owner, in whatever namespace, in any order."""
        return [self._jobs[key] for key in self._owned.get(uid, ())]

    def _keep(self, job: TrainingJob | InvalidJob) -> None:
        before = self._jobs.get(job.key)
        if before is None or before.metadata.owner_references != job.metadata.owner_references:
            self._forget_owners(job.key)
            for owner in job.metadata.owner_references:
                self._owned[owner.uid].add(job.key)
        super()._keep(job)

    def _drop(self, key: Key) -> None:
        self._forget_owners(key)
        super()._drop(key)

    def _forget_owners(self, key: Key) -> None:
        for owner in self._jobs[key].metadata.owner_references if key in self._jobs else ():
            self._owned[owner.uid].discard(key)
            if not self._owned[owner.uid]:
                del self._owned[owner.uid]


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    """Metadata of a job or a list of jobs."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    continue_: str | None = msgspec.field(default=None, name="continue")


class _Listed(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()


class _Page(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()
    items: list[_Listed] | None = None


async def _list(api: Api, plural: str, namespace: str, *, latest: bool = False) -> dict[Key, _Meta]:
    """Return name and version of every object: the `latest`, or what the server's cache has, which may be outdated."""
    within = f"/namespaces/{namespace}" if namespace else ""
    path = f"/apis/{GROUP}/{VERSION}{within}/{plural}"
    read = msgspec.json.Decoder(_Page).decode
    options: dict[str, Any] = {"accept": METADATA_OF_ALL, "timeout": LIST_SECONDS}
    try:
        # A server answers from its cache only where no limit is asked for.
        params = {} if latest else {"resourceVersion": "0"}
        found = [read(await api.request("GET", path, params=params, most=PAGE_BYTES, **options))]
    except TooLarge:
        found = [page async for page in pages(api, path, read, {}, **options)]
    listed = (each.metadata for page in found for each in page.items or ())
    return {(each.namespace, each.name): each for each in listed}


def _key(metadata: Mapping[str, Any]) -> Key:
    return str(metadata.get("namespace")), str(metadata.get("name"))


def _version(job: Kept) -> int:
    return version(job.metadata.resource_version)


async def replace_status(api: Api, meta: ObjectMeta, status: dict[str, Any]) -> bytes:
    """Replace the status of the job of this uid and version, and nothing else; return its metadata as it is now.

    Raises:
        Conflict: it is another object, or another version of it.
        NotFound, Gone, Rejected, Unavailable: it was not written.
    """
    body: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
        },
        "status": status,
    }
    path = f"{job_path((meta.namespace, meta.name))}/status"
    return await api.request("PUT", path, params=UNCHECKED, body=body, accept=METADATA_OF_ONE)
