"""A template: a process that has imported torch for many pods of this machine, each of which is forked from it.

The agent's package has the process itself (`torchyard_agent/workers/template.py`). Here it is started and asked.
Whatever goes wrong, the pod is started without it and imports torch itself.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from torchyard.local import record
from torchyard.local.process import ProcessId, identify
from torchyard.local.record import POD_MARK

PROCESS = "process.json"
"""A file in a template's folder: its process. When it was last changed is when the template was last used."""

_MOST_BYTES = 1 << 20  # of command and environment: what is larger may be too large for any process
_SECONDS = 60.0  # for an answer
_LOOK_SECONDS = 1.0  # between looks at a template that has not answered yet
_PLACEHOLDER = "0" * 36  # as long as the uid of a pod, which takes its place in a fork


class PodProcesses(msgspec.Struct, frozen=True):
    """The first processes of a pod: commands of keeper (but for the number of the lock) and agent."""

    keeper: list[str]
    agent: list[str]
    env: dict[str, str]
    cwd: str


class Imports(msgspec.Struct, frozen=True):
    """What a template imports depends on.

    Attributes:
        agent: the agent's archive.
        command: of the workers.
        env: environment of one of the pods.
        cwd: working directory of the pods; None: nothing that is imported depends on it.
        config: what `TORCHYARD_CONFIG` has to hold.
    """

    agent: Path
    command: Sequence[str]
    env: Mapping[str, str]
    cwd: Path | None = None
    config: Mapping[str, Any] = {}


class Template:
    """A template that runs.

    Args:
        folder: its own, private to this user.
        process: the template.
        child: the same, where this process has started it.
    """

    def __init__(self, folder: Path, process: ProcessId, child: "subprocess.Popen[bytes] | None" = None) -> None:
        self._folder, self.process, self._child = folder, process, child

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self.process.alive() if self._child is None else self._child.poll() is None

    @property
    def ended_by_itself(self) -> bool:
        """Whether it ended since no pod needed it, as far as this process can know."""
        return self._child is not None and self._child.poll() == 0

    def note_use(self) -> None:
        """Note that it is used now."""
        with contextlib.suppress(FileNotFoundError):  # it has ended
            os.utime(self._folder / PROCESS, ns=(time.time_ns(),) * 2)

    def last_use(self) -> int:
        """Return when it was last used, in nanoseconds since 1970; 0: it has ended."""
        with contextlib.suppress(FileNotFoundError):
            return (self._folder / PROCESS).stat().st_mtime_ns
        return 0

    async def imported(self) -> bool:
        """Wait for its imports; return whether it serves. One that was stopped by a signal is killed."""
        try:
            with _address(self._folder) as address:
                reader, writer = await asyncio.open_unix_connection(address)
        except OSError:
            return False
        answer = asyncio.create_task(reader.readline())
        try:
            writer.write(_framed({}))
            while not (await asyncio.wait([answer], timeout=_LOOK_SECONDS))[0]:
                if self.process.stopped():
                    await asyncio.to_thread(self.close)
                    return False
            return _contains(answer.result(), "accepted")
        except OSError:
            return False
        finally:
            answer.cancel()
            writer.close()

    def start(self, pod: PodProcesses, descriptors: Sequence[int]) -> bool:
        """Start a pod; return whether its keeper was started. Blocks; call in a thread.

        Args:
            pod: what to start.
            descriptors: the pod's lock, its log, and what else keeper and agent hold.
        """
        given = [*pod.agent, *pod.env, *pod.env.values()]
        if any("\0" in each for each in given) or sum(map(len, given)) > _MOST_BYTES:
            return False
        request = _framed(msgspec.to_builtins(pod))
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_SECONDS)
            with _address(self._folder) as address:
                connection.connect(address)
            sent = socket.send_fds(connection, [request], list(descriptors))
            connection.sendall(request[sent:])
            if _contains(self._answer(connection), "accepted"):
                connection.sendall(b"\x01")
                if _contains(self._answer(connection), "started"):
                    self.note_use()
                    return True
        self.close()  # it can start no pod any more that is started without it now
        return False

    def _answer(self, connection: socket.socket) -> bytes:
        """Return the next line; b"" where none comes."""
        connection.settimeout(_LOOK_SECONDS)
        deadline = time.monotonic() + _SECONDS
        line = b""
        while not line.endswith(b"\n"):
            try:
                more = connection.recv(4096)
            except TimeoutError:
                if self.process.stopped() or time.monotonic() > deadline:
                    return b""
                continue
            if not more:
                return b""
            line += more
        return line

    def close(self) -> None:
        """End it, and delete its folder. Pods that it has started go on."""
        self.process.kill(signal.SIGKILL)
        if self._child is not None:
            self._child.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def begun(
    imports: Imports, folder: Path | None = None, *, owner: ProcessId | None = None, unused: float = 0
) -> Template:
    """Start a template, which imports from now on. Blocks; call in a thread.

    Args:
        imports: what for.
        folder: empty, and private to this user; a new one by default. The template deletes it.
        owner: the process that it ends with; this one by default.
        unused: seconds without a request after which it ends as well; 0: never.

    Raises:
        OSError, ValueError: it cannot be started.
    """
    folder = folder or Path(tempfile.mkdtemp(prefix="torchyard-"))  # 0700
    child = None
    try:
        (folder / "config.json").write_bytes(msgspec.json.encode(imports.config))
        own = {
            **imports.env,
            POD_MARK: _PLACEHOLDER,
            "TORCHYARD_RUN_DIR": str(folder),
            "TORCHYARD_LOG_DIR": str(folder),
            "TORCHYARD_CONFIG": str(folder / "config.json"),
            "TORCHYARD_CHECKPOINT_DIR": str(folder),
            "TORCHYARD_TERMINATION_LOG": str(folder / "termination.json"),
        }
        with socket.socket(socket.AF_UNIX) as listening, (folder / "log").open("wb") as log:
            with _address(folder) as address:
                listening.bind(address)
            listening.listen()
            watched = os.pidfd_open(os.getpid() if owner is None else owner.pid)
            try:
                if owner is not None and not owner.alive():
                    raise ProcessLookupError(f"process {owner.pid} has ended")
                words = [str(imports.agent), "template", str(listening.fileno()), str(watched), f"{unused:g}", "--"]
                child = subprocess.Popen(
                    [sys.executable, *words, *imports.command],
                    env=own,
                    cwd=imports.cwd or folder,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    pass_fds=[listening.fileno(), watched],
                    start_new_session=True,
                )
            finally:
                os.close(watched)
        process = identify(child.pid)
        assert process is not None  # this process has not waited for it
        record.write(folder / PROCESS, process)
    except BaseException:
        if child is not None:
            child.kill()
            child.wait()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Template(folder, process, child)


@contextlib.contextmanager
def _address(folder: Path) -> Iterator[str]:
    """Yield the path of a template's socket, short wherever `TMPDIR` is: the address of a socket has 108 bytes."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/socket"
    finally:
        os.close(descriptor)


def _framed(request: dict[str, Any]) -> bytes:
    body = json.dumps(request).encode()
    return len(body).to_bytes(4, "big") + body


def _contains(line: bytes, word: str) -> bool:
    try:
        return word in json.loads(line or b"{}")
    except ValueError:
        return False
