"""Templates: one process that has imported torch for many pods of this machine, each of which is forked from it.

The agent's package has the process itself (`torchyard_agent/workers/template.py`). Here it is started, found again by
what its imports depend on, and asked. Whatever goes wrong, the pod is started without it and imports torch itself.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from torchyard.api import launch
from torchyard.api.resource import TrainingJob
from torchyard.local.record import POD_MARK

_MOST_BYTES = 1 << 20  # of command and environment: what is larger may be too large for any process
_MOST_LOST = 3  # templates that end by themselves; after that many there is no other one
_SECONDS = 60.0  # for an answer
_PLACEHOLDER = "0" * 36  # as long as the uid of a pod, which takes its place in a fork


class PodProcesses(msgspec.Struct, frozen=True):
    """The first processes of a pod: commands of keeper (but for the number of the lock) and agent."""

    keeper: list[str]
    agent: list[str]
    env: dict[str, str]
    cwd: str


class Template:
    """A template that this process has started.

    Args:
        folder: its own, private to this user.
        process: the template.
    """

    def __init__(self, folder: Path, process: "subprocess.Popen[bytes]") -> None:
        self._folder, self._process = folder, process

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    async def imported(self) -> bool:
        """Wait for its imports; return whether it serves."""
        try:
            reader, writer = await asyncio.open_unix_connection(self._folder / "socket")
            try:
                writer.write(_framed({}))
                return _says(await reader.readline(), "accepted")
            finally:
                writer.close()
        except OSError:
            return False

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
            connection.connect(str(self._folder / "socket"))
            sent = socket.send_fds(connection, [request], list(descriptors))
            connection.sendall(request[sent:])
            with connection.makefile("rb") as answers:
                if _says(answers.readline(), "accepted"):
                    connection.sendall(b"\x01")
                    if _says(answers.readline(), "started"):
                        return True
        self.close()  # it can start no pod any more that is started without it now
        return False

    def close(self) -> None:
        """End it, and delete its folder. Pods that it has started go on."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


class Templates:
    """The templates of one process that controls runs.

    Args:
        for_any: also for a job of one node: others like it will follow.
    """

    def __init__(self, *, for_any: bool = False) -> None:
        self._for_any = for_any
        self._found: dict[str, asyncio.Task[Template | None]] = {}
        self._lost = 0

    async def of(
        self, job: TrainingJob, agent: Path, command: Sequence[str], env: Mapping[str, str], cwd: Path
    ) -> Template | None:
        """Return the template of the pods of a job, once its imports are done; None: they are started without one.

        Args:
            job: the job.
            agent: the agent's archive.
            command: of the workers.
            env: environment of one of the pods.
            cwd: working directory of the pods.
        """
        if (job.spec.nodes == 1 and not self._for_any) or not launch.is_warm(job.spec):
            return None
        if job.spec.gpus_per_node:  # each pod sees other devices, and what is imported may look at them
            return None
        config = launch.trainer_config(job, lambda name: name) if job.spec.trainer is not None else {}
        read = {"trainer": {"name": config.get("trainer", {}).get("name")}, "parallelism": config.get("parallelism")}
        key = _key(agent, command[0], _shared(env), cwd, read)
        task = self._found.get(key)
        found = await asyncio.shield(task) if task is not None else None
        if task is self._found.get(key) and (task is None or (found is not None and self._lose(found))):
            self._found[key] = asyncio.create_task(_started(agent, command, env, cwd, read))
        found = await asyncio.shield(self._found[key])
        return found if found is not None and found.alive else None

    def _lose(self, found: Template) -> bool:
        """Return whether another template is worth starting in the place of one: it has ended, and few others have."""
        if found.alive or self._lost == _MOST_LOST:
            return False
        self._lost += 1
        return True

    async def close(self) -> None:
        """End all of them. Their pods go on."""
        for task in self._found.values():
            task.cancel()
        for ended in await asyncio.gather(*self._found.values(), return_exceptions=True):
            if isinstance(ended, Template):
                await asyncio.to_thread(ended.close)
        self._found.clear()


async def _started(
    agent: Path, command: Sequence[str], env: Mapping[str, str], cwd: Path, config: dict[str, Any]
) -> Template | None:
    starting = asyncio.create_task(asyncio.to_thread(begun, agent, command, env, cwd, config))
    served = False
    try:
        template = await asyncio.shield(starting)
        served = await template.imported()
    except (OSError, ValueError):
        return None
    finally:
        if not served:  # also when this is cancelled
            with contextlib.suppress(OSError, ValueError):
                await asyncio.to_thread((await starting).close)
    return template if served else None


def begun(agent: Path, command: Sequence[str], env: Mapping[str, str], cwd: Path, config: dict[str, Any]) -> Template:
    """Start a template, which imports from now on. Blocks; call in a thread.

    Args:
        agent: the agent's archive.
        command: of the workers.
        env: environment of one of the pods.
        cwd: working directory of the pods.
        config: what `TORCHYARD_CONFIG` has to hold for the imports.

    Raises:
        OSError, ValueError: it cannot be started.
    """
    folder = Path(tempfile.mkdtemp(prefix="torchyard-"))  # 0700
    try:
        (folder / "config.json").write_bytes(msgspec.json.encode(config))
        own = {
            **env,
            POD_MARK: _PLACEHOLDER,
            "TORCHYARD_RUN_DIR": str(folder),
            "TORCHYARD_LOG_DIR": str(folder),
            "TORCHYARD_CONFIG": str(folder / "config.json"),
            "TORCHYARD_CHECKPOINT_DIR": str(folder),
            "TORCHYARD_TERMINATION_LOG": str(folder / "termination.json"),
        }
        with socket.socket(socket.AF_UNIX) as listening, (folder / "log").open("wb") as log:
            listening.bind(str(folder / "socket"))
            listening.listen()
            owner = os.pidfd_open(os.getpid())
            try:
                words = [sys.executable, str(agent), "template", str(listening.fileno()), str(owner), "--", *command]
                process = subprocess.Popen(
                    words,
                    env=own,
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    pass_fds=[listening.fileno(), owner],
                    start_new_session=True,
                )
            finally:
                os.close(owner)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Template(folder, process)


def _shared(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables on which imports may depend: all but those by which pods differ."""
    kept = {name: value for name, value in env.items() if not name.startswith("TORCHYARD_")}
    return {**kept, "TORCHYARD_PRELOAD": env.get("TORCHYARD_PRELOAD", "")}


def _key(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, default=str, sort_keys=True).encode()).hexdigest()


def _framed(request: dict[str, Any]) -> bytes:
    body = json.dumps(request).encode()
    return len(body).to_bytes(4, "big") + body


def _says(line: bytes, word: str) -> bool:
    try:
        return word in json.loads(line or b"{}")
    except ValueError:
        return False
