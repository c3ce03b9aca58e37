"""Processes forked ahead of their commands: how a launcher starts warm workers and learns how they ended.

They are forked before the launcher has threads, sockets or torch's elastic agent, and so inherit none of them. Each
waits for a command line and its environment, and becomes that command (see `worker.py`). What torch's launcher knows
of a worker is what the kernel reports about its process, exactly as for a worker that was executed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from torchyard_agent.workers.process import die_with_parent

_POLL_SECONDS = 0.005


@dataclass(frozen=True)
class Command:
    """What a forked process becomes: `argv` (`python -u ...`) in the environment `env` and the folder `cwd`."""

    argv: List[str]
    env: Dict[str, str]
    cwd: str


class Forked:
    """A process that waits for its command, in the form of `subprocess.Popen` as far as torch's launcher uses it."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid = pid
        self.returncode: Optional[int] = None
        self._pipe = pipe

    def start(self, command: Command) -> None:
        """Send the process its command."""
        with open(self._pipe, "wb") as pipe:  # noqa: PTH123 - a descriptor
            pipe.write(json.dumps([command.argv, command.env, command.cwd]).encode())

    def poll(self) -> Optional[int]:
        """Return the exit status, negative for a signal; None while the process runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: Optional[float] = None) -> int:
        """Wait for the end of the process; return its exit status.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            status = self.poll()
            if status is not None:
                return status
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(_POLL_SECONDS)


def fork_ahead(count: int) -> Tuple[List[Forked], Optional[Command]]:
    """Fork `count` processes, each the leader of a session, that end with this one.

    Returns here with all of them; in each of them with the command that it has been sent.
    """
    launcher = os.getpid()
    pipes = [os.pipe() for _ in range(count)]
    forks = []
    for reading, writing in pipes:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            die_with_parent(signal.SIGKILL, launcher)
            for descriptor in {each for pipe in pipes for each in pipe} - {reading}:
                os.close(descriptor)
            return [], _read_command(reading)
        forks.append(Forked(pid, writing))
    for reading, _ in pipes:
        os.close(reading)
    return forks, None


def _read_command(pipe: int) -> Command:
    with open(pipe, "rb") as file:
        data = file.read()
    if not data:
        os._exit(0)  # the round ended before it started a worker
    return Command(*json.loads(data))


def context_class(base: Any, forks: List[Forked]) -> Any:
    """Return torch's `SubprocessContext` such that it sends its commands to `forks` instead of executing them."""

    class ForkedContext(base):  # type: ignore[misc]
        def _start(self) -> None:
            self.subprocess_handlers = {}
            for rank, fork in enumerate(forks):
                argv = [self.entrypoint, *map(str, self.args[rank])]
                fork.start(Command(argv, {**os.environ, **self.envs[rank]}, str(Path.cwd())))
                self.subprocess_handlers[rank] = _Handler(rank, fork)

    return ForkedContext


class _Handler:
    """Torch's `SubprocessHandler`."""

    def __init__(self, local_rank: int, proc: Forked) -> None:
        self.local_rank_id, self.proc = local_rank, proc

    def close(self, death_sig: Optional[int] = None) -> None:
        os.killpg(self.proc.pid, death_sig or signal.SIGTERM)
