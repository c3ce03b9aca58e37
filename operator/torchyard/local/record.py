"""The files of a pod: what is recorded before its processes start, and what its keeper records afterwards."""

from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct, field

from torchyard.api.files import read_regular
from torchyard.local.process import ProcessId
from torchyard.local.run import write_atomic

S = TypeVar("S", bound=Struct)

MAX_BYTES = 1024 * 1024
POD_MARK = "TORCHYARD_POD_UID"
"""In the environment of everything a pod starts, its own sessions too: how leftovers are found."""


class Deletion(Struct, frozen=True, kw_only=True):
    """The end of the pod was requested."""

    since: float
    grace_seconds: float


class PodRecord(Struct, frozen=True, kw_only=True, rename="camel"):
    """`pod.json`. As long as it is there, the pod exists."""

    uid: str
    job_uid: str
    name: str
    index: int
    incarnation: int
    address: str
    created: float
    url: str  # of the intake that its agent talks to
    gpus: list[str] = field(default_factory=list)
    deletion: Deletion | None = None
    never_started: str = ""  # why its processes could not be started, for the user


class Running(Struct, frozen=True):
    """`process.json`, written by the keeper."""

    keeper: ProcessId
    agent: ProcessId
    time: float


class Exit(Struct, frozen=True):
    """`exit.json`, written by the keeper when nothing of the pod lives any more."""

    code: int
    time: float


def loopback_address(job_uid: str, index: int) -> str:
    """Return an address of this machine for one pod: other jobs get other ones, so their nodes do not meet by accident.

    Linux answers on all of 127.0.0.0/8 without set-up.
    """
    job = sum(job_uid.encode()[i] * 31**i for i in range(min(8, len(job_uid)))) % 60000
    third, fourth = divmod(index, 250)
    network = (job + third) % 64000
    return f"127.{1 + network // 256}.{network % 256}.{2 + fourth}"


def read(path: Path, type_: type[S]) -> S | None:
    """Return the document, None if it is not there (yet) or was cut short by a full disk."""
    try:
        return msgspec.json.decode(read_regular(path, MAX_BYTES), type=type_)
    except (OSError, msgspec.DecodeError, RecursionError):
        return None


def write(path: Path, document: Struct) -> None:
    """Replace the document."""
    write_atomic(path, msgspec.json.format(msgspec.json.encode(document)))
