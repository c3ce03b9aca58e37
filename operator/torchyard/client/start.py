"""Create the run of a job on this machine, or find the unfinished one to continue."""

import importlib.util
import os
import shlex
import shutil
import sys
from itertools import count
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from torchyard.api.backends import ignored, on_this_machine
from torchyard.api.inputs import claim_of
from torchyard.api.launch import worker_command
from torchyard.api.local_volumes import without_folder
from torchyard.api.names import OF_TRIALS, SCRIPT_SUFFIX, SOURCE_FOLDER
from torchyard.api.reasons import Reason
from torchyard.api.resource import ObjectMeta, TrainingJob
from torchyard.api.status import State
from torchyard.api.validation.changes import can_go_on_from
from torchyard.api.values import plural
from torchyard.client.backend import Notice, logged
from torchyard.client.bundle.attach import Packed, arrived, packed
from torchyard.client.errors import NotStoredError, TorchYardError
from torchyard.client.local import named
from torchyard.local.run import RunFolder, read_run
from torchyard.local.runs import KEPT_ASIDE, Aside, OtherFolderError, RunBusyError, create_run, expire_runs

_LIBRARIES = {"hf": "huggingface_hub", "s3": "s3fs", "gs": "gcsfs"}  # by which inputs are fetched


class RequestedJob(NamedTuple):
    """A valid job and where it comes from."""

    job: TrainingJob
    folder: Path
    """What `spec.workingDir` is relative to."""
    source: str
    """What messages call it: the job file, the script, the module or the program."""
    is_file: bool
    """Whether its name was given, as in a job file, and not derived from a program."""


def start(
    wanted: RequestedJob, name: str | None = None, *, notice: Notice = logged, elsewhere: bool = False
) -> RunFolder:
    """Create the run of a job, or find the unfinished one to go on with.

    Args:
        wanted: the job and where it comes from.
        name: of the run; by default the job's name. Where that was derived from a script, a run of another folder
            keeps its name, and this one gets a number.
        notice: called with what the user should know: fields without effect here, a run that is continued or moved.
        elsewhere: whether its pods run on other machines, which have been checked.

    Raises:
        TorchYardError: the name is taken.
    """
    job = not_a_trial(wanted.job)
    if unused := [field for field in ignored(job.spec, "local") if field != "volumes"]:
        notice(f"torchyard: this machine has no use for {', '.join(unused)}; ignored")
    if job.spec.volumes:
        notice(f"torchyard: {without_folder(job.spec.volumes)}")
    job = on_this_machine(job)
    if not elsewhere:
        _require_machine(job, notice)
    if (code := packed(job, wanted.folder, notice, "local")) is not None:
        job = arrived(code.job)
        keep_code(code)
    derived = name is None and not wanted.is_file
    folder = _free_folder(job.metadata.name, wanted.folder, notice) if derived else named(name or job.metadata.name)
    try:
        expire_runs()
        kept = create_run(
            folder, job, wanted.folder, lambda before, aside: notice(set_aside(wanted.source, job, before, aside))
        )
    except OtherFolderError as error:
        if derived:  # another process took the name in between
            return start(wanted, name, notice=notice)
        raise TorchYardError(str(error).rstrip(".")) from error
    except RunBusyError as error:
        if error.pid != os.getpid():
            raise TorchYardError(str(error).rstrip(".")) from error
        fix = f"torchyard.get_job({folder.name!r}) returns it: wait for its end, or stop it"
        raise TorchYardError(f"the run {folder.name!r} is running in this process", fix) from error
    except ValueError as error:
        raise TorchYardError(str(error).rstrip(".")) from error
    except OSError as error:
        raise NotStoredError(f"the run {folder.name!r}", error) from error
    if kept.status.state:
        notice(f"torchyard: continues the unfinished run {folder.name!r}; `torchyard rm {folder.name}` deletes it")
    return folder


def _require_machine(job: TrainingJob, notice: Notice) -> None:
    """Check that this machine has what the job needs; notify of GPUs that it does not use."""
    require_torch(job)
    require_gpus(job)
    require_inputs(job)
    if (without := unused_gpus(job)) is not None:
        notice(f"torchyard: {without}")


def keep_code(code: Packed) -> None:
    """Store the code of a run where its agents find it; delete what no run uses any more.

    Raises:
        TorchYardError: it cannot be stored.
    """
    from torchyard.client.bundle import store

    source = code.job.spec.code
    if source is not None and source.claim is not None:
        what = f"spec.code.claim is {source.claim.name}, a claim of a cluster, which this machine does not have"
        raise TorchYardError(what, "add --set code.claim=null --set code.path=FOLDER, a folder with the same code")
    if source is not None and source.image is not None:
        from torchyard.client.registry.pull import pull_code

        pull_code(source.image, logged)
    try:
        if code.bundle is not None:
            store.keep(code.bundle.digest, code.parts)
        store.expire()
    except OSError as error:
        raise NotStoredError("the code of the run", error) from error


def folder_of(metadata: ObjectMeta, default: Path, notice: Notice = logged) -> Path:
    """Return what `workingDir` of a job or sweep is relative to: the folder in which a printed one was started.

    Args:
        metadata: of the job or sweep; a printed one names its folder.
        default: of its file, used if it names none.
        notice: called if that is another folder, or one that does not exist on this machine.
    """
    folder = Path(str(metadata.annotations.get(SOURCE_FOLDER) or default))
    if not folder.is_dir():
        notice(f"torchyard: {metadata.name} was started in {folder}, which does not exist here; {default} is used")
        return default
    if folder != default:
        notice(f"torchyard: starts in {folder}, as {metadata.name} did (annotation {SOURCE_FOLDER})")
    return folder


