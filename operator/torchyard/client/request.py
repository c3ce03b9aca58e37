"""The job that a Python program asks for: a model, a dict, a job file, a script, or a decorated function."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from torchyard.api.backends import Backend
from torchyard.api.names import SCRIPT_SUFFIX
from torchyard.api.resource import API_VERSION, KIND, TrainingJob, job_document
from torchyard.api.validation.validate import has_kind, validate_document
from torchyard.client.backend import logged
from torchyard.client.documents import json_values, sets_of, shown
from torchyard.client.errors import TorchYardError
from torchyard.client.files import job_of, the_job
from torchyard.client.functions import JobFunction
from torchyard.client.scripts import script_in_code, script_name, script_spec
from torchyard.client.start import RequestedJob, folder_of
from torchyard.sweeps.resource import KIND as SWEEP
from torchyard.sweeps.resource import TrainingSweep

Target = TrainingJob | Mapping[str, Any] | str | Path | JobFunction[..., Any]
"""What can be run: see `torchyard.run`."""
Arguments = Mapping[str, Any] | Sequence[str]
"""Of a decorated function: JSON values by name; of a script: its words."""


def requested(
    target: Target,
    backend: Backend,
    *,
    name: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    arguments: Arguments | None = None,
    code: str | Path | None = None,
) -> RequestedJob:
    """Check a job as `torchyard validate` does.

    Args:
        target: model, dict, path of a job file or of a Python script, or function decorated with `torchyard.job`.
        backend: where it will run.
        name: of the job; by default the name in its metadata.
        overrides: values of fields by their path in the spec: `{"nodes": 2, "trainer.params.steps": 100}`.
        arguments: of a decorated function, or of a script.
        code: folder that travels with the job.

    Raises:
        InvalidJobError: the job is invalid; the error lists all problems.
        TorchYardError: `target` is something else.
    """
    sets = [*sets_of(overrides), *sets_of(None if code is None else {"code.path": str(Path(code).absolute())})]
    if isinstance(target, str | Path) and Path(target).suffix == SCRIPT_SUFFIX:
        document = _document_of_script(Path(target), arguments, backend, (overrides or {}).get("image"), code)
        return _of_document(document, str(target), Path.cwd(), sets, name, is_file=False)
    if isinstance(target, JobFunction):
        if not isinstance(arguments, Mapping | None):
            what = f"arguments of {target.name}: {shown(arguments)} has no names"
            raise TorchYardError(what, "give a dict: arguments={'lr': 1e-3}")
        return _of_document(target.document(arguments or {}, backend), target.name, target.folder, sets, name)
    if arguments is not None:
        fix = "leave arguments out, give the path of a script (.py), or decorate a function with @torchyard.job"
        raise TorchYardError(f"arguments {shown(arguments)}: {shown(target)} takes none", fix)
    if isinstance(target, TrainingJob):
        document = job_document(target, with_status=False)
        return _of_document(document, f"job {target.metadata.name}", Path.cwd(), sets, name)
    if isinstance(target, Mapping):
        if target.get("kind") == SWEEP:
            raise _a_sweep("this dict")
        document = {"apiVersion": API_VERSION, "kind": KIND, **target}
        return _of_document(document, "job", Path.cwd(), sets, name)
    if not isinstance(target, str | Path):  # a caller may have no types
        if isinstance(target, TrainingSweep):  # type: ignore[unreachable]
            raise _a_sweep(f"sweep {target.metadata.name}")
        what = f"{shown(target)} is not a job"
        fix = "give a TrainingJob, a dict, a path of a job file or script, or a function decorated with @torchyard.job"
        raise TorchYardError(what, fix)
    return _of_file(Path(target), sets, name)


def _of_file(file: Path, sets: Sequence[str], name: str | None) -> RequestedJob:
    if has_kind(file, SWEEP):
        raise _a_sweep(str(file))
    job = job_of(file, sets)
    wanted = RequestedJob(job, folder_of(job.metadata, file.absolute().parent), str(file), is_file=True)
    return wanted if name is None else wanted._replace(job=_renamed(wanted.job, name))


def _a_sweep(source: str) -> TorchYardError:
    return TorchYardError(f"{source} is a TrainingSweep, not a job", "torchyard.sweep runs it, `torchyard run` as well")


def _document_of_script(
    script: Path, arguments: Arguments | None, backend: Backend, image: str | None, code: str | Path | None
) -> dict[str, Any]:
    words = list(arguments or [])
    if isinstance(arguments, Mapping | str) or not all(isinstance(word, str) for word in words):
        what = f"arguments of {script}: {shown(arguments)} is not a list of strings"
        raise TorchYardError(what, "give the words of a command line: arguments=['--lr', '1e-3']")
    if code is not None:
        spec = script_in_code(script, words, Path(code))
    else:
        spec = script_spec(script, words, backend, image, logged)
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": script_name(script)}, "spec": spec}


def _of_document(
    document: Mapping[str, Any],
    source: str,
    folder: Path,
    sets: Sequence[str],
    name: str | None,
    *,
    is_file: bool = True,
) -> RequestedJob:
    if name is not None:
        metadata = document.get("metadata")
        document = {**document, "metadata": {**(metadata if isinstance(metadata, Mapping) else {}), "name": name}}
    result = validate_document(json_values(document, source), source, sets)
    job = the_job(result, source)
    return RequestedJob(job, folder_of(job.metadata, folder), source, is_file=is_file)


def _renamed(job: TrainingJob, name: str) -> TrainingJob:
    return msgspec.structs.replace(job, metadata=msgspec.structs.replace(job.metadata, name=name))
