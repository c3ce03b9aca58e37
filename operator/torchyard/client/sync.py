"""Jobs in Python, synchronous: the same as `torchyard.client.jobs`, on an event loop in a separate thread."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from torchyard.api.resource import TrainingJob
from torchyard.api.status import TrainingJobStatus
from torchyard.client import jobs as asynchronous
from torchyard.client import sweeps
from torchyard.client.artifacts import MAX_SIZE, Artifact
from torchyard.client.backend import LogLine
from torchyard.client.diff import Comparison
from torchyard.client.explanation import Explanation
from torchyard.client.metrics import MetricsTable
from torchyard.client.portal import PORTAL
from torchyard.client.request import Arguments, Target
from torchyard.client.trials import TrialsTable
from torchyard.local.run import Event
from torchyard.sweeps.resource import TrainingSweep


class Job:
    """One job, on this machine or on a cluster. Every property and method reads the current state; nothing is cached.

    A call may raise `NotFoundError` (the job was deleted) and `TorchYardError` (the cluster does not answer, or
    rejects the request).
    """

    def __init__(self, job: asynchronous.Job) -> None:
        self._job = job

    @property
    def name(self) -> str:
        """Name of the job."""
        return self._job.name

    @property
    def uid(self) -> str:
        """The uid. A later job with the same name has another one."""
        return self._job.uid

    @property
    def namespace(self) -> str | None:
        """Namespace of a job on a cluster; None: the job is on this machine."""
        return self._job.namespace

    @property
    def manifest(self) -> dict[str, Any]:
        """The whole object, as `torchyard status -o json` prints it."""
        return PORTAL.call(self._job.manifest())

    @property
    def status(self) -> TrainingJobStatus:
        """The current status: `status.state`, `status.progress.step`, `status.metrics`, ..."""
        return PORTAL.call(self._job.status())

    @property
    def artifacts(self) -> list[Artifact]:
        """Files in the checkpoint folder that can be fetched: exports, final weights, curves."""
        return PORTAL.call(self._job.artifacts())

    def __repr__(self) -> str:
        return repr(self._job)

    def watch(self) -> Iterator[TrainingJobStatus]:
        """Yield the status now and at each change, until the job is over or deleted."""
        return PORTAL.iterate(self._job.watch)

    def wait(self, *, timeout: float | None = None, check: bool = True) -> TrainingJobStatus:
        """Wait until the job has succeeded, failed or is suspended; return its last status.

        Args:
            timeout: seconds after which to raise `TimeoutError`; the job continues.
            check: raise `JobFailedError` if the job failed.

        Raises:
            JobFailedError: the job failed.
            NotFoundError: the job was deleted.
            TimeoutError: the timeout has expired.
            TorchYardError: no process controls the run any more.
        """
        return PORTAL.call(self._job.wait(timeout=timeout, check=check))

    def why(self) -> Explanation:
        """Explain the job's state: the cause, what to do, failures, pods, events. `print` shows it."""
        return PORTAL.call(self._job.why())

    def events(self) -> list[Event]:
        """Return the events of the job, oldest first."""
        return PORTAL.call(self._job.events())

    def logs(
        self, rank: int | Literal["all"] = "all", *, follow: bool = False, tail: int | None = None
    ) -> Iterator[LogLine]:
        """Yield the output of the ranks, starting with the rank that failed first.

        Args:
            rank: only this one.
            follow: wait for new lines until the job is over, through new rounds and pods.
            tail: only this many of the last lines of each rank.
        """
        return PORTAL.iterate(lambda: self._job.logs(rank, follow=follow, tail=tail))

    def metrics(self) -> MetricsTable:
        """Return the logged metrics: a list of rows by step. `status.metrics` has the newest values."""
        return PORTAL.call(self._job.metrics())

    def fetch(
        self, path: str, to: str | Path | None = None, *, replace: bool = False, max_size: str = MAX_SIZE
    ) -> Path:
        """Copy a file or folder from the checkpoint folder to this machine; return its path.

        Args:
            path: of an artifact: `export/web`, `final`, `metrics.jsonl`.
            to: by default its own name in the current folder.
            replace: overwrite an existing file or folder.
            max_size: limit on the bytes that pods send, such as `10Gi`.
        """
        return PORTAL.call(self._job.fetch(path, to, replace=replace, max_size=max_size))

    def stop(self, *, wait: bool = True) -> TrainingJobStatus:
        """Save a checkpoint and stop; `resume` continues from it. Does nothing if the job is over.

        Args:
            wait: return only after the job has stopped.
        """
        return PORTAL.call(self._job.stop(wait=wait))

    def scale(self, nodes: int) -> None:
        """Change the number of nodes that the gang wants, within `spec.elastic`; a suspended job may get any."""
        PORTAL.call(self._job.scale(nodes))

    def resume(self) -> None:
        """Continue from the newest checkpoint. This process then controls a run on this machine."""
        PORTAL.call(self._job.resume())

    def delete(self) -> None:
        """Delete the job with its pods; on this machine with its logs and checkpoints."""
        PORTAL.call(self._job.delete())


