"""Sweeps in Python: start, wait, read, stop. Coroutines; `torchyard.client.sync` has the same without `await`."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from torchyard.api.backends import Backend
from torchyard.api.formatting import addressed
from torchyard.api.resource import API_VERSION, TrainingJob
from torchyard.api.resource import KIND as JOB
from torchyard.client.backend import Notice, logged
from torchyard.client.documents import json_values, sets_of, shown
from torchyard.client.errors import FAILED, INVALID, NotFoundError, NotStoredError, TorchYardError
from torchyard.client.functions import JobFunction
from torchyard.client.jobs import metadata_of_users
from torchyard.client.location import HERE, Location, connection_to, is_configured
from torchyard.client.start import folder_of, keep_code, require_torch
from torchyard.client.sweep_files import checked_sweep, checked_trials, explaining, named, the_sweep
from torchyard.client.trials import TrialsTable
from torchyard.local.sweeps import NoSweepError, load_sweep, load_with_trials, remove_sweep, sweep_names
from torchyard.sweeps.codec import sweep_document
from torchyard.sweeps.resource import KIND, TrainingSweep
from torchyard.sweeps.results import best_job, results_of
from torchyard.sweeps.validate import validate_sweep_document

if TYPE_CHECKING:
    from torchyard.client.bundle.attach import Packed

LOOK_SECONDS = 2.0
PLACES = (None, "machine", "cluster")
Found = tuple[TrainingSweep, Mapping[int, TrainingJob]]


class Sweep:
    """One sweep, on this machine or on a cluster. Every method reads the current state; nothing is cached.

    Attributes:
        name: of the sweep.
        uid: of the sweep; another one that takes its name later is not this one. Empty: any of its name.
        namespace: of a sweep on a cluster; None: it is on this machine.
    """

    def __init__(self, name: str, uid: str, location: Location = HERE) -> None:
        self.name = name
        self.uid = uid
        self.location = location

    @property
    def namespace(self) -> str | None:
        """Namespace of a sweep on a cluster."""
        return self.location.namespace

    def __repr__(self) -> str:
        return f"<torchyard sweep {self.name} on {'this machine' if self.location == HERE else 'a cluster'}>"

    async def trials(self) -> TrialsTable:
        """Return a record for each trial, by number.

        Raises:
            NotFoundError: the sweep was deleted.
        """
        return TrialsTable(results_of(*await self.found()))

    async def best(self) -> TrainingJob | None:
        """Return the job of the best trial, which can be run on its own; None if no trial has trained to its end."""
        sweep, jobs = await self.found()
        return best_job(sweep, results_of(sweep, jobs))

    async def wait(self, *, timeout: float | None = None) -> TrialsTable:  # noqa: ASYNC109 -- the caller's
        """Wait until the sweep is over or stopped; return its trials.

        Args:
            timeout: seconds after which to raise `TimeoutError`; the sweep continues.

        Raises:
            TimeoutError: the timeout has expired.
            TorchYardError: the sweep failed, or no process on this machine controls it.
        """
        async with asyncio.timeout(timeout):
            state, message = await (self._over_here() if self.location == HERE else self._over_there())
        if state == "Failed":
            sentence = addressed(message.rstrip("."), self.name)
            raise TorchYardError(f"sweep {self.name} failed: {sentence}", "trials() has the trials", FAILED)
        return await self.trials()

    async def stop(self) -> None:
        """Save and stop the trials. On this machine, call `torchyard.sweep` again to continue."""
        if self.location == HERE:
            from torchyard.client.controlled import sweep_controlled_here

            here = sweep_controlled_here(self.name)
            if here is not None:
                here.stop()
                await here.until_over()
            return
        await self._set_suspend(suspend=True)

    async def resume(self) -> None:
        """Continue a suspended sweep on a cluster.

        Raises:
            TorchYardError: it is one of this machine.
        """
        if self.location == HERE:
            fix = "torchyard.sweep with its file continues it"
            raise TorchYardError(f"sweep {self.name} is one of this machine", fix)
        await self._set_suspend(suspend=False)

    async def delete(self) -> None:
        """Delete the sweep with its trials."""
        if self.location == HERE:
            with explaining():
                sweep = self._same(await asyncio.to_thread(load_sweep, self.name))
            with explaining(INVALID):
                await asyncio.to_thread(remove_sweep, sweep)
            return
        from torchyard.client.remote import sweeps

        async with connection_to(self.location) as remote:
            await sweeps.delete(remote, self.name)

    async def found(self) -> Found:
        """Return the TrainingSweep and the jobs of its trials by number. Raises what `trials` does."""
        if self.location == HERE:
            with explaining():
                sweep, jobs = await asyncio.to_thread(load_with_trials, self.name)
                return self._same(sweep), jobs
        from torchyard.client.remote import sweeps

        async with connection_to(self.location) as remote:
            sweep = self._same(await sweeps.get(remote, self.name))
            with explaining():
                return sweep, await sweeps.trials(remote, sweep)

    def _same(self, sweep: TrainingSweep) -> TrainingSweep:
        if self.uid and sweep.metadata.uid != self.uid:
            raise NotFoundError(f"the sweep {self.name!r} was deleted, and another one has its name now")
        return sweep

    async def _over_here(self) -> tuple[str, str]:
        from torchyard.client.controlled import sweep_controlled_here

        here = sweep_controlled_here(self.name)
        if here is None:
            fix = "torchyard.sweep with its file continues it; trials() has the trials"
            raise TorchYardError(f"no sweep {self.name!r} is controlled by this process", fix, FAILED)
        ended = await here.until_over()
        return (ended.state, ended.message) if ended is not None else ("Suspended", "")

    async def _over_there(self) -> tuple[str, str]:
        from torchyard.client.remote import sweeps

        async with connection_to(self.location) as remote:
            while True:
                status = self._same(await sweeps.get(remote, self.name)).status
                if status.state in {"Succeeded", "Failed", "Suspended"}:
                    return status.state, status.message
                await asyncio.sleep(LOOK_SECONDS)

    async def _set_suspend(self, *, suspend: bool) -> None:
        from torchyard.client.remote import sweeps

        async with connection_to(self.location) as remote:
            self._same(await sweeps.get(remote, self.name))
            await sweeps.set_suspend(remote, self.name, suspend)


async def sweep(
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

    An unfinished sweep of that name on this machine goes on. If this call is cancelled, its trials are saved and
    stopped before `CancelledError` is raised; a second cancellation does not wait for that. The same happens when the
    process ends. A sweep on a cluster continues.

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
    if on not in PLACES:
        fix = "use 'machine' or 'cluster', or leave it out"
        raise TorchYardError(f"on={on!r} is not a place where sweeps run", fix)
    wanted, source, folder = await asyncio.to_thread(_requested, target, name, overrides)
    if on == "cluster" or (on is None and (context is not None or namespace is not None)):
        wanted, code = await asyncio.to_thread(with_code, wanted, folder, logged)
        made = await _submitted(wanted, source, context, namespace, code)
    else:
        made = await _started(wanted, folder)
    if wait:
        try:
            await made.wait()
        except asyncio.CancelledError:
            if made.location == HERE:
                await asyncio.shield(made.stop())
            raise
    return made


async def get_sweep(name: str, *, context: str | None = None, namespace: str | None = None) -> Sweep:
    """Return a sweep by its name: the one on this machine if it exists, else the one on the cluster.

    Args:
        name: of the sweep.
        context: context of the kubeconfig; if set, only the cluster is searched.
        namespace: if set, only the cluster is searched.

    Raises:
        NotFoundError: it does not exist.
    """
    here = sweep_names()
    if context is None and namespace is None and (name in here or not is_configured()):
        try:
            return Sweep(name, (await asyncio.to_thread(load_sweep, name)).metadata.uid)
        except NoSweepError as error:
            fix = f"sweeps of this machine: {', '.join(here) or 'none'}"
            raise NotFoundError(str(error).rstrip("."), fix) from error
        except ValueError as error:
            raise TorchYardError(str(error).rstrip("."), code=FAILED) from error
    from torchyard.client.remote import sweeps
    from torchyard.client.remote.session import connection

    async with connection(context, namespace) as remote:
        metadata = (await sweeps.get(remote, name)).metadata
        return Sweep(name, metadata.uid, Location("cluster", context, remote.namespace))


def _requested(
    target: TrainingSweep | Mapping[str, Any] | str | Path, name: str | None, overrides: Mapping[str, Any] | None
) -> tuple[TrainingSweep, str, Path]:
    """Return a valid sweep, what names it in messages, and what `workingDir` of its jobs is relative to."""
    sets = sets_of(overrides)
    if isinstance(target, str | Path):
        file = Path(target)
        wanted = named(the_sweep(checked_sweep(file, sets), str(file)), name)
        return wanted, str(file), folder_of(wanted.metadata, file.absolute().parent)
    if isinstance(target, TrainingSweep):
        document = sweep_document(target)
    elif isinstance(target, Mapping) and target.get("kind", KIND) == KIND:
        document = {"apiVersion": API_VERSION, "kind": KIND, **target}
    else:
        job = isinstance(target, TrainingJob | JobFunction) or (isinstance(target, Mapping) and target["kind"] == JOB)
        fix = "torchyard.run runs a job" if job else "give a TrainingSweep, a dict, or the path of its file"
        raise TorchYardError(f"{shown(target)} is not a sweep", fix)
    checked = checked_trials(validate_sweep_document(json_values(document, "sweep"), "sweep", sets), "sweep")
    wanted = named(the_sweep(checked, "sweep"), name)
    return wanted, "sweep", folder_of(wanted.metadata, Path.cwd())


def with_code(
    sweep: TrainingSweep, folder: Path, notice: Notice, backend: Backend = "cluster"
) -> "tuple[TrainingSweep, Packed | None]":
    """Return a sweep whose trials name their code by digest, and that code; None: they have none.

    Args:
        sweep: a valid one.
        folder: what `code.path` is relative to.
        notice: called with each sentence about the code.
        backend: where its trials will run.
    """
    from torchyard.client.bundle.attach import packed

    template = sweep.spec.job_template
    code = packed(TrainingJob(metadata=sweep.metadata, spec=template.spec), folder, notice, backend)
    if code is None:
        return sweep, None
    template = msgspec.structs.replace(template, spec=code.job.spec)
    return msgspec.structs.replace(sweep, spec=msgspec.structs.replace(sweep.spec, job_template=template)), code


def prepared(wanted: TrainingSweep, folder: Path, notice: Notice = logged) -> TrainingSweep:
    """Write a sweep of this machine, or go on with the one of its name; return it as it is kept.

    Args:
        wanted: a valid one.
        folder: that `workingDir` of its jobs is relative to.
        notice: called with each sentence about the code of its jobs.

    Raises:
        TorchYardError: it is suspended, its name is taken, or its algorithm needs a library that is not installed.
    """
    from torchyard.local.sweeps import create_sweep
    from torchyard.sweeps.sampling import MissingLibraryError, require_libraries

    if wanted.spec.suspend:
        fix = "leave it out; Ctrl-C stops a sweep of this machine, and stop() does in Python"
        raise TorchYardError("spec.suspend is true, which is for clusters", fix)
    require_torch(TrainingJob(metadata=wanted.metadata, spec=wanted.spec.job_template.spec))
    try:
        require_libraries(wanted.spec)
        wanted, code = with_code(wanted, folder, notice, "local")
        if code is not None:
            keep_code(code)
        return create_sweep(wanted, folder)
    except OSError as error:
        raise NotStoredError(f"the sweep {wanted.metadata.name!r}", error) from error
    except (ValueError, MissingLibraryError) as error:
        raise TorchYardError(str(error).rstrip(".")) from error


async def _started(wanted: TrainingSweep, folder: Path) -> Sweep:
    from torchyard.client.controlled import control_sweep_here

    made = await asyncio.to_thread(prepared, wanted, folder)
    control_sweep_here(made)
    return Sweep(made.metadata.name, made.metadata.uid)


async def _submitted(
    wanted: TrainingSweep, source: str, context: str | None, namespace: str | None, code: "Packed | None"
) -> Sweep:
    from torchyard.client.remote.session import connection

    document = creatable(wanted, source, namespace)
    async with connection(context, namespace or document["metadata"].get("namespace")) as remote:
        metadata = (await create(remote, document, code))["metadata"]
    return Sweep(metadata["name"], metadata["uid"], Location("cluster", context, metadata["namespace"]))


def creatable(sweep: TrainingSweep, source: str, namespace: str | None) -> dict[str, Any]:
    """Return the object of a sweep without what an API server set.

    Raises:
        TorchYardError: it is for another namespace.
    """
    document = sweep_document(sweep)
    document["metadata"] = metadata_of_users(document["metadata"])
    given = document["metadata"].get("namespace")
    if given and namespace and given != namespace:
        raise TorchYardError(f"{source} is for namespace {given!r}, not {namespace!r}", "leave one of them out")
    return document


async def create_at(location: Location, document: Mapping[str, Any], code: "Packed | None" = None) -> dict[str, Any]:
    """Create a sweep in a namespace of a cluster, and send its code. Raises what `create` does."""
    async with connection_to(location) as remote:
        return await create(remote, document, code)


async def create(remote: Any, document: Mapping[str, Any], code: "Packed | None" = None) -> dict[str, Any]:
    """Create a sweep on a cluster, send the code of its trials, and return the sweep as it is kept.

    Args:
        remote: the open connection (`remote.session.Remote`).
        document: the sweep.
        code: of its trials, whose pods wait for it.

    Raises:
        TorchYardError: there is one of its name, or sweeps are not installed.
    """
    from torchyard.client.remote import sweeps
    from torchyard.kubernetes.client.errors import AlreadyExists, NotFound

    if code is not None:
        from torchyard.client.remote.served import require_served

        await require_served(remote, code.job)
    name = document["metadata"]["name"]
    body = {**document, "metadata": {**document["metadata"], "namespace": remote.namespace}}
    try:
        created = await sweeps.create(remote, body)
    except AlreadyExists as error:
        fix = f"`torchyard sweep rm {name}{remote.flags}` first, or give this one another --name"
        raise TorchYardError(f"there is a TrainingSweep {name!r} in {remote.where} already", fix) from error
    except NotFound as error:
        raise sweeps.missing(remote, name, error) from error
    if code is not None and code.bundle is not None:
        from torchyard.client.remote.code_upload import owner_of, upload

        await upload(remote, owner_of(created), code.bundle.digest, code.parts)
    return created
