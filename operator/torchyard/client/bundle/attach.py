"""Turn `code.path` of a job into the bundle that travels, and find a program below the folder of the code."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from torchyard.api.backends import Backend
from torchyard.api.names import CODE_ARRIVED
from torchyard.api.resource import TrainingJob
from torchyard.api.spec_code import is_sent, pinned_commit, source_of
from torchyard.client.backend import Notice
from torchyard.client.bundle.archive import parts
from torchyard.client.bundle.bundle import Bundle, bundle_of
from torchyard.client.bundle.contents import FILE, PLAIN, CodeFile
from torchyard.client.bundle.repository import pinned
from torchyard.client.errors import TorchYardError


class Packed(NamedTuple):
    """A job whose code cannot change any more, and what is sent with it.

    Attributes:
        job: names its code by digest, commit or claim.
        bundle: what is sent; None: the pods fetch or mount the code.
        parts: of the archive of the bundle.
    """

    job: TrainingJob
    bundle: Bundle | None = None
    parts: Sequence[bytes] = ()


def packed(job: TrainingJob, folder: Path, notice: Notice, backend: Backend = "cluster") -> Packed | None:
    """Return a job with its code; None: it has none.

    Args:
        job: a valid job.
        folder: what `code.path` is relative to.
        notice: called with each sentence about the code: files, size, what was left out.
        backend: where the job will run, for which requirements are resolved.

    Raises:
        TorchYardError: the code cannot travel, its requirements cannot be resolved, or it is not on this machine.
    """
    code = job.spec.code
    if code is None:
        return None
    if not is_sent(code):
        if code.git is not None:
            code = pinned(code)
            notice(f"torchyard: code: {source_of(code)}: commit {str(code.commit)[:12]}")
        return Packed(replace(job, spec=replace(job.spec, code=code)))
    if code.path is None:
        what = f"spec.code.digest names code {str(code.digest)[:12]}, which was sent with another job"
        raise TorchYardError(what, "set spec.code.path to its folder")
    bundle = bundle_of(folder / code.path, lock_of(job, folder / code.path, notice, backend))
    pieces = parts(bundle.archived())
    for sentence in bundle.sentences():
        notice(f"torchyard: {sentence}")
    found = bundle.provenance
    code = replace(
        code,
        digest=bundle.digest,
        parts=len(pieces),
        commit=found.commit or None,
        branch=found.branch or None,
        diff=found.diff or None,
    )
    return Packed(replace(job, spec=replace(job.spec, code=code)), bundle, pieces)


def lock_of(job: TrainingJob, folder: Path, notice: Notice, backend: Backend) -> CodeFile | None:
    """Return the lock that travels with the code of a job; None: it has no requirements.

    Args:
        job: the job.
        folder: of the code.
        notice: called with a sentence about it.
        backend: where the job will run.

    Raises:
        TorchYardError: the requirements cannot be resolved.
    """
    if job.spec.code is None or job.spec.code.requirements is None:
        return None
    from torchyard.client.requirements.lockfile import LOCK
    from torchyard.client.requirements.resolve import locked
    from torchyard.client.requirements.target import of_image, of_interpreter
    from torchyard.local.environment import worker_python

    target = of_image(job.spec) if backend == "cluster" else of_interpreter(worker_python(job))
    text = locked(job.spec, folder, target, notice)
    return None if text is None else CodeFile(LOCK, PLAIN, FILE, text.encode())


def digest_now(job: TrainingJob, folder: Path, backend: Backend) -> str:
    """Return the digest of the code of a job as it is now, with the lock of its requirements.

    Raises:
        TorchYardError: the code cannot travel, or its requirements cannot be resolved.
    """
    return bundle_of(folder, lock_of(job, folder, lambda _sentence: None, backend)).digest


def arrived(job: TrainingJob) -> TrainingJob:
    """Return the job with the note that its code is where its pods find it."""
    code = job.spec.code
    assert code is not None, "packed"
    annotations = {**job.metadata.annotations, CODE_ARRIVED: code.digest if is_sent(code) else pinned_commit(code)}
    return replace(job, metadata=replace(job.metadata, annotations=annotations))


class ProgramLocation(NamedTuple):
    """Where a program of the current folder is once its code has travelled."""

    working_dir: str | None
    script: str | None


def program_location(code: Path, script: Path | None) -> ProgramLocation:
    """Return the working directory of a program below the folder of its code, and the path of its script from there.

    Args:
        code: folder that travels.
        script: of the program; None: a module or a command.

    Raises:
        TorchYardError: the script is not in the folder.
    """
    root, here = Path(os.path.realpath(code)), Path(os.path.realpath("."))
    start = here if here.is_relative_to(root) else root
    working_dir = None if start == root else str(start.relative_to(root))
    if script is None:
        return ProgramLocation(working_dir, None)
    # Of a link, the link itself travels.
    found = Path(os.path.realpath(script.parent), script.name)
    if not found.is_file():
        raise TorchYardError(f"{script}: there is no such file", "give the path of a script or of a job file")
    if not found.is_relative_to(root):
        raise TorchYardError(f"{script} is not in the folder of --code, {code}", "give a folder that holds it")
    return ProgramLocation(working_dir, os.path.relpath(found, start))
