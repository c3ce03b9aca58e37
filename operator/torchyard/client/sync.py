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
    """One job, on this machine or on a cluster. Every property and method asks again; nothing is cached.

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
        """The uid; another job that takes the name later is not this one."""
        return self._job.uid

    @property
    def namespace(self) -> str | None:
        """Namespace of a job on a cluster; None: the job is on this machine."""
        return self._job.namespace

    @property
    def manifest(self) -> dict[str, Any]:
        """The whole object as `torchyard status -o json` prints it."""
        return PORTAL.call(self._job.manifest())

    @property
    def status(self) -> TrainingJobStatus:
        """The status as it is now: `status.state`, `status.progress.step`, `status.metrics`, ..."""
        return PORTAL.call(self._job.status())

    @property
    def artifacts(self) -> list[Artifact]:
        """What can be fetched from the checkpoint folder: exports, final weights, curves."""
        return PORTAL.call(self._job.artifacts())

    def __repr__(self) -> str:
        return repr(self._job)

    def watch(self) -> Iterator[TrainingJobStatus]:
        """Yield the status now and at each change, until the job is over or deleted."""
        return PORTAL.iterate(self._job.watch)

    def wait(self, *, timeout: float | None = None, check: bool = True) -> TrainingJobStatus:
        """Wait until the job has succeeded, failed or is suspended; return its last status.

        Args:
            timeout: seconds after which to give up; the job goes on.
            check: whether a job that failed raises.

        Raises:
            JobFailedError: it failed.
            NotFoundError: it was deleted.
            TimeoutError: the time is up.
            TorchYardError: nothing controls the run any more.
        """
        return PORTAL.call(self._job.wait(timeout=timeout, check=check))

    def why(self) -> Explanation:
        """Return why the job is where it is: a sentence, what to do, failures, pods, events. `print` shows it."""
        return PORTAL.call(self._job.why())

    def events(self) -> list[Event]:
        """Return what happened to the job, oldest first."""
        return PORTAL.call(self._job.events())

    def logs(
        self, rank: int | Literal["all"] = "all", *, follow: bool = False, tail: int | None = None
    ) -> Iterator[LogLine]:
        """Yield what the ranks wrote, the rank that failed first in front.

        Args:
            rank: only this one.
            follow: go on until the job is over, through new rounds and pods.
            tail: only so many last lines of each rank.
        """
        return PORTAL.iterate(lambda: self._job.logs(rank, follow=follow, tail=tail))

    def metrics(self) -> MetricsTable:
        """Return the curves so far: a list of rows by step. `status.metrics` has the newest values."""
        return PORTAL.call(self._job.metrics())

    def fetch(
        self, path: str, to: str | Path | None = None, *, replace: bool = False, max_size: str = MAX_SIZE
    ) -> Path:
        """Copy a file or folder of the checkpoint folder here; return where it is.

        Args:
            path: of an artifact: `export/web`, `final`, `metrics.jsonl`.
            to: by default its own name in the current folder.
            replace: whether it takes the place of what is there.
            max_size: the most that pods may send.
        """
        return PORTAL.call(self._job.fetch(path, to, replace=replace, max_size=max_size))

    def stop(self, *, wait: bool = True) -> TrainingJobStatus:
        """Save a checkpoint and stop; `resume` goes on from there. A job that is over is left alone.

        Args:
            wait: whether to return only when it is stopped.
        """
        return PORTAL.call(self._job.stop(wait=wait))

    def resume(self) -> None:
        """Go on from the newest checkpoint; a run of this machine under the control of this process."""
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
    wait: bool = True,
    check: bool = True,
) -> Job:
    """Run a job on this machine, as `torchyard run` does: no Kubernetes, the same restarts and checkpoints.

    An unfinished run of that name and spec goes on; a finished one starts over. After Ctrl-C, and when the process
    ends, the run is saved and stopped.

    Args:
        target: a TrainingJob, a dict, the path of a job file or of a Python script (`train.py`, started with
            torchrun), or a function decorated with `torchyard.job`.
        name: of the run; by default that of the job.
        arguments: of a decorated function: JSON values by name; of a script: its words, `["--lr", "1e-3"]`.
        overrides: fields of the spec to change first: `{"nodes": 2, "trainer.params.steps": 100}`.
        wait: whether to return only when it is over; False: it goes on in the background.
        check: whether a run that fails raises.

    Raises:
        InvalidJobError: fields are wrong; all of them are named.
        JobFailedError: it failed.
        TorchYardError: the name is taken, or this machine lacks the GPUs.
    """
    started = asynchronous.run(target, name=name, arguments=arguments, overrides=overrides, wait=wait, check=check)
    return Job(PORTAL.call(started))


def submit(
    target: Target,
    *,
    name: str | None = None,
    arguments: Arguments | None = None,
    overrides: Mapping[str, Any] | None = None,
    context: str | None = None,
    namespace: str | None = None,
) -> Job:
    """Submit a job to a cluster and return at once; `wait` on what is returned waits.

    Args:
        target: a TrainingJob, a dict, the path of a job file or of a Python script (`train.py`, started with
            torchrun), or a function decorated with `torchyard.job`.
        name: of the job; by default its own.
        arguments: of a decorated function: JSON values by name; of a script: its words, `["--lr", "1e-3"]`.
        overrides: fields of the spec to change first.
        context: of the kubeconfig; by default its current one.
        namespace: by default that of the job, else that of the context.

    Raises:
        InvalidJobError: fields are wrong; all of them are named.
        TorchYardError: the API server does not answer or rejects the job; there is a job of that name.
    """
    submitted = asynchronous.submit(
        target, name=name, arguments=arguments, overrides=overrides, context=context, namespace=namespace
    )
    return Job(PORTAL.call(submitted))


def get_job(name: str, *, context: str | None = None, namespace: str | None = None) -> Job:
    """Return a job by its name: the run of this machine if there is one, else the job of the cluster.

    Args:
        name: of the job.
        context: of the kubeconfig; given, the job is on a cluster.
        namespace: given, the job is on a cluster.

    Raises:
        NotFoundError: it does not exist.
    """
    return Job(PORTAL.call(asynchronous.get_job(name, context=context, namespace=namespace)))


def jobs(*, context: str | None = None, namespace: str | None = None, all_namespaces: bool = False) -> list[Job]:
    """Return the jobs, newest first: the runs of this machine; if there are none, or when asked to, a cluster's.

    Args:
        context: of the kubeconfig; given, the jobs are those of a cluster.
        namespace: given, the jobs are those of a cluster.
        all_namespaces: of a cluster.
    """
    found = PORTAL.call(asynchronous.jobs(context=context, namespace=namespace, all_namespaces=all_namespaces))
    return [Job(each) for each in found]


def diff(left: str | Job, right: str | Job, *, context: str | None = None, namespace: str | None = None) -> Comparison:
    """Compare two jobs: specification, code, packages, machine, result and final metrics. `print` shows it.

    Args:
        left: a job, or its name.
        right: the one to compare it with.
        context: of the kubeconfig; given, names are those of jobs on a cluster.
        namespace: given, names are those of jobs on a cluster.

    Raises:
        NotFoundError: there is no such job.
    """
    one, two = (each._job if isinstance(each, Job) else each for each in (left, right))  # noqa: SLF001
    return PORTAL.call(asynchronous.diff(one, two, context=context, namespace=namespace))


class Sweep:
    """One sweep, on this machine or on a cluster. Every method asks again; nothing is cached.

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
        """The uid; another sweep that takes the name later is not this one."""
        return self._sweep.uid

    @property
    def namespace(self) -> str | None:
        """Namespace of a sweep on a cluster; None: it is on this machine."""
        return self._sweep.namespace

    def __repr__(self) -> str:
        return repr(self._sweep)

    def found(self) -> tuple[TrainingSweep, Mapping[int, TrainingJob]]:
        """Return the object of the sweep, and the jobs of its trials by number."""
        return PORTAL.call(self._sweep.found())

    def trials(self) -> TrialsTable:
        """Return a record for each trial, by number: `name`, `outcome`, `value`, `parameters`, `best`."""
        return PORTAL.call(self._sweep.trials())

    def best(self) -> TrainingJob | None:
        """Return the job that the best trial was, to be run by itself; None: no trial has trained to its end."""
        return PORTAL.call(self._sweep.best())

    def wait(self, *, timeout: float | None = None) -> TrialsTable:
        """Wait until the sweep is over or stopped; return its trials.

        Args:
            timeout: seconds after which to give up; the sweep goes on.

        Raises:
            TimeoutError: the time is up.
            TorchYardError: it failed, or no process of this machine controls it.
        """
        return PORTAL.call(self._sweep.wait(timeout=timeout))

    def stop(self) -> None:
        """Save and stop the trials; on this machine another `torchyard.sweep` of it goes on."""
        PORTAL.call(self._sweep.stop())

    def resume(self) -> None:
        """Go on with a sweep of a cluster."""
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
    """Search for parameters: on this machine, or by the operator of a cluster.

    An unfinished sweep of that name on this machine goes on. After Ctrl-C, and when the process ends, its trials are
    saved and stopped.

    Args:
        target: a TrainingSweep, a dict, or the path of its file.
        name: of the sweep; by default its own.
        overrides: fields of the spec to change first: `{"maxTrials": 10, "jobTemplate.spec.nodes": 2}`.
        on: machine or cluster; by default the cluster if context or namespace is given, else this machine.
        wait: whether to return only when it is over.
        context: of the kubeconfig; by default its current one.
        namespace: by default that of the sweep, else that of the context.

    Raises:
        InvalidJobError: fields are wrong; all of them are named.
        TorchYardError: the name is taken, it failed, or its algorithm needs a library that is not installed.
    """
    started = sweeps.sweep(
        target, name=name, overrides=overrides, on=on, wait=wait, context=context, namespace=namespace
    )
    return Sweep(PORTAL.call(started))


def get_sweep(name: str, *, context: str | None = None, namespace: str | None = None) -> Sweep:
    """Return a sweep by its name: that of this machine if there is one, else that of the cluster.

    Args:
        name: of the sweep.
        context: of the kubeconfig; given, the sweep is on a cluster.
        namespace: given, the sweep is on a cluster.

    Raises:
        NotFoundError: it does not exist.
    """
    return Sweep(PORTAL.call(sweeps.get_sweep(name, context=context, namespace=namespace)))