def run(
    target: Target,
    *,
    name: str | None = None,
    arguments: Arguments | None = None,
    overrides: Mapping[str, Any] | None = None,
    code: str | Path | None = None,
    wait: bool = True,
    check: bool = True,
) -> Job:
    """Run a job on this machine, as `torchyard run` does: without Kubernetes, with the same restarts and checkpoints.

    An unfinished run with the same name and spec continues; a finished one starts over. Ctrl-C saves and stops the run
    before `KeyboardInterrupt` is raised, which takes at most its grace period; a second Ctrl-C does not wait for that.
    A run that still runs when the process ends is saved and stopped, too.

    Args:
        target: a TrainingJob, a dict, the path of a job file or of a Python script (`train.py`, started with
            torchrun), or a function decorated with `torchyard.job`.
        name: of the run; by default the job's name.
        arguments: for a decorated function, JSON values by name; for a script, a list such as `["--lr", "1e-3"]`.
        overrides: fields of the spec to change before: `{"nodes": 2, "trainer.params.steps": 100}`.
        code: folder whose files travel with the job: the program runs from a copy, found by its digest.
        wait: return only when the run is over; False: the run continues in the background.
        check: raise `JobFailedError` if the run fails.

    Raises:
        InvalidJobError: the job is invalid; the error lists all problems.
        JobFailedError: the job failed.
        TorchYardError: the name is in use, or this machine has too few GPUs.
    """
    started = asynchronous.run(
        target, name=name, arguments=arguments, overrides=overrides, code=code, wait=wait, check=check
    )
    return Job(PORTAL.call(started))


def submit(
    target: Target,
    *,
    name: str | None = None,
    arguments: Arguments | None = None,
    overrides: Mapping[str, Any] | None = None,
    code: str | Path | None = None,
    context: str | None = None,
    namespace: str | None = None,
) -> Job:
    """Submit a job to a cluster and return at once; use `wait` of the returned job to wait for its end.

    Args:
        target: a TrainingJob, a dict, the path of a job file or of a Python script (`train.py`, started with
            torchrun), or a function decorated with `torchyard.job`.
        name: of the job; by default the name in its metadata.
        arguments: for a decorated function, JSON values by name; for a script, a list such as `["--lr", "1e-3"]`.
        overrides: fields of the spec to change before.
        code: folder whose files travel with the job.
        context: context of the kubeconfig; by default the current one.
        namespace: by default the namespace of the job, else that of the context.

    Raises:
        InvalidJobError: the job is invalid; the error lists all problems.
        TorchYardError: the API server does not answer or rejects the job, or a job with this name exists.
    """
    submitted = asynchronous.submit(
        target, name=name, arguments=arguments, overrides=overrides, code=code, context=context, namespace=namespace
    )
    return Job(PORTAL.call(submitted))


def get_job(name: str, *, context: str | None = None, namespace: str | None = None) -> Job:
    """Return a job by its name: the run on this machine if there is one, else the job on the cluster.

    Args:
        name: of the job.
        context: context of the kubeconfig; if set, only the cluster is searched.
        namespace: if set, only the cluster is searched.

    Raises:
        NotFoundError: it does not exist.
    """
    return Job(PORTAL.call(asynchronous.get_job(name, context=context, namespace=namespace)))


def jobs(*, context: str | None = None, namespace: str | None = None, all_namespaces: bool = False) -> list[Job]:
    """Return the jobs, newest first: the runs on this machine or, if there are none, the jobs of the cluster.

    Args:
        context: context of the kubeconfig; if set, list the jobs of the cluster.
        namespace: if set, list the jobs of the cluster.
        all_namespaces: list the jobs of all namespaces of the cluster.
    """
    found = PORTAL.call(asynchronous.jobs(context=context, namespace=namespace, all_namespaces=all_namespaces))
    return [Job(each) for each in found]