def not_a_trial(job: TrainingJob) -> TrainingJob:
    """Return the job without what makes it a trial: the printed job of a trial, started again, is a job by itself."""
    labels, annotations = (
        {name: text for name, text in texts.items() if name not in OF_TRIALS}
        for texts in (job.metadata.labels, job.metadata.annotations)
    )
    return replace(job, metadata=replace(job.metadata, labels=labels, annotations=annotations))


def require_torch(job: TrainingJob) -> None:
    """Check that a job that needs torchrun can start it.

    Raises:
        TorchYardError: PATH has no torchrun, and the Python of TorchYard has no torch.
    """
    from torchyard.local.environment import search_path

    if worker_command(job.spec, "script.py")[0] != "torchrun" or any(each.name == "PATH" for each in job.spec.env):
        return
    path = search_path(job, os.environ.get("PATH", os.defpath))
    if shutil.which("torchrun", path=path) is None and importlib.util.find_spec("torch") is None:
        what = f"{Reason.TORCH_MISSING.sentence} ({sys.executable} has no module torch)"
        raise TorchYardError(what, _way_to_torch(job))


def _way_to_torch(job: TrainingJob) -> str:
    """Return how to install what a job lacks, or how to start its program without it."""
    if job.spec.trainer is not None:
        return "`pip install 'torchyard[trainers]'` installs it with the built-in trainers"
    launcher, *words = [*(job.spec.command or [""]), *job.spec.args]
    words = words[1:] if words[:1] == ["--"] else words
    if launcher != "torchrun" or not words or not words[0].endswith(SCRIPT_SUFFIX):
        return "`pip install torch` installs it"
    alone = shlex.join(["torchyard", "run", "--", "python", *words])
    return f"`pip install torch` installs it; a program that needs no PyTorch starts without torchrun: `{alone}`"


def require_gpus(job: TrainingJob) -> None:
    """Check that this machine has the GPUs that the job asks for; otherwise it would wait for them forever.

    Raises:
        TorchYardError: it has fewer.
    """
    from torchyard.local.gpus import inventory, shortage

    lacking = shortage(job.spec, inventory()) if job.spec.gpus_per_node else None
    if lacking is not None:
        fix = "run it where they are, submit it to a cluster with `torchyard submit`, or lower gpusPerNode or nodes"
        raise TorchYardError(lacking, f"{fix} (`--set gpusPerNode=0` trains on the CPU)")


def require_sources(job: TrainingJob) -> None:
    """Check that no input of a job lies on a claim, which only a cluster has.

    Raises:
        TorchYardError: one does.
    """
    for index, each in enumerate(job.spec.inputs):
        field = f"spec.inputs[{index}].from"
        if claim_of(each) is not None:
            fix = (
                f"name another source with `--set inputs[{index}].from=...`, or submit the job with `torchyard submit`"
            )
            raise TorchYardError(
                f"{field}: {each.source} is a claim of a cluster, which this machine does not have", fix
            )


def require_inputs(job: TrainingJob) -> None:
    """Check that this machine can have the inputs of a job: no claims, and hubs and buckets with their libraries.

    Raises:
        TorchYardError: it cannot.
    """
    require_sources(job)
    for index, each in enumerate(job.spec.inputs):
        field = f"spec.inputs[{index}].from"
        library = _LIBRARIES.get(each.source.partition("://")[0])
        if library is not None and importlib.util.find_spec(library) is None:
            lacking = f"{field}: {each.source.partition('?')[0]} is fetched by {library}, which is not installed"
            raise TorchYardError(lacking, "`pip install 'torchyard[inputs]'`")


def unused_gpus(job: TrainingJob) -> str | None:
    """Return a sentence where a job asks for none of the GPUs of this machine and so sees none; None otherwise."""
    from torchyard.local.gpus import has_driver, inventory

    if job.spec.gpus_per_node or job.spec.device == "cpu" or not has_driver():
        return None
    count = len(inventory().uuids)
    if not count:
        return None
    return f"this run sees none of the machine's {plural(count, 'GPU')}; --gpus-per-node 1 gives it one"


def _free_folder(name: str, source_folder: Path, notice: Notice) -> RunFolder:
    """Return `name`, or the first of name-2, name-3, ... that no run of another folder has."""
    for number in count(1):
        folder = named(name if number == 1 else f"{name}-{number}")
        try:
            job = read_run(folder)
        except ValueError:  # damaged, but there
            continue
        if job is None or job.metadata.annotations.get(SOURCE_FOLDER) == str(source_folder):
            if number > 1:
                notice(f"torchyard: a script of another folder has the name {name!r}; this run is {folder.name!r}")
            return folder
    raise AssertionError  # numbers do not end


def set_aside(source: str, job: TrainingJob, before: TrainingJob, aside: Aside) -> str:
    """Return where the finished run of the same name was moved, and how to resume from it if that is possible."""
    old = aside.folder
    sentence = f"torchyard: run {before.metadata.name!r} was over and starts over; what it left is in {old.path}"
    if aside.deleted:
        oldest = ", ".join(map(str, aside.deleted))
        sentence = f"{sentence}; deleted, since {KEPT_ASIDE} runs of a name are kept: {oldest}"
    if not can_go_on_from(before, job):
        return sentence
    resumed = ("run", source, "--name", "NEW", "--set", f"checkpoint.resumeFrom={old.checkpoints}")
    more = (
        f", given more than {plural(before.status.progress.step, 'step')}"
        if before.status.state == State.SUCCEEDED
        else ""
    )
    return f"{sentence}; `torchyard {shlex.join(resumed)}` continues from there{more}"
