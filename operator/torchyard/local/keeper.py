"""The keeper of a pod: starts the agent, outlives it, and records how it ended.

A container runtime guarantees two things that a bare process does not: when the first process of a pod ends, everything
it started ends with it, and its exit code is kept even if no process watched. This program gives both to a pod that
is only a process group. It holds the pod lock for as long as anything of the pod may live: a locked pod is a live one.

Run by path, standard library only: `python -I -S keeper.py POD_FOLDER LOCK_DESCRIPTOR AGENT [ARG ...]`; with
`--started PID` in the place of the agent's command where this process has started it before it became this program
(`templates.py`).
"""

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

STARTED = "--started"
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


def main(folder: str, lock: int, command: list[str]) -> int:
    """Run `command` as the pod's first process; return its exit code, 128 + signal if a signal ended it."""
    os.set_inheritable(lock, False)  # only the keeper holds the lock
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_NAME, b"ty-keeper")
    keeper = os.getpid()
    agent = int(command[1]) if command[0] == STARTED else os.fork()
    if agent == 0:
        _become(command, keeper)
    signal.signal(signal.SIGTERM, lambda *_: _kill(agent, signal.SIGTERM))
    _write(
        folder,
        "process.json",
        {"keeper": _identity(keeper), "agent": _identity(agent), "time": time.time()},
    )
    code = _reap_until(agent)
    ended = time.time()
    _end_the_rest(keeper)
    _write(folder, "exit.json", {"code": code, "time": ended})
    return code


def _become(command: list[str], keeper: int) -> None:
    """In the child: start a session, die with the keeper, and execute the agent."""
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == keeper:
            os.execvp(command[0], command)  # noqa: S606 - an argument vector, no shell
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _prctl(option: int, value: int | bytes) -> None:
    import ctypes  # noqa: PLC0415 - slow, and callers of `stat_fields` do not need it

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _reap_until(agent: int) -> int:
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == agent:
            code = os.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code


def _end_the_rest(keeper: int) -> None:
    """Kill what the agent left behind until nothing is left: as a subreaper we inherit every orphan below us."""
    while children := _children(keeper):
        for pid in children:
            _kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = stat_fields(int(entry.name))
            if len(fields) > 1 and int(fields[1]) == parent:
                found.append(int(entry.name))
    return found


def _identity(pid: int) -> dict[str, int]:
    """Return pid and start time (clock ticks since boot): together they identify a process, since pids are reused."""
    fields = stat_fields(pid)
    return {"pid": pid, "start": int(fields[19]) if fields else 0}


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; the name before them may hold anything."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text[text.rfind(")") + 2 :].split()


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _write(folder: str, name: str, document: dict[str, object]) -> None:
    path = Path(folder, name)
    fresh = path.with_suffix(".new")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:  # a full disk must not leave the pod without its keeper
        os.write(2, f"{path}: {error.strerror}\n".encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
