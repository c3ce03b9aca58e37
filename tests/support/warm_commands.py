"""Commands without the time of their imports: each is forked from a process that has made them.

A command has its own process, words, environment, folder and files, as if it had been started. What an interpreter
reads when it starts cannot be changed in a fork, so a command whose environment differs there has to be started.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NoReturn

# What runs -> the module with its function `main`, and the packages and modules that its commands may import. What only
# `torchyard operator` imports is heavy.
PROGRAMS = {
    "torchyard": (
        "torchyard.cli.main",
        (
            "torchyard.cli",
            "torchyard.client",
            "torchyard.kubernetes",
            "torchyard.local",
            "torchyard.sweeps",
            "rich.live",
        ),
    ),
    "cluster": (
        "torchyard.cli.main",
        ("torchyard.app", "torchyard.cli", "torchyard.client", "torchyard.kubernetes", "torchyard.sweeps", "rich.live"),
    ),
    "torchyard_trainers": (
        "torchyard_trainers.core.command",
        ("torchyard_trainers.preload", "torchyard_trainers.core.memory.plan"),
    ),
    "workloads": (
        "torchyard_trainers.core.command",
        (
            "torchyard_trainers.preload",
            *(f"torchyard_trainers.{name}.task" for name in ("lm", "vla", "vlm")),
            *(f"transformers.models.{name}.modeling_{name}" for name in ("pi0", "qwen2_vl", "qwen3")),
        ),
    ),
}
LARGEST = 1 << 18  # bytes of a request
READ_AT_START = ("PYTHON", "LANG", "LC_", "TZ", "LD_", "MALLOC_", "GLIBC_", "OMP_")


class WarmCommands:
    """Runs commands of a program. The process that they are forked from starts with the first, and ends with ours."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._started_with: Mapping[str, str] = {}

    def can_run(self, environment: Mapping[str, str]) -> bool:
        """Return whether a fork is what a command with this environment would be."""
        return self._server is None or _read_at_start(environment) == _read_at_start(self._started_with)

    def run(
        self, words: list[str], folder: Path, environment: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a command without input; return its exit code and output, as `subprocess.run` does."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            command = self.start(words, folder, environment, out, err)
            try:
                code = command.wait(timeout)
            except subprocess.TimeoutExpired:
                command.kill()
                raise
            outputs = [file.read().decode() for file in (out, err) if file.seek(0) == 0]
        return subprocess.CompletedProcess(words, code, *outputs)

    def start(
        self, words: list[str], folder: Path, environment: Mapping[str, str], out: IO[bytes], err: IO[bytes]
    ) -> "WarmCommand":
        """Start a command without input that writes to these files, outside of the session of this process."""
        answers, theirs = os.pipe()
        try:
            request = json.dumps([words, str(folder), dict(environment)]).encode()
            with self._lock:
                socket.send_fds(self._connected(environment), [request], [out.fileno(), err.fileno(), theirs])
        finally:
            os.close(theirs)
        return WarmCommand(words, answers)

    def _connected(self, environment: Mapping[str, str]) -> socket.socket:
        if self._socket is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                command = [sys.executable, "-P", __file__, self._program, str(theirs.fileno())]
                # Ctrl-C is for the tests: the server ends with them.
                self._server = subprocess.Popen(
                    command, env=environment, pass_fds=[theirs.fileno()], start_new_session=True
                )
                self._started_with = dict(environment)
        return self._socket


class WarmCommand:
    """A command that was started, with what `subprocess.Popen` has for one process.

    Args:
        words: of the command.
        answers: a pipe to which the server writes the process id, and later the exit code. Closed with this object.
    """

    def __init__(self, words: list[str], answers: int) -> None:
        self.args = words
        self.returncode: int | None = None
        self._lock = threading.Lock()
        # Closed by the finalizer, since a file object that nobody closes would warn.
        self._answers = open(answers, "rb", buffering=0, closefd=False)  # noqa: SIM115
        weakref.finalize(self, os.close, answers)
        self.pid = int(self._answers.readline())

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs; negative: the signal that ended it."""
        return self._code(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not after so many seconds.
        """
        code = self._code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _code(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._answers], [], [], timeout)[0]:
            with self._lock:  # of threads that wait at once, one reads
                if self.returncode is None:
                    self.returncode = int(self._answers.readline())
        return self.returncode


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_AT_START)}


def serve(requests: socket.socket, program: str) -> list[str]:
    """Fork a process for each request; return the words of a command in its process. Exit when no more can come."""
    running: dict[int, tuple[int, int]] = {}  # by pidfd: process, pipe for the answer
    while True:
        for ready in select.select([requests, *running], [], [])[0]:
            if ready is not requests:
                pid, answers = running.pop(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                os.write(answers, b"%d\n" % code)
                os.close(answers)
                os.close(ready)
                continue
            request, files, _, _ = socket.recv_fds(requests, LARGEST, 3)
            if not request:
                for pid, _ in running.values():
                    os.kill(pid, signal.SIGKILL)
                sys.exit()
            out, err, answers = files
            if not (pid := os.fork()):
                words, folder, environment = json.loads(request)
                become([program, *words], folder, environment, out, err)
                return words
            os.write(answers, b"%d\n" % pid)
            running[os.pidfd_open(pid)] = pid, answers
            os.close(out)
            os.close(err)


def become(arguments: list[str], folder: str, environment: dict[str, str], out: int, err: int) -> None:
    """Take over what a command was asked to have."""
    for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), out, err)):
        os.dup2(file, number)
    for file in list(Path("/proc/self/fd").iterdir()):
        if int(file.name) > 2:
            with contextlib.suppress(OSError):  # that of the listing
                os.close(int(file.name))
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    for name, number in (("stdout", 1), ("stderr", 2)):
        old = getattr(sys, name)
        new = open(number, "w", encoding=old.encoding, errors=old.errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = arguments


def leave(code: int) -> NoReturn:
    """End as an interpreter does, without taking all modules apart: that would copy every page that forks share."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()  # as multiprocessing does in a fork
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def import_all(names: Sequence[str]) -> None:
    """Import what commands import, and exempt it from collections, which would copy every page that forks share."""
    gc.disable()
    for name in names:
        for module in pkgutil.walk_packages(getattr(importlib.import_module(name), "__path__", ()), f"{name}."):
            importlib.import_module(module.name)
    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    program, number = sys.argv[1:]
    entry, imported = PROGRAMS[program]
    import_all(imported)
    leave(importlib.import_module(entry).main(serve(socket.socket(fileno=int(number)), program)))
