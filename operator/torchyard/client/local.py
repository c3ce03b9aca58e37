"""The runs on this machine as a backend, which reads and writes files."""

import re
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, field

from torchyard.api.files import read_regular
from torchyard.api.formatting import name_of_file
from torchyard.api.resource import TrainingJob, job_document
from torchyard.api.values import DNS_LABEL_PATTERN, plural
from torchyard.client.backend import MAX_RECORD, RECORD, THIS_MACHINE, Kept, LogLine, Notice, States, Unreadable, logged
from torchyard.client.errors import FAILED, NotFoundError, TorchYardError
from torchyard.client.local_logs import RankLog, log_files
from torchyard.local.keeper import stat_fields
from torchyard.local.record import Running, read
from torchyard.local.run import Event, RunFolder, events, is_controlled, is_locked, read_run, run_folder
from torchyard.local.runs import expire_run, list_runs, remove_run, scale_run, suspend_run

if TYPE_CHECKING:
    from torchyard.client.artifacts import Allowance, Artifact
    from torchyard.client.curves import Curves, Scale
    from torchyard.client.explanation import Explanation
    from torchyard.client.job_details import JobDetails, PodProcesses
    from torchyard.client.ranks import RankStacks
    from torchyard.client.summaries import Summary

LOOK_SECONDS = 1.0
LOG_SECONDS = 0.25
ABANDONED_LOOKS = 3
"""So often in a row a run must be seen without a controlling process: one that starts has none yet."""


