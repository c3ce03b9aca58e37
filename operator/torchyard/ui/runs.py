"""A new job or sweep from the text of a form, with the rights of the user; runs of this machine outlive the page."""

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torchyard.api.names import OF_TRIALS
from torchyard.api.profiles.effective import as_pinned
from torchyard.api.resource import TrainingJob, job_document, resolved
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.validation.problems import Problem
from torchyard.api.validation.validate import Validation, kind_of, validate_bytes
from torchyard.api.yaml_text import dumped
from torchyard.client.bundle.attach import packed
from torchyard.client.errors import FAILED, InvalidJobError, TorchYardError
from torchyard.client.jobs import creatable as creatable_job
from torchyard.client.jobs import create as create_job
from torchyard.client.local import find, load
from torchyard.client.location import Location, opened
from torchyard.client.start import RequestedJob, folder_of, start
from torchyard.client.sweep_files import checked_trials
from torchyard.client.sweeps import Sweep, prepared, with_code
from torchyard.client.sweeps import creatable as creatable_sweep
from torchyard.client.sweeps import create_at as create_sweep
from torchyard.client.trainers import fault
from torchyard.interpreter import own_environment, own_python
from torchyard.local.run import home_folder, is_controlled
from torchyard.local.sweeps import is_sweep_controlled, sweeps_folder
from torchyard.sweeps.codec import sweep_document
from torchyard.sweeps.resource import KIND as SWEEP
from torchyard.sweeps.resource import TrainingSweep
from torchyard.sweeps.validate import validate_sweep_bytes

FORM = "the form"
CONTROL_SECONDS = 60.0
"""Until the process of a run must control it; a busy machine imports slowly."""
LOOK_SECONDS = 0.1
MAX_NUMBER = 1000


async def specification(location: Location, name: str, kind: str) -> dict[str, str]:
    """Return the text of a new job or sweep like this one, and what it means with all defaults, its profile's included.

    Raises:
        TorchYardError: it does not exist or cannot be read.
    """
    if kind == "sweep":
        sweep, _ = await Sweep(name, "", location).found()
        return {"text": dumped(_fresh(sweep_document(sweep))), "effective": dumped(resolved(sweep.spec))}
    async with opened(location, _ignored) as backend:
        kept = await backend.get(name)
    document = _fresh(job_document(kept.job, with_status=False))
    return {"text": dumped(document), "effective": dumped(resolved(as_pinned(kept.job).spec))}


def _ignored(_sentence: str) -> None:
    pass


def _fresh(document: dict[str, Any]) -> dict[str, Any]:
    """Return an object as its user would write it again, under a name that is not in use yet here."""
    metadata = document["metadata"]
    kept = {field: metadata[field] for field in ("namespace", "labels", "annotations") if metadata.get(field)}
    for field in {"labels", "annotations"} & kept.keys():
        kept[field] = {key: text for key, text in kept[field].items() if key not in OF_TRIALS}
    named = {"name": _next_name(metadata["name"]), **{field: value for field, value in kept.items() if value}}
    spec = {field: value for field, value in document["spec"].items() if field != "suspend"}
    if "jobTemplate" in spec:
        spec["jobTemplate"] = {**spec["jobTemplate"], "spec": _with_own_code(spec["jobTemplate"].get("spec", {}))}
    return {**document, "metadata": named, "spec": _with_own_code(spec)}


