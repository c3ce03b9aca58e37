"""The code of a run on hosts: the folder that it starts in, as a bundle."""

import hashlib
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from torchyard.api import spec_code
from torchyard.api.files import remove_tree
from torchyard.api.spec_code import is_sent, source_of
from torchyard.client.backend import logged
from torchyard.client.bundle.bundle import bundle_of, bundle_of_tree
from torchyard.client.bundle.repository import fetched, pinned
from torchyard.client.errors import TorchYardError
from torchyard.client.registry.pull import pull_code
from torchyard.client.registry.reference import parse
from torchyard.client.start import RequestedJob
from torchyard.local.run import home_folder


class Code(NamedTuple):
    """A folder, ready to travel.

    Attributes:
        folder: on this machine.
        digest: of its content.
        archive: compressed tar.
        sentences: what is printed about it.
    """

    folder: Path
    digest: str
    archive: bytes
    sentences: list[str]


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
    return Code(folder, bundle.digest, bundle.archived(), bundle.sentences())


def _from_elsewhere(code: spec_code.Code) -> Code:
    """Return code of a repository or image: this machine has the credentials, so it fetches and sends it."""
    if code.claim is not None:
        what = f"spec.code.claim is {code.claim.name}, a claim of a cluster, which hosts do not have"
        raise TorchYardError(what, "add --set code.claim=null --set code.path=FOLDER, a folder with the same code")
    place = home_folder() / "fetched-code" / hashlib.sha256(source_of(code).encode()).hexdigest()[:16]
    remove_tree(place)
    place.mkdir(parents=True, mode=0o700)
    if code.git is not None:
        tree, name = fetched(pinned(code), place), code.git.url.rstrip("/").rpartition("/")[2].removesuffix(".git")
    else:
        tree, name = pull_code(str(code.image), logged, place), parse(str(code.image)).repository.rpartition("/")[2]
    bundle = bundle_of_tree(tree)
    if code.digest and bundle.digest != code.digest:
        what = f"the code of {source_of(code)} has digest {bundle.digest[:12]}, and the job names {code.digest[:12]}"
        raise TorchYardError(what, "correct spec.code.digest, or remove it")
    folder = place / (name or "code")  # a name that says on the host what lies there, the same each time
    folder.symlink_to(tree)
    return Code(folder, bundle.digest, bundle.archived(), bundle.sentences())


def without_code(wanted: RequestedJob) -> RequestedJob:
    """Return the job as a host runs it, in the folder that was sent."""
    return wanted._replace(job=replace(wanted.job, spec=replace(wanted.job.spec, code=None)))
