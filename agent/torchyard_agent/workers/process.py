"""Control of process trees on Linux: parent-death signals, subreaping, kills of whole trees."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Set, Tuple

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_MADV_DONTNEED = 4
_HIGHEST_OOM_SCORE = 1000


def die_with_parent(sig: int, parent: int) -> None:
    """Have the kernel send `sig` to this process when its parent thread ends; exit if it has already ended."""
    _prctl(_PR_SET_PDEATHSIG, sig)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def become_subreaper() -> bool:
    """Make orphans of our descendants our children, as for PID 1; return False if the kernel does not support it."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> bool:
    return _libc("prctl", option, value, 0, 0, 0)


def _libc(name: str, *arguments: int) -> bool:
    """Call a function of the C library that returns 0 on success; return whether it succeeded."""
    try:
        import ctypes

        library = ctypes.CDLL(None, use_errno=True)
        return bool(getattr(library, name)(*map(ctypes.c_ulong, arguments)) == 0)
    except (ImportError, OSError, AttributeError):  # an interpreter without libffi still trains, only less guarded
        return False


def stand_before_others(part: float) -> None:
    """Make the kernel prefer this process and its children when it kills for lack of memory.

    Raises the score of proc(5) `oom_score_adj` by `part` of the way to the highest one; that needs no privilege.
    """
    file = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError, ValueError):  # where the kernel does not offer it, the largest process is killed
        score = int(file.read_text(encoding="ascii"))
        file.write_text(str(score + round((_HIGHEST_OOM_SCORE - score) * part)), encoding="ascii")


def release_file_pages() -> None:
    """Unmap pages of libraries and other files from this process alone: they stay cached, and are found when needed.

    Looking for the largest process to kill, the kernel counts them, although a kill would not free them. Only mappings
    without a page of our own: what was written to, by relocation or a debugger, would be lost.
    """
    mapping = ""
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if " " in name:  # `START-END rwxp OFFSET ...`, the only lines whose first word is not a field's name
            mapping = line
        elif name == "Anonymous" and value.split() == ["0", "kB"]:
            addresses, access, _, device, *_ = mapping.split()
            if access[1] != "w" and device != "00:00":
                start, end = (int(each, 16) for each in addresses.split("-"))
                _libc("madvise", start, end - start, _MADV_DONTNEED)


def children() -> Dict[int, List[int]]:
    """Return the living children of every process of this machine, or of this container."""
    found: Dict[int, List[int]] = {}
    for entry in Path("/proc").iterdir():
        fields = _stat(int(entry.name)) if entry.name.isdigit() else []
        if fields and fields[0] != "Z":
            found.setdefault(int(fields[1]), []).append(int(entry.name))
    return found


def descendants(root: int) -> List[int]:
    """Return every living process below `root`, children before grandchildren."""
    below = children()
    found: List[int] = []
    front = [root]
    while front:
        front = [child for pid in front for child in below.get(pid, ())]
        found += front
    return found


def is_python(pid: int) -> bool:
    """Return whether `pid` runs an interpreter of Python."""
    try:
        return Path(f"/proc/{pid}/exe").readlink().name.startswith("python")
    except OSError:
        return False


def is_spawned(pid: int) -> bool:
    """Return whether `multiprocessing` started `pid` as a fresh interpreter."""
    try:
        return b"multiprocessing" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def is_alive(pid: int) -> bool:
    """Return whether `pid` still runs; a zombie does not."""
    fields = _stat(pid)
    return bool(fields) and fields[0] != "Z"


def _stat(pid: int) -> List[str]:
    """Return the fields of /proc/PID/stat from `state ppid pgrp session` on; empty if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text[text.rfind(")") + 2 :].split()  # the name in parentheses may hold anything, spaces too


def thread_count() -> int:
    """Return the number of threads of this process, those of C libraries included."""
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def reaped() -> Iterator[Tuple[int, int]]:
    """Reap the children that have ended; yield each with its exit code, negative for a signal."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def catches(pid: int, sig: int) -> bool:
    """Return whether `pid` has a handler for `sig`: sending it does not end it then."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (sig - 1) & 1)
    return False


def signal_groups(leaders: Iterable[int], sig: int) -> None:
    """Send `sig` once to the process group of each leader, or to a leader that has no group yet."""
    for pid in leaders:
        assert pid > 1, f"{pid} is not the id of one process"
        for send in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                send(pid, sig)
                break  # one that does not lead a group yet is signalled alone; a second signal often means "now"


def kill_descendants(root: int, spare: Iterable[int] = ()) -> int:
    """Kill everything below `root` but `spare`, until nothing is left; return how many were killed.

    Loops because a dying process may have forked since the last look.
    """
    spared = set(spare)
    killed: Set[int] = set()
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        left = [pid for pid in descendants(root) if pid not in spared]
        if not left:
            break
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        time.sleep(0.005)
    return len(killed)
