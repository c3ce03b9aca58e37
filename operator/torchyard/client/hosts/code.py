"""The code of a run on hosts: the folder that it starts in, as a bundle."""

from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from torchyard.client.bundle.bundle import bundle_of
from torchyard.client.start import RequestedJob


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
    folder = wanted.folder / (code.path or "") if code is not None else wanted.folder
    bundle = bundle_of(folder)
    return Code(folder, bundle.digest, bundle.archived(), bundle.sentences())


def without_code(wanted: RequestedJob) -> RequestedJob:
    """Return the job as a host runs it, in the folder that was sent."""
    return wanted._replace(job=replace(wanted.job, spec=replace(wanted.job.spec, code=None)))
