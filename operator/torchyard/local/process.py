"""Processes that are not our children: identify them, and signal the right one."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from torchyard.local.keeper import stat_fields


class ProcessId(Struct, frozen=True):
    """A process by pid and start time (clock ticks since boot): a pid alone is reused."""

    pid: int
    start: int

    def alive(self) -> bool:
        """Return whether this very process still runs; a zombie does not."""
        fields = stat_fields(self.pid)
        return bool(fields) and fields[0] != "Z" and int(fields[19]) == self.start

    def stopped(self) -> bool:
        """Return whether a signal stopped this very process, and nothing has let it go on."""
        fields = stat_fields(self.pid)
        return bool(fields) and fields[0] == "T" and int(fields[19]) == self.start

    def kill(self, number: int) -> None:
        """Signal this very process unless it has ended: a recycled pid is never hit."""
        with suppress(ProcessLookupError, PermissionError):
            try:
                descriptor = os.pidfd_open(self.pid)
            except ProcessLookupError:
                return
            except (OSError, AttributeError):  # an old kernel or a sandbox refuses the call, not the signal
                if self.alive():
                    os.kill(self.pid, number)
                return
            try:
                if self.alive():
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)


def identify(pid: int) -> ProcessId | None:
    """Return the process that has this pid now; None if no process has it."""
    fields = stat_fields(pid)
    return ProcessId(pid, int(fields[19])) if fields else None


def carrying(variable: str, value: str) -> list[ProcessId]:
    """Return the processes of this user whose environment holds `variable=value`: those that a pod started."""
    wanted = f"{variable}={value}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0") and (process := identify(int(entry.name))):
                found.append(process)
    return found


def kill_carrying(variable: str, value: str, seconds: float = 5.0) -> None:
    """Kill every process that carries the mark until none is left, for at most `seconds`. Blocks: use a thread."""
    deadline = time.monotonic() + seconds
    while (left := [one for one in carrying(variable, value) if one.alive()]) and time.monotonic() < deadline:
        for process in left:
            process.kill(signal.SIGKILL)
        time.sleep(0.01)
