"""The reconcile loop: take a key from the queue, gather its view, plan, execute. An error on one job affects no other.

The queue has the semantics of client-go, for one event loop: a key is queued at most once, is given to one worker at a
time, and is queued again if it was added while it was processed. After failures each key has its own exponential
back-off.
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Generic, Literal, TypeVar

from msgspec import Struct

from torchyard.api.launch import is_agentless, requested_procs
from torchyard.api.profiles.effective import with_profile
from torchyard.api.reasons import Reason, say
from torchyard.api.resource import TrainingJob
from torchyard.api.status import Images, TrainingJobStatus
from torchyard.reconcile.actions import CreatePod, EmitEvent, WriteStatus
from torchyard.reconcile.code import Program
from torchyard.reconcile.gang import configuration
from torchyard.reconcile.loop import executor
from torchyard.reconcile.loop.executor import MAX_IN_FLIGHT, Executor, Refusals, StatusWriter
from torchyard.reconcile.observed import Refusal, View
from torchyard.reconcile.plan import plan, stalled
from torchyard.reconcile.ports import Agents, Cluster, Conflict, Key, NameTaken, Refused, StatusRefused, Unavailable
from torchyard.reconcile.profile import NO_PROFILE, ProfileVerdict
from torchyard.schedulers.protocol import CreateObject, DeleteObject, PatchObject

MAX_EVIDENCE = 300
BASE_SECONDS = 0.05
MAX_SECONDS = 60.0
K = TypeVar("K", bound=Hashable)
Version = tuple[str, int, tuple[str, int] | None]
"""UID and generation of a job, and of its profile."""
_log = logging.getLogger(__name__)


class Settings(Struct, frozen=True, kw_only=True):
    """Concurrency and delays of the loop, in seconds."""

    workers: int = 8
    in_flight: int = MAX_IN_FLIGHT
    backoff_base: float = BASE_SECONDS
    backoff_most: float = MAX_SECONDS
    resync: float = 60.0  # each job is reconciled this often even if all its events were lost


class Derived(Struct, frozen=True, kw_only=True):
    """The parts of a view that follow from the spec of the job."""

    configuration: str
    images: Images | None
    files_stay: bool
    program: Program | None
    agentless: bool
    procs: int | Literal["auto"]


class Controller:
    """Reconciles all jobs of a cluster.

    Args:
        cluster: jobs and pods.
        agents: state and commands of the agents.
        clock: unix seconds.
        settings: concurrency and delays.
        complete: whether all pods are known. Until then only the first gang of a job without a state is created, since
            its pod names are deterministic; every other job waits until it is enqueued again.
        observe: called with the result of each reconcile (done, conflict, refused, unavailable, failed) and its
            seconds.
        done: called with each job that was reconciled without an error.
        written: called with a job as it was and each status that was written of it.
    """

    def __init__(
        self,
        cluster: Cluster,
        agents: Agents,
        *,
        clock: Callable[[], float] = time.time,
        settings: Settings = Settings(),  # noqa: B008 -- frozen
        complete: Callable[[], bool] = lambda: True,
        observe: Callable[[str, float], None] = lambda _result, _seconds: None,
        done: Callable[[Key], None] = lambda _key: None,
        written: Callable[[TrainingJob, TrainingJobStatus], None] = lambda _job, _status: None,
    ) -> None:
        self._cluster, self._agents, self._clock, self._settings = cluster, agents, clock, settings
        self._complete, self._observe, self._done, self._began = complete, observe, done, clock()
        self._writer = StatusWriter(cluster, clock, written)
        self._executor = Executor(cluster, agents, self._writer, in_flight=settings.in_flight)
        self._queue: WorkQueue[Key] = WorkQueue(base=settings.backoff_base, most=settings.backoff_most)
        self._known: dict[Key, tuple[str, float]] = {}  # job uid, first reconcile in this process
        self._derived: dict[Key, tuple[Version, Derived]] = {}
        self._refusals = Refusals(clock)
        self._taken: set[str] = set()  # uids of jobs whose pods' names are taken
        self._silent: dict[Key, str] = {}  # last problem that was logged
        self._failing: dict[Key, Refusal] = {}  # why the last writes were not carried out

    def enqueue(self, key: Key, after: float = 0.0) -> None:
        """Queue a reconcile after `after` seconds, to debounce bursts of events."""
        self._queue.add_after(key, after)

    @property
    def depth(self) -> int:
        """Return the number of queued jobs."""
        return len(self._queue)

    async def run(self) -> None:
        """Work until cancelled or closed."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._settings.workers):
                group.create_task(self._work())

    async def close(self, *, drop: bool = False) -> None:
        """Take no more keys; `run` ends after the keys that are due, with `drop` after those in progress."""
        self._queue.close(drop=drop)

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile one job once; return the seconds until the next time, None: it is gone or its pods are unknown."""
        job = self._cluster.job(key)
        if job is None:
            uid, _ = self._known.pop(key, ("", 0.0))
            self._derived.pop(key, None)
            self._writer.forget(uid)
            self._refusals.forget(uid)
            self._taken.discard(uid)
            return None
        complete = self._complete()
        if not complete and job.status.state:
            return None
        profile = self._cluster.profile(job)
        if profile.pinned is not None:
            job = with_profile(job, profile.pinned)
        decided = plan(self.view(job, profile))
        if not complete and not decided.pods_first:
            return None
        made = executor.decision(job, decided)
        try:
            due = await self._executor.carry_out(job, decided)
        except (NameTaken, Refused, Unavailable) as error:
            if made is not None:
                executor.log(made, failed=type(error).__name__)
            raise
        if made is not None:
            executor.log(made)
        if any(isinstance(action, CreatePod | CreateObject | PatchObject | DeleteObject) for action in decided.actions):
            self._refusals.forget(job.metadata.uid)
            self._taken.discard(job.metadata.uid)
        return min(self._settings.resync, due if due is not None else self._settings.resync)

    def view(self, job: TrainingJob, profile: ProfileVerdict = NO_PROFILE) -> View:
        """Return everything that the plan may know of a job now.

        Args:
            job: with the values of its profile.
            profile: of the job.
        """
        now = self._clock()
        uid, since = self._known.get(job.key, ("", now))
        if uid != job.metadata.uid:
            since = now
            self._known[job.key] = (job.metadata.uid, since)
        pods = self._cluster.pods(job.metadata.uid)
        # A job without pods has no agents.
        uids = {pod.uid for pod in pods} | set(job.status.rendezvous.members) - {""}
        derived = self._of_spec(job, profile)
        return View(
            job=job,
            pods=pods,
            agents=self._agents.of(uids) if uids else {},
            commands=self._agents.commanded(uids) if uids else {},
            now=now,
            since=since,
            term=self._began,
            refusal=self._refusals.of(job),
            name_taken=job.metadata.uid in self._taken,
            failing=self._failing.get(job.key),
            configuration=derived.configuration,
            images=derived.images,
            files_stay=derived.files_stay,
            program=derived.program,
            agentless=derived.agentless,
            procs=derived.procs,
            scheduling=self._cluster.scheduling(job),
            node_memory=self._cluster.node_memory(),
            profile=profile,
        )

    def _of_spec(self, job: TrainingJob, profile: ProfileVerdict) -> Derived:
        """Return what follows from the spec, computed once for each generation of the job and of its profile."""
        pinned = profile.pinned
        sets = (pinned.uid, pinned.generation) if pinned is not None else None
        version = (job.metadata.uid, job.metadata.generation, sets)
        known = self._derived.get(job.key)
        if known is not None and known[0] == version:
            return known[1]
        derived = Derived(
            configuration=configuration(job.spec),
            images=self._cluster.images(job),
            files_stay=self._cluster.keeps_files(job),
            program=self._cluster.program(job),
            agentless=is_agentless(job.spec),
            procs=requested_procs(job.spec),
        )
        self._derived[job.key] = (version, derived)
        return derived

    async def _work(self) -> None:
        while True:
            try:
                key = await self._queue.get()
            except Closed:
                return
            begun = time.monotonic()
            try:
                self._observe(await self._process(key), time.monotonic() - begun)
            finally:
                self._queue.done(key)

    async def _process(self, key: Key) -> str:
        try:
            due = await self.reconcile(key)
        except Conflict:
            self._queue.fail(key)
            return "conflict"
        except NameTaken as error:
            self._queue.fail(key)
            self._log_once(key, f"a name of its pods is taken: {error}")
            if (job := self._cluster.job(key)) is not None:
                self._taken.add(job.metadata.uid)
            return "conflict"
        except StatusRefused as error:
            self._queue.fail(key, at_least=error.retry_after)
            if self._log_once(key, f"its status cannot be written: {error}"):
                await self._warn(key, error)
            return "refused"
        except Refused as error:
            self._queue.succeed(key)
            self._queue.add_after(key, self._note_refusal(key, error))
            if error.reason == Reason.FORBIDDEN:  # people who can grant the right read the log, not the job
                self._log_once(key, str(error))
            return "refused"
        except Unavailable as error:
            self._queue.fail(key, at_least=error.retry_after)
            self._log_once(key, f"a call failed, retrying: {error}")
            now = self._clock()
            since = self._failing[key].since if key in self._failing else now
            why = str(error)[:MAX_EVIDENCE]
            self._failing[key] = Refusal(reason=Reason.PODS_NOT_CREATED, message=why, since=since, until=now)
            return "unavailable"
        except Exception as error:  # noqa: BLE001 -- an error on one job must not affect others
            delay = self._queue.fail(key)
            _log.exception("%s/%s: reconcile failed, retrying in %.1f s", *key, delay)
            await self._stall(key, error)
            return "failed"
        self._queue.succeed(key)
        if due is not None:
            self._done(key)
        self._silent.pop(key, None)
        self._failing.pop(key, None)
        if due is not None:
            self._queue.add_after(key, due)
        return "done"

    def _log_once(self, key: Key, trouble: str) -> bool:
        """Log a problem unless it was the last one logged for the job; return whether it was logged."""
        if self._silent.get(key) == trouble:
            return False
        self._silent[key] = trouble
        _log.warning("%s/%s: %s", *key, trouble)
        return True

    async def _warn(self, key: Key, error: StatusRefused) -> None:
        """Record an event about a status that cannot be written, for `kubectl describe`."""
        job = self._cluster.job(key)
        if job is not None:
            message = f"The status is out of date, it cannot be written: {say(error.reason, error.message)}"[:1024]
            await self._cluster.emit_event(job, EmitEvent(type="Warning", reason=error.reason, message=message))

    def _note_refusal(self, key: Key, error: Refused) -> float:
        """Store the refusal for the next plan; return the seconds until that is due."""
        job = self._cluster.job(key)
        return self._refusals.note(job, error) if job is not None else 0.0

    async def _stall(self, key: Key, error: Exception) -> None:
        """Set `Stalled` on the job, once per error."""
        try:
            job = self._cluster.job(key)
            if job is None or job.metadata.deletion_timestamp is not None:
                return
            evidence = f"{type(error).__name__}: {error}"[:MAX_EVIDENCE]
            status = stalled(job.status, self._clock(), generation=job.metadata.generation, evidence=evidence)
            if status != job.status:
                await self._writer.write(job, WriteStatus(status=status, urgent=True), 0.0)
        except Exception:  # noqa: BLE001 -- the back-off does not depend on this write
            _log.exception("%s/%s: the condition Stalled could not be written", *key)


class Closed(Exception):  # noqa: N818 -- not a fault: the end of the work
    """The queue was shut down and is empty."""


class WorkQueue(Generic[K]):
    """Keys that are to be reconciled.

    Args:
        base: delay after the first failure of a key, seconds; it doubles with each further one.
        most: longest delay after a failure, seconds.
        jitter: drawn once per failure, a factor in [0, 1); the delay grows by up to half of itself.
    """

    def __init__(
        self, *, base: float = BASE_SECONDS, most: float = MAX_SECONDS, jitter: Callable[[], float] = random.random
    ) -> None:
        self._base, self._most, self._jitter = base, most, jitter
        self._waiting: deque[K] = deque()
        self._dirty: set[K] = set()
        self._processing: set[K] = set()
        self._failures: dict[K, int] = {}
        self._delayed: dict[K, asyncio.TimerHandle] = {}
        self._added = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        """Return the number of keys that are due, without those being processed."""
        return len(self._waiting)

    def add(self, key: K) -> None:
        """Queue a key for the next free worker."""
        if self._closed or key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._processing:
            self._waiting.append(key)
            self._added.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Queue a key in `seconds`; of several delays of one key the earliest applies."""
        if self._closed:
            return
        if seconds <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        earlier = self._delayed.get(key)
        if earlier is not None:
            if earlier.when() <= loop.time() + seconds:
                return
            earlier.cancel()
        self._delayed[key] = loop.call_later(seconds, self._mature, key)

    def fail(self, key: K, at_least: float | None = None) -> float:
        """Queue a failed key after its back-off; return the delay in seconds."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        delay = min(self._most, self._base * 2.0 ** min(count, 60))
        delay = max(at_least or 0.0, delay) * (1.0 + self._jitter() / 2)
        self.add_after(key, delay)
        return delay

    def failures(self, key: K) -> int:
        """Return the number of consecutive failures of the key."""
        return self._failures.get(key, 0)

    def succeed(self, key: K) -> None:
        """Forget the failures of a key."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """Return the next key; `done` must follow.

        It suspends even if a key is due: work that writes nothing never does, and a thousand such keys in a row would
        delay everything else by seconds, answers to agents and the renewal of the lease among it.

        Raises:
            Closed: the queue was shut down and is empty.
        """
        await asyncio.sleep(0)
        while not self._waiting:
            if self._closed:
                raise Closed
            self._added.clear()
            await self._added.wait()
        key = self._waiting.popleft()
        self._dirty.discard(key)
        self._processing.add(key)
        return key

    def done(self, key: K) -> None:
        """Mark a key as processed; it is due again if it was added while it was processed."""
        self._processing.discard(key)
        if key in self._dirty:
            self._waiting.append(key)
            self._added.set()

    def close(self, *, drop: bool = False) -> None:
        """Take no more keys; workers get the keys that are due (with `drop` none), then `Closed`."""
        self._closed = True
        if drop:
            self._waiting.clear()
            self._dirty.clear()
        for timer in self._delayed.values():
            timer.cancel()
        self._delayed.clear()
        self._added.set()

    def _mature(self, key: K) -> None:
        with suppress(KeyError):
            del self._delayed[key]
        self.add(key)
