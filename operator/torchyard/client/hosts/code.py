"""The code of a run on hosts: the folder that it starts in, as a bundle."""

import hashlib
import tempfile
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from torchyard.api import spec_code
from torchyard.api.files import remove_tree
from torchyard.api.spec_code import is_sent, source_of
from torchyard.client.backend import Notice, logged
from torchyard.client.bundle.bundle import Bundle, bundle_of, bundle_of_tree
from torchyard.client.bundle.repository import fetched, pinned
from torchyard.client.errors import TorchYardError
from torchyard.client.hosts.preflight import Probe
from torchyard.client.hosts.setup import ENVIRONMENT_PYTHON
from torchyard.client.registry.pull import pull_code
from torchyard.client.registry.reference import parse
from torchyard.client.start import RequestedJob
from torchyard.local.environment import fetched_folder
from torchyard.local.run import home_folder

REQUIREMENTS = "requirements.txt"
"""From which `--uv` creates an environment."""


class Code(NamedTuple):
    """A folder, ready to travel.

    Attributes:
        folder: names it on the hosts, the same each time; of code from elsewhere, there is no such folder.
        bundle: its files.
        archive: compressed tar.
    """

    folder: Path
    bundle: Bundle
    archive: bytes


def code_of(wanted: RequestedJob) -> Code:
    """Return the folder that a job starts in: `code.path` of its file, else the folder of the file or program.

    Raises:
        TorchYardError: it cannot travel: what is wrong with it, and what to do.
    """
    code = wanted.job.spec.code
    if code is not None and not is_sent(code):
        return _from_elsewhere(code)
    folder = wanted.folder / (code.path or "") if code is not None else wanted.folder
    bundle = bundle_of(folder)
    return Code(folder, bundle, bundle.archived())


def _from_elsewhere(code: spec_code.Code) -> Code:
    """Return code of a repository or image: this machine has the credentials, so it fetches and sends it."""
    if code.claim is not None:
        what = f"spec.code.claim is {code.claim.name}, a claim of a cluster, which hosts do not have"
        raise TorchYardError(what, "add --set code.claim=null --set code.path=FOLDER, a folder with the same code")
    place = fetched_folder(home_folder())
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = Path(tempfile.mkdtemp(dir=place, prefix="."))
    try:
        if code.git is not None:
            tree, name = fetched(pinned(code), temporary, place), code.git.url.rstrip("/").rpartition("/")[2]
        else:
            tree, name = pull_code(str(code.image), logged), parse(str(code.image)).repository.rpartition("/")[2]
        bundle = bundle_of_tree(tree)
    finally:
        remove_tree(temporary)
    if code.digest and bundle.digest != code.digest:
        what = f"the code of {source_of(code)} has digest {bundle.digest[:12]}, and the job names {code.digest[:12]}"
        raise TorchYardError(what, "correct spec.code.digest, or remove it")
    source = hashlib.sha256(source_of(code).encode()).hexdigest()[:16]
    return Code(place / source / (name.removesuffix(".git") or "code"), bundle, bundle.archived())


def requirements_of(wanted: RequestedJob, code: Code, report: Probe, notice: Notice) -> str:
    """Return the text of the requirements file that an environment on a host is created from.

    Args:
        wanted: the job. The versions of `spec.code.requirements` are those of its lock; without it, the file is
            `requirements.txt` of the code.
        code: of the job.
        report: the answer of the host.
        notice: called with a sentence about the lock.

    Raises:
        TorchYardError: the requirements cannot be resolved.
    """
    spec = wanted.job.spec
    if spec.code is None or spec.code.requirements is None:
        found = (file.data.decode("utf-8", "replace") for file in code.bundle.files if file.path == REQUIREMENTS)
        return next(found, "")
    from torchyard.client.requirements.lockfile import pins
    from torchyard.client.requirements.resolve import locked
    from torchyard.client.requirements.target import of_machine

    text = locked(spec, wanted.folder / (spec.code.path or ""), of_machine(ENVIRONMENT_PYTHON, report.machine), notice)
    indexes = [line for line in (text or "").splitlines() if line.startswith("--")]
    return "\n".join([*indexes, *(pin.lines[0] for pin in pins(text or ""))])


def without_code(wanted: RequestedJob) -> RequestedJob:
    """Return the job as a host runs it, in the folder that was sent."""
    return wanted._replace(job=replace(wanted.job, spec=replace(wanted.job.spec, code=None)))