def _with_own_code(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a specification whose code is read again: what a submission filled in is of the code of that time."""
    code = {field: value for field, value in spec.get("code", {}).items() if field == "path"}
    return {**spec, "code": code} if code else {field: value for field, value in spec.items() if field != "code"}


def _next_name(name: str) -> str:
    stem, _, number = name.rpartition("-")
    stem, first = (stem, int(number) + 1) if stem and number.isdigit() and len(number) < 4 else (name, 2)
    runs = home_folder() / "runs"
    names = (f"{stem[:56]}-{each}" for each in range(first, first + MAX_NUMBER))
    return next((each for each in names if not (runs / each).exists()), name)


async def problems_of(location: Location, text: str) -> dict[str, Any]:
    """Return the problems of a text with their lines, or its kind, name and folder of code if it is valid."""
    validated, problems = await asyncio.to_thread(_checked, location, text)
    if validated is None:
        return {"problems": [_problem(each) for each in problems]}
    kind = "sweep" if isinstance(validated, TrainingSweep) else "job"
    code = _spec_of(validated).code
    return {"problems": [], "kind": kind, "name": validated.metadata.name, "code": code.path if code else None}


def _spec_of(wanted: TrainingJob | TrainingSweep) -> TrainingJobSpec:
    return wanted.spec.job_template.spec if isinstance(wanted, TrainingSweep) else wanted.spec


def _problem(problem: Problem) -> dict[str, Any]:
    return {"line": problem.line, "path": problem.path, "what": problem.what, "fix": problem.fix}


def _checked(location: Location, text: str) -> tuple[TrainingJob | TrainingSweep | None, Iterable[Problem]]:
    wanted, problems = _valid(text)
    if wanted is None or location.kind == "local":
        return wanted, problems
    code = _spec_of(wanted).code
    if code is not None and not Path(code.path or "").is_absolute():
        path = "spec.jobTemplate.spec.code.path" if isinstance(wanted, TrainingSweep) else "spec.code.path"
        what = f"{code.path!r} is relative to a job file, and a form is in no folder"
        return None, [Problem(FORM, 0, path, what, "write the whole path of the folder on this machine")]
    return wanted, problems


def _valid(text: str) -> tuple[TrainingJob | TrainingSweep | None, Iterable[Problem]]:
    data = text.encode("utf-8", "surrogatepass")
    if kind_of(data) == SWEEP:
        sweep = checked_trials(validate_sweep_bytes(data, FORM), FORM)
        return sweep.sweep, sweep.problems
    result: Validation = validate_bytes(data, FORM)
    if result.problems or len(result.jobs) != 1:
        return None, result.problems
    problem = fault(result.jobs[0], FORM)
    return (None, [problem]) if problem is not None else (result.jobs[0], [])


async def submit(location: Location, text: str) -> dict[str, str]:
    """Create the job or sweep of a text; on this machine, start its process too. Return its kind and name.

    Args:
        location: of the object; on a cluster, the text may name another namespace.
        text: YAML or JSON.

    Raises:
        TorchYardError: it is invalid, its name is taken, or the cluster rejects it.
    """
    wanted, problems = await asyncio.to_thread(_checked, location, text)
    if wanted is None:
        raise InvalidJobError("; ".join(str(each) for each in list(problems)[:3]) or "there is no job", [*problems])
    if location.kind == "cluster":
        return await _created(location, wanted)
    folder = folder_of(wanted.metadata, Path.home(), _ignored)
    if isinstance(wanted, TrainingSweep):
        sweep = await asyncio.to_thread(prepared, wanted, folder)
        await resume_sweep_here(sweep.metadata.name)
        return {"kind": "sweep", "name": sweep.metadata.name}
    if (home_folder() / "runs" / wanted.metadata.name).exists():
        raise TorchYardError(f"there is a run {wanted.metadata.name!r} already", "write another metadata.name")
    requested = RequestedJob(wanted, folder, FORM, is_file=True)
    run = await asyncio.to_thread(start, requested, notice=_ignored)
    await resume_here(run.name)
    return {"kind": "job", "name": run.name}


async def _created(location: Location, wanted: TrainingJob | TrainingSweep) -> dict[str, str]:
    if isinstance(wanted, TrainingSweep):
        sweep, parts = await asyncio.to_thread(with_code, wanted, Path("/"), _ignored)
        document = creatable_sweep(sweep, FORM, None)
        at = location._replace(namespace=document["metadata"].get("namespace") or location.namespace)
        made = await create_sweep(at, document, parts)
        return {"kind": "sweep", "name": f"{made['metadata']['namespace']}/{wanted.metadata.name}"}
    code = await asyncio.to_thread(packed, wanted, Path("/"), _ignored)
    document = creatable_job(wanted if code is None else code.job, FORM, None)
    at = location._replace(namespace=document["metadata"].get("namespace") or location.namespace)
    kept = await create_job(at, document, code)
    return {"kind": "job", "name": f"{kept.job.metadata.namespace}/{kept.job.metadata.name}"}


async def resume_here(name: str) -> None:
    """Start a process that controls a run of this machine, and wait until it does.

    Raises:
        TorchYardError: it is over or controlled already, or the process ended before, with its last line.
    """
    folder = find(name)
    run = await asyncio.to_thread(load, folder)
    if run.job.status.state.terminal:
        raise TorchYardError(f"{name} has already {run.job.status.state.lower()}", "start a new run from it")
    if run.controlled:
        raise TorchYardError(f"the run {name!r} is controlled by a process already", "if it stops, wait until it has")
    await _start(("resume", name, "--quiet"), lambda: is_controlled(folder) is not None)


async def resume_sweep_here(name: str) -> None:
    """Start a process that controls a sweep of this machine, and wait until it does. Raises what `resume_here` does."""
    if await asyncio.to_thread(is_sweep_controlled, name):
        raise TorchYardError(f"sweep {name!r} is controlled by a process already", "if it stops, wait until it has")
    file = sweeps_folder() / name / "sweep.yaml"
    await _start(("run", str(file)), lambda: is_sweep_controlled(name))


async def _start(words: tuple[str, ...], controls: Any) -> None:
    process = await asyncio.create_subprocess_exec(
        *own_python("-m", "torchyard.cli.main", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=(errors := os.memfd_create("torchyard-ui")),
        start_new_session=True,  # it goes on when the page ends
        env=own_environment(os.environ),
    )
    try:
        async with asyncio.timeout(CONTROL_SECONDS):
            while not await asyncio.to_thread(controls):
                if process.returncode is not None:
                    said = os.pread(errors, 4096, 0).decode(errors="replace").strip().splitlines()
                    if process.returncode in {0, 75}:  # it is over already
                        return
                    what = said[-1].removeprefix("torchyard: ") if said else f"it ended with {process.returncode}"
                    raise TorchYardError(what, f"`torchyard {' '.join(words)}` in a terminal shows more", FAILED)
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        what = f"no process controls it after {CONTROL_SECONDS:.0f} s"
        raise TorchYardError(what, "the machine may be busy: look again in a while", FAILED) from None
    finally:
        os.close(errors)
