"""Which runs of this machine's user are on hosts: one small file each, `$TORCHYARD_HOME/hosts/NAME.json`."""

import re
from pathlib import Path

import msgspec
from msgspec import Struct

from torchyard.api.files import read_regular
from torchyard.api.names import MAX_NAME
from torchyard.client.errors import TorchYardError
from torchyard.local.run import home_folder, write_atomic

MAX_BYTES = 64 * 1024
_NAME = re.compile(rf"[a-z0-9-]{{1,{MAX_NAME}}}")


class Member(Struct, frozen=True):
    """One host of a run.

    Attributes:
        host: name for ssh; empty: this machine.
        home: folder of TorchYard there.
        torchyard: command of TorchYard there.
    """

    host: str
    home: str
    torchyard: str


class HostRun(Struct, frozen=True):
    """A run on hosts; the first one has its controller.

    Attributes:
        name: of the run.
        members: the hosts.
        slurm: partition of its allocation; empty: it is not run by Slurm.
    """

    name: str
    members: tuple[Member, ...]
    slurm: str = ""


def recorded(name: str) -> HostRun | None:
    """Return where a run is; None: not on a host."""
    if not _NAME.fullmatch(name):
        return None
    try:
        return msgspec.json.decode(read_regular(_path(name), MAX_BYTES), type=HostRun)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise TorchYardError(f"{_path(name)} is damaged ({error})", "delete it, and start the run again") from error


def record(run: HostRun) -> None:
    """Write down where a run is."""
    _path(run.name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(_path(run.name), msgspec.json.format(msgspec.json.encode(run)))


def forget(name: str) -> None:
    """Delete the record of a run that is deleted."""
    _path(name).unlink(missing_ok=True)


def all_recorded() -> list[HostRun]:
    """Return every run on hosts, by name."""
    found = (recorded(path.stem) for path in sorted((home_folder() / "hosts").glob("*.json")))
    return [run for run in found if run is not None]


def _path(name: str) -> Path:
    return home_folder() / "hosts" / f"{name}.json"
