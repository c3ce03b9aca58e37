"""One pod: a keeper, the agent it keeps, and everything that agent starts."""

import asyncio
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from torchyard.api import launch
from torchyard.api.exit_codes import ExitCode
from torchyard.api.files import read_end
from torchyard.api.reasons import Reason
from torchyard.api.resource import TrainingJob
from torchyard.local import record
from torchyard.local.process import ProcessId, kill_carrying
from torchyard.local.record import POD_MARK, Exit, PodRecord, Running
from torchyard.local.run import RunFolder, is_locked, take_lock, write_atomic
from torchyard.local.template import PodProcesses, Template
from torchyard.reconcile.observed import Pod

KEEPER = Path(__file__).with_name("keeper.py")
SIGNALLED = 128
KILLED = SIGNALLED + signal.SIGKILL
_INFO = re.compile(r"[\d-]+ [\d:,]+ INFO ")
_KEEPER_START_SECONDS = 10.0
_KEEPER_END_SECONDS = 5.0

_POLL_SECONDS = 0.05


class LocalPod:
    """A pod of this machine, started by this process or by a controller before it.

    Args:
        folder: of the pod.
        written: `pod.json`.
        node: name of the machine; by default, each pod is a node of its own.
    """

    def __init__(self, folder: Path, written: PodRecord, node: str = "") -> None:
        self.folder = folder
        self.node = node or f"local-{written.index}"
        self.record = written
        self.waiting: tuple[str, str] | None = None  # reason and message, as long as it may not start
        self.running: Running | None = None
        self.exit: Exit | None = None
        self.why = ""  # reason code of how it ended, where the exit code does not say it
        self.message = ""
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def over(self) -> bool:
        """Whether nothing of it lives."""
        return self.exit is not None

    @property
    def begun(self) -> bool:
        """Whether a start of its processes was ever tried."""
        return self._lock.exists()

    @property
    def _lock(self) -> Path:
        return self.folder / "lock"

    def view(self) -> Pod:
        """Return the pod as the plan sees it."""
        pod, code = self.record, self.exit.code if self.exit else None
        if self.exit is not None:
            phase = "Succeeded" if code == 0 else "Failed"
        else:
            phase = "Pending" if self.running is None else "Running"
        reason, message = (self.waiting or ("", "")) if phase == "Pending" else (self.why, self.message)
        return Pod(
            uid=pod.uid,
            name=pod.name,
            index=pod.index,
            incarnation=pod.incarnation,
            phase=phase,  # type: ignore[arg-type]
            node=self.node,
            address=pod.address,
            created=pod.created,
            started=self.running.time if self.running else None,
            finished=self.exit.time if self.exit else None,
            deleting=pod.deletion is not None,
            exit_code=code,
            reason=reason,
            message=message,
        )

    def write(self, written: PodRecord) -> None:
        """Replace `pod.json`."""
        record.write(self.folder / "pod.json", written)
        self.record = written

    def prepare(self, job: TrainingJob, runs: Path | None = None) -> tuple[str | None, str]:
        """Write everything the pod reads. Blocks; call in a thread.

        Args:
            job: the job.
            runs: folder of the runs whose checkpoints a job may continue from; None: the one of this run.

        Returns:
            Path of the inline script, if the job has one, and the pod's token.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "run").mkdir(parents=True)
        (self.folder / "logs").mkdir()
        token = secrets.token_urlsafe(32)
        write_atomic(self.folder / "token", token.encode())
        known = runs or self.folder.parents[2]
        config = launch.trainer_config(job, lambda name: str(RunFolder(known / name).checkpoints))
        write_atomic(self.folder / "config.json", msgspec.json.encode(config))
        script = None
        if job.spec.script is not None:
            script = self.folder / "script.py"
            write_atomic(script, job.spec.script.encode())
        self.write(self.record)
        return (str(script) if script else None), token

    async def start(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        devices: Mapping[str, int] | None = None,
        template: Template | None = None,
    ) -> None:
        """Start the keeper, which starts `command`, and wait until it has written down who they are.

        Args:
            command: argument vector of the agent.
            env: its whole environment.
            cwd: its working directory.
            devices: lock descriptors of the GPUs that are the pod's until it ends; the caller closes its own.
            template: the process that the pod is to be forked from, if there is one.

        Raises:
            ValueError: the command or the environment cannot be handed to any process.
            OSError: the processes cannot be started now.
        """
        lock = take_lock(self._lock)
        assert lock is not None, "a pod is started once"
        kept = [lock, *(devices or {}).values()]
        keeper = [sys.executable, "-I", "-S", str(KEEPER), str(self.folder)]
        pod = PodProcesses(keeper, list(command), dict(env), str(cwd))
        try:
            if template is None or not await asyncio.to_thread(self._fork, template, pod, kept):
                self._child = await asyncio.to_thread(self._spawn, pod, kept)
        except ValueError as error:
            raise ValueError(
                f"The arguments or variables of the job cannot be handed to a process: {error}."
            ) from error
        finally:
            os.close(lock)
        await self._started()

    def _fork(self, template: Template, pod: PodProcesses, kept: Sequence[int]) -> bool:
        lock, *devices = kept
        with self._log() as log:
            started = template.start(pod, [lock, log.fileno(), *devices])
        if not started:
            kill_carrying(POD_MARK, self.record.uid)  # nothing, unless it was killed in between
        return started

    def _spawn(self, pod: PodProcesses, kept: Sequence[int]) -> subprocess.Popen[bytes]:
        with self._log() as log:
            return subprocess.Popen(
                [*pod.keeper, str(kept[0]), *pod.agent],
                env=pod.env,
                cwd=pod.cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # what workers print is in their own logs
                stderr=log,
                pass_fds=kept,
                start_new_session=True,
            )

    def _log(self) -> BinaryIO:
        return (self.folder / "logs" / "pod.log").open("ab")  # its agent cuts it when it is long

    async def adopt(self) -> None:
        """Take up a pod of a former controller: running, over, or lost between the two."""
        if self.record.never_started:
            self.fail(ExitCode.CONFIG, Reason.CONFIGURATION_INVALID, self.record.never_started)
        elif is_locked(self._lock):
            await self._started()
        else:
            await self._conclude()

    async def wait(self) -> None:
        """Return when nothing of the pod lives and how it ended is known."""
        if self.over:
            return
        assert self.running is not None
        await ended(self.running.keeper)
        if self._child is not None:
            await asyncio.to_thread(self._child.wait)
        await until(lambda: not is_locked(self._lock))
        await self._conclude()

    async def stop(self, grace_seconds: float) -> None:
        """Send SIGTERM to the agent, and SIGKILL to everything after `grace_seconds`; return when nothing lives."""
        if self.over or self.running is None:
            return
        self.running.agent.kill(signal.SIGTERM)
        if not await within(grace_seconds, ended(self.running.keeper)):
            await self.kill()

    async def kill(self) -> None:
        """Kill everything of the pod with SIGKILL; return when nothing lives."""
        if self.over or self.running is None:
            return
        self.running.agent.kill(signal.SIGKILL)
        if not await within(_KEEPER_END_SECONDS, ended(self.running.keeper)):
            self.running.keeper.kill(signal.SIGKILL)
        await ended(self.running.keeper)
        await asyncio.to_thread(kill_carrying, POD_MARK, self.record.uid)

    def remove(self) -> None:
        """Delete the files of a pod whose object is gone; its logs stay."""
        (self.folder / "pod.json").unlink(missing_ok=True)
        (self.folder / "token").unlink(missing_ok=True)
        shutil.rmtree(self.folder / "run", ignore_errors=True)

    def fail(self, code: int, reason: str, message: str) -> None:
        """Record the end of a pod without a process that could report it."""
        self.exit = Exit(code=code, time=time.time())
        self.why, self.message = reason, message

    async def fail_to_start(self, error: Exception) -> None:
        """Clean up after a failed start and record it. A `ValueError` is an error of the job."""
        if self._child is not None:
            self._child.kill()
            await asyncio.to_thread(self._child.wait)
        await asyncio.to_thread(kill_carrying, POD_MARK, self.record.uid)
        if not isinstance(error, ValueError):
            self.fail(KILLED, Reason.POD_FAILED, f"The pod's processes could not be started: {error}.")
            return
        self.fail(ExitCode.CONFIG, Reason.CONFIGURATION_INVALID, str(error))
        with suppress(OSError):
            self.write(msgspec.structs.replace(self.record, never_started=str(error)))

    async def _started(self) -> None:
        """Read what the keeper writes first; a keeper that dies before that is a pod that failed."""
        path = self.folder / "process.json"
        await within(_KEEPER_START_SECONDS, until(lambda: path.exists() or not is_locked(self._lock), 0.005))
        self.running = record.read(path, Running)
        if self.running is None:
            if self._child is not None:
                self._child.kill()
                self._child.wait()
            await self._conclude()

    async def _conclude(self) -> None:
        """Kill what a keeper that is gone left behind, and read how the pod ended."""
        await asyncio.to_thread(kill_carrying, POD_MARK, self.record.uid)
        self.exit = record.read(self.folder / "exit.json", Exit)
        if self.exit is None:
            self.fail(KILLED, Reason.POD_LOST, "The pod's processes vanished: they were killed from outside.")
        elif self.exit.code != 0:
            self.message = _killed_by(self.exit.code) or _last_words(self.folder / "logs" / "pod.log")


def _killed_by(code: int) -> str:
    """Return the signal that ended the agent; "" if it ended itself, which it also does with 143."""
    if code <= SIGNALLED or code == SIGNALLED + signal.SIGTERM:
        return ""
    try:
        name = signal.Signals(code - SIGNALLED).name
    except ValueError:
        name = f"signal {code - SIGNALLED}"
    return f"its agent was killed by {name}"


def _last_words(path: Path, most: int = 500) -> str:
    """Return the last line that the agent wrote to its standard error, without its INFO lines."""
    try:
        lines = read_end(path, 4096).decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    said = ("".join(filter(str.isprintable, line)) for line in reversed(lines))
    return next((text for text in said if text and not _INFO.match(text)), "")[:most]


async def ended(process: ProcessId) -> None:
    """Wait until the process has ended, also of another parent, without polling where the kernel can tell us."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    except (OSError, AttributeError):
        await until(lambda: not process.alive(), _POLL_SECONDS)
        return
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_reader(descriptor, over.set)
    try:
        if process.alive():
            await over.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def until(condition: Callable[[], Any], every: float = _POLL_SECONDS) -> None:
    """Wait for something that only a look can tell."""
    while not condition():  # noqa: ASYNC110 - nothing in this process sets an event for it
        await asyncio.sleep(every)


async def within(seconds: float, awaitable: Awaitable[object]) -> bool:
    """Return whether `awaitable` came to its end in time; it is cancelled if not."""
    try:
        async with asyncio.timeout(seconds):
            await awaitable
    except TimeoutError:
        return False
    return True
