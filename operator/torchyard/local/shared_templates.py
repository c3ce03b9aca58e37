"""Templates that several controlling processes share, since one process above all of them said so.

`TORCHYARD_TEMPLATE_OWNER` is the id of that process: a script that runs many jobs, for instance. Its templates lie in a
folder that only this user may enter, each named by its owner and by what it was made for. A process that finds none
starts one, in the place of the one that was unused for longest if there are eight. They end with their owner, or when
they were not used for ten minutes.
"""

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from torchyard.local import record
from torchyard.local.keeper import stat_fields
from torchyard.local.process import ProcessId, identify
from torchyard.local.run import take_lock
from torchyard.local.template import PROCESS, Imports, Template, begun

OWNER = "TORCHYARD_TEMPLATE_OWNER"
UNUSED_SECONDS = 600.0
_MOST = 8  # templates of one owner
_LOCK_SECONDS = 10.0
_NAMES = ("Umask", "Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp",
    "SigBlk", "SigIgn", "Cpus_allowed", "Mems_allowed", "THP_enabled", "Speculation_Store_Bypass",
    "SpeculationIndirectBranch")  # fmt: skip
_OF_A_THREAD = ("limits", "cgroup", "oom_score_adj", "personality", "loginuid", "sessionid", "attr/current")
_OF_A_PROCESS = ("coredump_filter", "timerslack_ns")
_KEPT: list[Template] = []
"""Those that this process has started: it is their parent, and may go on for long."""


def owner_above(env: Mapping[str, str]) -> ProcessId | None:
    """Return the owner that the environment names, if it started this process, perhaps indirectly, or is it.

    Raises:
        ValueError: the variable holds no process id.
    """
    given = env.get(OWNER, "")
    if not given:
        return None
    if not given.isascii() or not given.isdecimal():
        fix = f"set it to that of a process that starts this one, as `export {OWNER}=$$` does in a shell script"
        raise ValueError(f"{OWNER}: `{given}` is no process id: {fix}")
    pid = os.getpid()
    while pid > 0 and pid != int(given):
        fields = stat_fields(pid)
        pid = int(fields[1]) if fields else 0
    return identify(pid) if pid else None


def inherited() -> dict[str, object]:
    """Return what a process has from its parent and no request can hand over: limits, rights, masks, cgroup, ..."""
    own = Path("/proc/thread-self")
    found: dict[str, object] = {"nice": os.getpriority(os.PRIO_PROCESS, 0), "scheduler": os.sched_getscheduler(0)}
    lines = dict(line.partition(":")[::2] for line in _text(own / "status").splitlines())
    found |= {name: lines.get(name, "").split() for name in _NAMES}
    found |= {name: _text(own / name) for name in _OF_A_THREAD}
    found |= {name: _text(Path("/proc/self", name)) for name in _OF_A_PROCESS}
    for path in [own / "root", *sorted((own / "ns").iterdir())]:
        with suppress(OSError):
            found[str(path.relative_to(own))] = str(path.readlink())
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def find_or_start(imports: Imports, key: str, owner: ProcessId) -> Template:
    """Return the owner's template for `key`, and start it if necessary. Blocks.

    Raises:
        OSError, ValueError: it cannot be started.
    """
    folder = _folder()
    with _locked(folder):
        living = {of: template for template, of in _living(folder, owner)}
        if key in living:
            living[key].note_use()
            return living[key]
        if len(living) >= _MOST:
            min(living.values(), key=Template.last_use).close()
        own = Path(tempfile.mkdtemp(prefix=f"{owner.pid}-{owner.start}-{key}-", dir=folder))  # 0700
        template = begun(imports, own, owner=owner, unused=UNUSED_SECONDS)
    _KEPT[:] = [each for each in _KEPT if each.alive]
    _KEPT.append(template)
    return template


def of_owner(owner: ProcessId) -> list[ProcessId]:
    """Return the templates of an owner that live. Blocks."""
    folder = _folder()
    with _locked(folder):
        return [template.process for template, _key in _living(folder, owner)]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder, which others hold for moments only, unless a signal has stopped them.

    Raises:
        TimeoutError: another process does not give it back.
    """
    deadline = time.monotonic() + _LOCK_SECONDS
    while (lock := take_lock(folder / "lock")) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{folder / 'lock'} is held by another process")
        time.sleep(0.02)
    try:
        yield
    finally:
        os.close(lock)


def _folder() -> Path:
    """Return the folder of this user's templates.

    Raises:
        OSError: something else has its name, or other users may enter it.
    """
    folder = Path(tempfile.gettempdir(), f"torchyard-{os.geteuid()}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise PermissionError(f"{folder} is not a folder of this user alone")
    return folder


def _living(folder: Path, owner: ProcessId) -> Iterator[tuple[Template, str]]:
    """Yield the owner's templates with their keys; delete what others left that were killed, and their owners, too."""
    for path in folder.glob("*-*-*-*"):
        pid, start, key, _ = path.name.split("-", 3)
        process = record.read(path / PROCESS, ProcessId)
        if process is not None and process.alive():
            if (pid, start) == (str(owner.pid), str(owner.start)):
                yield Template(path, process), key
        else:
            shutil.rmtree(path, ignore_errors=True)