def diff(left: str | Job, right: str | Job, *, context: str | None = None, namespace: str | None = None) -> Comparison:
    """Compare two jobs: specification, code, packages, machine, result and final metrics. `print` shows it.

    Args:
        left: a job, or the name of one.
        right: the job to compare it with.
        context: context of the kubeconfig; if set, the jobs are on the cluster.
        namespace: if set, the jobs are on the cluster.

    Raises:
        NotFoundError: one of the jobs does not exist.
    """
    one, two = (each._job if isinstance(each, Job) else each for each in (left, right))  # noqa: SLF001
    return PORTAL.call(asynchronous.diff(one, two, context=context, namespace=namespace))


class Sweep:
    """One sweep, on this machine or on a cluster. Every method reads the current state; nothing is cached.

    A call may raise `NotFoundError` (the sweep was deleted) and `TorchYardError` (the cluster does not answer).
    """

    def __init__(self, sweep: sweeps.Sweep) -> None:
        self._sweep = sweep

    @property
    def name(self) -> str:
        """Name of the sweep."""
        return self._sweep.name

    @property
    def uid(self) -> str:
        """The uid. A later sweep with the same name has another one."""
        return self._sweep.uid

    @property
    def namespace(self) -> str | None:
        """Namespace of a sweep on a cluster; None: it is on this machine."""
        return self._sweep.namespace

    def __repr__(self) -> str:
        return repr(self._sweep)

    def found(self) -> tuple[TrainingSweep, Mapping[int, TrainingJob]]:
        """Return the TrainingSweep and the jobs of its trials by number."""
        return PORTAL.call(self._sweep.found())

    def trials(self) -> TrialsTable:
        """Return a record for each trial, by number: `name`, `outcome`, `value`, `parameters`, `best`."""
        return PORTAL.call(self._sweep.trials())

    def best(self) -> TrainingJob | None:
        """Return the job of the best trial, which can be run on its own; None if no trial has trained to its end."""
        return PORTAL.call(self._sweep.best())

    def wait(self, *, timeout: float | None = None) -> TrialsTable:
        """Wait until the sweep is over or stopped; return its trials.

        Args:
            timeout: seconds after which to raise `TimeoutError`; the sweep continues.

        Raises:
            TimeoutError: the timeout has expired.
            TorchYardError: the sweep failed, or no process on this machine controls it.
        """
        return PORTAL.call(self._sweep.wait(timeout=timeout))

    def stop(self) -> None:
        """Save and stop the trials. On this machine, call `torchyard.sweep` again to continue."""
        PORTAL.call(self._sweep.stop())

    def resume(self) -> None:
        """Continue a suspended sweep on a cluster."""
        PORTAL.call(self._sweep.resume())

    def delete(self) -> None:
        """Delete the sweep with its trials."""
        PORTAL.call(self._sweep.delete())


def sweep(
    target: TrainingSweep | Mapping[str, Any] | str | Path,
    *,
    name: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    on: Literal["machine", "cluster"] | None = None,
    wait: bool = True,
    context: str | None = None,
    namespace: str | None = None,
) -> Sweep:
    """Run a sweep, a search for parameters, on this machine or on a cluster.

    An unfinished sweep with this name on this machine continues. Ctrl-C saves and stops its trials before
    `KeyboardInterrupt` is raised; a second Ctrl-C does not wait for that. The same happens when the process ends. A
    sweep on a cluster continues.

    Args:
        target: a TrainingSweep, a dict, or the path of its file.
        name: of the sweep; by default the name in its metadata.
        overrides: fields of the spec to change before: `{"maxTrials": 10, "jobTemplate.spec.nodes": 2}`.
        on: machine or cluster; by default the cluster if context or namespace is given, else this machine.
        wait: return only when the sweep is over.
        context: context of the kubeconfig; by default the current one.
        namespace: by default the namespace of the sweep, else that of the context.

    Raises:
        InvalidJobError: the job is invalid; the error lists all problems.
        TorchYardError: the name is in use, the sweep failed, or its algorithm needs a library that is not installed.
    """
    started = sweeps.sweep(
        target, name=name, overrides=overrides, on=on, wait=wait, context=context, namespace=namespace
    )
    return Sweep(PORTAL.call(started))


def get_sweep(name: str, *, context: str | None = None, namespace: str | None = None) -> Sweep:
    """Return a sweep by its name: the one on this machine if it exists, else the one on the cluster.

    Args:
        name: of the sweep.
        context: context of the kubeconfig; if set, only the cluster is searched.
        namespace: if set, only the cluster is searched.

    Raises:
        NotFoundError: it does not exist.
    """
    return Sweep(PORTAL.call(sweeps.get_sweep(name, context=context, namespace=namespace)))