class LocalBackend:
    """The runs in $TORCHYARD_HOME."""

    where = THIS_MACHINE
    cluster = ""
    flags = ""

    def __init__(self, notice: Notice = logged) -> None:
        self._notice = notice

    async def get(self, name: str) -> Kept:
        """Return a run."""
        return kept(load(find(name)))

    async def inspect(self, name: str) -> "tuple[Kept, JobDetails]":
        """Return a run with the newest reports of its workers, and its processes."""
        from torchyard.client.job_details import JobDetails, Processes

        run = load(find(name))
        folder = run.folder
        if not (run.controlled or run.detached):  # nothing reports
            return kept(run), JobDetails((), folder.path, Processes(is_controlled(folder), []))
        from torchyard.client.ranks import freshen, ranks_of, read_reports

        reports = read_reports(folder.pods, run.job.status.round)
        processes = Processes(is_controlled(folder), living_processes(folder.pods))
        fresh = kept(run._replace(job=freshen(run.job, reports)))
        return fresh, JobDetails(ranks_of(reports), folder.path, processes)

    async def jobs(self, *, everywhere: bool = False) -> list[Kept | Unreadable]:  # noqa: ARG002 -- no namespaces here
        """Return the runs, newest first, then damaged ones; delete those whose TTL has passed."""
        found: list[Kept] = []
        unreadable: list[Unreadable] = []
        for folder in list_runs():
            try:
                run = load(folder)
            except TorchYardError as error:
                unreadable.append(_unreadable(folder.name, str(error)))
            else:
                if not expire_run(folder, run.job):
                    found.append(kept(run))
        found.sort(key=lambda each: each.job.metadata.creation_timestamp or 0.0, reverse=True)
        return [*found, *unreadable]

    async def summaries(self, *, everywhere: bool = False) -> "list[Summary | Unreadable]":  # noqa: ARG002
        """Return what a list shows of the runs, newest first, then damaged ones; delete those whose TTL has passed."""
        from torchyard.client.summaries import local_summaries

        found, damaged = local_summaries(
            lambda folder: load(folder).job, lambda folder: bool(living_processes(folder.pods))
        )
        return [*found, *(_unreadable(name, sentence) for name, sentence in damaged.items())]

    async def states(self, name: str, uid: str = "", *, until_deleted: bool = False) -> States:
        """Yield a run every second; None once it is gone or another run has its name.

        Raises:
            TorchYardError: no process controls the run, so its state will not change.
        """
        import asyncio

        abandoned = 0
        folder = named(name) if until_deleted else find(name)
        while True:
            run = _loaded(folder)
            uid = run.job.metadata.uid if run is not None and not uid else uid
            if run is None or run.job.metadata.uid != uid:
                yield None
                return
            yield run.job
            abandoned = abandoned + 1 if not (run.controlled or run.job.status.state.at_rest or until_deleted) else 0
            if abandoned == ABANDONED_LOOKS:
                raise _abandoned(name, detached=run.detached)
            await asyncio.sleep(LOOK_SECONDS)

    async def events(self, name: str) -> list[Event]:
        """Return the events of a run, oldest first."""
        return events(find(name))

    async def logs(
        self,
        name: str,
        uid: str = "",
        *,
        rank: int | None = None,
        follow: bool = False,
        tail: int | None = None,
        round_number: int | None = None,
    ) -> AsyncIterator[LogLine]:
        """Yield the lines in the logs of all pods that the run ever had."""
        from torchyard.client.ranks import failing_rank

        folder = find(name)
        job = load(folder).job
        if round_number is not None:
            for line in self._failed_round(folder, job, round_number, rank=rank, tail=tail):
                yield line
            return
        uid = uid or job.metadata.uid
        first = failing_rank(job.status.attempts)
        logs = {path: RankLog(path, number) for path, number in log_files(folder.pods, rank)}
        for log in sorted(logs.values(), key=lambda log: (log.rank != first, log.rank, log.modified)):
            lines = log.read(last=not follow)
            for line in lines if tail is None else deque(lines, maxlen=tail):
                yield line
        if not logs and not follow:
            self._nothing_written(job, rank)
        over = not follow
        while not over:
            import asyncio

            run = load(folder)
            if run.job.metadata.uid != uid:
                return
            over = run.over
            for path, number in log_files(folder.pods, rank):
                if path in logs or path.suffix == ".log":  # a turned-over file holds what was shown already
                    log = logs.setdefault(path, RankLog(path, number))
                    for line in log.read(last=over):
                        yield line
            if not over:
                await asyncio.sleep(LOG_SECONDS)

    def _nothing_written(self, job: TrainingJob, rank: int | None) -> None:
        """Report that there is no output yet.

        Raises:
            TorchYardError: the run has no such rank.
        """
        from torchyard.api.launch import local_procs

        name, ranks = job.metadata.name, job.spec.nodes * local_procs(job.spec)
        if rank is not None and rank >= ranks:
            what = f"rank {rank} is not possible: {name!r} has {plural(ranks, 'rank')}"
            raise TorchYardError(what, "ask for 0" if ranks == 1 else f"ask for 0 to {ranks - 1}")
        who = "no rank has" if rank is None else f"rank {rank} has not"
        self._notice(f"{name}: {who} written anything yet")

    def _failed_round(
        self, folder: RunFolder, job: TrainingJob, number: int, *, rank: int | None, tail: int | None
    ) -> Iterator[LogLine]:
        from torchyard.client import failed_rounds

        kept = folder.checkpoints / failed_rounds.output(number)
        return failed_rounds.lines(job, number, kept, self._notice, rank=rank, tail=tail)

    async def explain(self, name: str) -> "Explanation":
        """Explain a run's state."""
        from torchyard.client.explanation import explanation

        folder = find(name)
        return explanation(load(folder).job, [], events(folder), f"on {self.where}", self.flags, time.time())

    async def suspend(self, name: str) -> Kept:
        """Ask the process that controls a run to save and stop it."""
        folder = find(name)
        suspend_run(folder, suspend=True)
        return kept(load(folder))

    async def resume(self, name: str) -> Kept:
        """Withdraw a request to stop; the run continues once a process controls it."""
        folder = find(name)
        suspend_run(folder, suspend=False)
        return kept(load(folder))

    async def scale(self, name: str, nodes: int) -> Kept:
        """Set `spec.nodes`; the process that controls the run follows."""
        folder = find(name)
        scale_run(folder, nodes)
        return kept(load(folder))

    async def delete(self, name: str) -> None:
        """Delete a run with its logs and checkpoints at once, without saving."""
        folder = find(name)
        try:
            remove_run(folder)
        except ValueError as error:
            raise TorchYardError(str(error).rstrip(".")) from error

    async def environment(self, name: str) -> bytes | None:
        """Return the recorded environment of a run."""
        try:
            return read_regular(find(name).checkpoints / RECORD, MAX_RECORD)
        except OSError:
            return None

    async def artifacts(self, name: str) -> "list[Artifact]":
        """Return the artifacts in the checkpoint folder."""
        from torchyard.client.artifacts import artifacts_of

        return artifacts_of(find(name).checkpoints)

    async def fetch(self, name: str, wanted: Path, to: Path, allowance: "Allowance") -> None:  # noqa: ARG002
        """Copy a file or folder from the checkpoint folder, without a size limit."""
        from torchyard.client.artifacts import copy

        copy(find(name).checkpoints, wanted, to, name)

    async def curves(self, name: str, wanted: Iterable[str] | None = None, scale: "Scale" = "overview") -> "Curves":
        """Return the curves of a run."""
        from torchyard.client.curves import of_file

        return of_file(metrics_file(name), wanted, scale, load(find(name)).job.status)

    async def stacks(self, name: str) -> "list[RankStacks]":
        """Ask the agents of a run."""
        from torchyard.client.local_pods import stacks

        run = load(find(name))
        return stacks(living_pods(run, name), run.folder.home / "cache")

    async def profile(self, name: str, wish: str, *, replace: bool) -> int:
        """Write the request into the run folder of every pod that lives."""
        from torchyard.client.local_pods import profile
        from torchyard.client.profile_request import refuse_deaf

        run = load(find(name))
        refuse_deaf(run.job)
        return profile(run.job, living_pods(run, name), wish, replace=replace)


class Run(NamedTuple):
    """A run, read from its files."""

    folder: RunFolder
    job: TrainingJob
    controlled: bool
    """Whether a process controls it."""
    detached: bool = False
    """Whether its pods live on without one: their `torchyard run` was killed."""

    @property
    def over(self) -> bool:
        """Whether the run has ended or is not controlled, so that its state will not change."""
        return not (self.controlled or self.detached) or self.job.status.state.terminal

    def refusal(self, name: str) -> TorchYardError:
        """Return the error that the run is not running, and how to continue it if it has not ended."""
        state, what = self.job.status.state, f"the run {name!r} does not run"
        if state.terminal:
            return TorchYardError(what, f"it has ended ({state}); see `torchyard status {name}`")
        return TorchYardError(what, f"`torchyard resume {name}` continues it")


def _unreadable(name: str, sentence: str) -> Unreadable:
    return Unreadable(name_of_file(name), name_of_file(sentence))


def named(name: str) -> RunFolder:
    """Return the folder for a run of this name, whether or not it exists.

    Raises:
        TorchYardError: the name cannot be one of a run.
    """
    if not isinstance(name, str) or not re.fullmatch(DNS_LABEL_PATTERN, name):  # a caller may have no types
        raise TorchYardError(
            f"{name!r} is not a valid name of a run", "names are lower-case letters, digits and hyphens"
        )
    return run_folder(name)


def metrics_file(name: str) -> Path:
    """Return the path of the metrics of a run, which may be missing. Raises what `named` does."""
    from torchyard.client.metrics import FILE

    return named(name).checkpoints / FILE


def find(name: str) -> RunFolder:
    """Return the folder of a run that exists.

    Raises:
        NotFoundError: there is no such run.
    """
    folder = named(name)
    if not folder.job_file.exists():
        import difflib

        from torchyard.local.sweeps import is_sweep

        near = difflib.get_close_matches(name, [known.name for known in list_runs()], n=1)
        fix = f"did you mean {near[0]!r}?" if near else "`torchyard ps` lists the runs"
        if is_sweep(name):
            fix = f"it is a sweep: `torchyard sweep show {name}` lists its trials, which are runs"
        raise NotFoundError(f"there is no run {name!r} in {folder.home}", fix)
    return folder


def load(folder: RunFolder) -> Run:
    """Read a run.

    Raises:
        TorchYardError: its files are missing or damaged.
    """
    if not re.fullmatch(DNS_LABEL_PATTERN, folder.name):
        what = f"the folder {str(folder.path)!r} has no valid name of a run"
        raise TorchYardError(what, "rename it: names are lower-case letters, digits and hyphens")
    controlled = is_controlled(folder) is not None  # before the status: what was written last is then read
    try:
        job = read_run(folder)
    except ValueError as error:
        raise TorchYardError(str(error).rstrip("."), f"correct the file or delete the folder {folder.path}") from error
    if job is None:
        raise NotFoundError(f"the run {folder.name!r} was deleted", "`torchyard ps` lists the runs")
    ended = controlled or job.status.state.terminal
    return Run(folder, job, controlled, detached=not ended and bool(living_processes(folder.pods)))


def living_pods(run: Run, name: str) -> list[Path]:
    """Return the folders of the pods that live.

    Raises:
        TorchYardError: no pod is running.
    """
    pods = [pod for pod in sorted(run.folder.pods.glob("*")) if is_locked(pod / "lock")]
    if run.over or not pods:
        raise run.refusal(name)
    return pods


class _Workers(Struct, frozen=True):
    """`workers.json`, written by the launcher of a round."""

    pids: dict[int, int] = field(default_factory=dict)


def living_processes(pods: Path) -> "list[PodProcesses]":
    """Return the pods whose agents live, with the workers of each."""
    from torchyard.client.job_details import PodProcesses

    found = []
    for file in sorted(pods.glob("*/process.json")):
        running = read(file, Running)
        if running is not None and running.agent.alive():
            workers = read(file.parent / "run" / "workers.json", _Workers) or _Workers()
            alive = {rank: pid for rank, pid in sorted(workers.pids.items()) if _runs(pid)}
            found.append(PodProcesses(file.parent.name, running.agent.pid, alive))
    return found


def _runs(pid: int) -> bool:
    fields = stat_fields(pid)
    return bool(fields) and fields[0] != "Z"


def kept(run: Run) -> Kept:
    """Return a run in the form that backends return."""
    return Kept(run.job, job_document(run.job), run.controlled, run.detached)


def _loaded(folder: RunFolder) -> Run | None:
    try:
        return load(folder) if folder.job_file.exists() else None
    except NotFoundError:  # it was deleted in between
        return None


def _abandoned(name: str, *, detached: bool) -> TorchYardError:
    if detached:
        what = f"the run {name!r} is detached: its pods are alive, but no process follows them or would notice the end"
        return TorchYardError(what, f"`torchyard resume {name}` reattaches", FAILED)
    what = f"the run {name!r} is interrupted: the process that controlled it is gone"
    return TorchYardError(what, f"`torchyard resume {name}` continues it", FAILED)
