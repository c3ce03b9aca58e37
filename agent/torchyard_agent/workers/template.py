"""The template: on one machine, imports torch once for many pods, whose zygotes are forked from it.

A pod's processes descend from each other: the keeper starts the agent, the agent its zygote. Since only a fork of this
process has torch imported, it forks the keeper, which forks the agent, which forks the zygote; then keeper and agent
execute their programs. The agent finds its zygote by TORCHYARD_ZYGOTE (see `zygote_client.py`).

A request is a connection to the listening socket: four bytes of length and a JSON object, with the descriptors of the
pod. The answer is `{"accepted": true}` once the imports are done; then the caller sends one byte, and the keeper
answers `{"started": PID}`. Whatever else happens, the caller starts the pod itself.

It ends with its owner, whose pidfd it has, or once it was not asked for the given seconds, and deletes its folder. It
answers only its own user.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, NoReturn, Optional, Sequence, Tuple

from torchyard_agent.settings import Settings
from torchyard_agent.telemetry.gpus import Gpus
from torchyard_agent.workers import zygote
from torchyard_agent.workers.command import Torchrun, classify, torchrun_interpreter
from torchyard_agent.workers.environment import worker_environment, write_hooks, zygote_environment
from torchyard_agent.workers.process import die_with_parent, reaped
from torchyard_agent.workers.titles import name_process, own_memory
from torchyard_agent.workers.zygote_client import INHERITED, python_code

NOTHING_TO_IMPORT = 3
"""Exit code: the command is not one that a zygote serves."""

_MARK = "TORCHYARD_POD_UID"
_MOST_BYTES = 8 << 20
_MOST_DESCRIPTORS = 64
_SECONDS = 30.0  # for one message of a caller
_ENV_START = 49  # index in /proc/self/stat, counted from 0


def execute(first: Sequence[str], settings: Settings) -> NoReturn:
    """Become the template, in the environment and on the interpreter that zygotes of such pods have.

    Args:
        first: descriptor of the listening socket, in a private folder (`settings.run_dir`); pidfd of the process that
            it ends with; seconds without a request after which it ends as well, 0 for no such limit.
        settings: of one of the pods.
    """
    kind = classify(settings.command, torchrun_interpreter(settings.command[0]))
    if not isinstance(kind, Torchrun) or not settings.warm_start:
        sys.exit(NOTHING_TO_IMPORT)
    gpus = Gpus()
    gpus.start()
    count = gpus.count()
    write_hooks(settings)
    workers = worker_environment(os.environ, settings, "", settings.run_dir / "none", count)
    env = zygote_environment(workers, settings.procs or count or 1)
    arguments = [*first, kind.interpreter, f"{settings.warm_seconds:g}", *settings.preload]
    os.execvpe(  # noqa: S606 - an argument vector, no shell
        kind.interpreter, [kind.interpreter, "-u", "-c", python_code("workers.template"), *arguments], env
    )


def main() -> None:
    """Import what zygotes import, then fork pods on request."""
    listening, owner = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    for descriptor in (listening.fileno(), owner):
        os.set_inheritable(descriptor, False)
    unused = float(sys.argv[3]) or None
    made_for = zygote.Origin(sys.argv[4], tuple(sys.argv[6:]), dict(os.environ))
    name_process("ty-template")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: list(reaped()))  # keepers: their processor time becomes this process's
    mark = _place_of_mark()
    signal.alarm(max(1, int(float(sys.argv[5]) * (1 + len(made_for.preload)))))  # an import that hangs ends it
    failed = zygote.import_all(made_for.preload, lambda _message: None)
    signal.alarm(0)
    if failed or mark is None:
        sys.exit(failed or "the environment of this process cannot be found in its memory")
    zygote.settle()
    imported, template = _imported_files(), os.getpid()
    while os.getpid() == template:
        ready, _, _ = select.select([listening.fileno(), owner], [], [], unused)
        changed = _imported_files() != imported
        if not ready or owner in ready or changed:
            listening.close()
            shutil.rmtree(os.environ["TORCHYARD_RUN_DIR"], ignore_errors=True)
            sys.exit("what it has imported changed: the next template imports that again" if changed else 0)
        forked = _serve(listening, mark)
        if forked is not None:
            os.close(owner)
            listening.close()
            zygote.inherited(forked, made_for)
            return


def _imported_files() -> Dict[str, Tuple[int, int, int]]:
    """Return identity, size and time of each file that a module was imported from, and of the interpreter."""
    names: List[Any] = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    files = {}
    for name in (sys.executable, *names):
        with contextlib.suppress(OSError, TypeError):  # of an archive, of no file, or gone: then it differs
            status = Path(name).stat()
            files[str(name)] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return files


class _Request(NamedTuple):
    """A pod to start, and the descriptors that came with it: its lock, its log and what it holds besides."""

    keeper: List[str]
    agent: List[str]
    env: Dict[str, str]
    cwd: str
    descriptors: List[int]


def _serve(listening: socket.socket, mark: int) -> Optional[socket.socket]:
    """Serve one caller; return in the zygote of its pod, with the socket of its agent."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        connection, _ = listening.accept()
        descriptors: List[int] = []
        with connection:
            if not _is_own_user(connection):
                return None
            try:
                connection.settimeout(_SECONDS)
                request = _received(connection, descriptors)
                connection.sendall(b'{"accepted": true}\n')
                if request is None or connection.recv(1) != b"\x01":
                    return None
                return _fork_keeper(request, connection, mark)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
    return None


def _is_own_user(connection: socket.socket) -> bool:
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user == os.geteuid())


def _received(connection: socket.socket, descriptors: List[int]) -> Optional[_Request]:
    """Return the request; None if the caller only waits for the imports."""
    data, ancillary, _, _ = connection.recvmsg(65536, socket.CMSG_SPACE(_MOST_DESCRIPTORS * 4), socket.MSG_CMSG_CLOEXEC)
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors += memoryview(payload[: len(payload) // 4 * 4]).cast("i").tolist()
    while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
        more = connection.recv(65536)
        if not more or len(data) > _MOST_BYTES:
            raise ValueError("cut short, or too long")
        data += more
    said = json.loads(data[4:])
    if not said:
        return None
    return _Request(said["keeper"], said["agent"], said["env"], said["cwd"], descriptors)


def _fork_keeper(request: _Request, connection: socket.socket, mark: int) -> Optional[socket.socket]:
    if os.fork():
        return None
    # From here on this is a process of the pod: it becomes the keeper, or ends.
    agent = 0
    try:
        os.setsid()
        ctypes.memmove(mark, os.fsencode(request.env[_MARK]), len(request.env[_MARK]))
        for number in (signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.chdir(request.cwd)
        lock, log, *others = request.descriptors
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor, target in ((null, 0), (null, 1), (log, 2)):
            os.dup2(descriptor, target)
        zygote_end, agent_end = socket.socketpair()
        keeper = os.getpid()
        agent = os.fork()
        if agent == 0:
            os.setsid()
            die_with_parent(signal.SIGKILL, keeper)
            os.close(lock)  # only the keeper holds it
            me = os.getpid()
            child = os.fork()
            if child == 0:
                die_with_parent(signal.SIGKILL, me)
                agent_end.close()
                request.descriptors.remove(lock)  # closed already; the caller closes the others
                return zygote_end
            for descriptor in (agent_end.fileno(), *others):
                os.set_inheritable(descriptor, True)
            inherited = {INHERITED: f"{agent_end.fileno()}:{child}"}
            _execute(request.agent, {**request.env, **inherited})
        for descriptor in (lock, *others):
            os.set_inheritable(descriptor, True)
        connection.sendall(json.dumps({"started": keeper}).encode() + b"\n")
        _execute([*request.keeper, str(lock), "--started", str(agent)], request.env)
    except BaseException as error:  # noqa: BLE001 - the last frame of the keeper; its caller starts the pod itself
        with contextlib.suppress(OSError):
            connection.sendall(json.dumps({"failed": str(error)}).encode() + b"\n")
    os._exit(127)


def _execute(command: List[str], env: Dict[str, str]) -> NoReturn:
    try:
        os.execvpe(command[0], command, env)  # noqa: S606 - an argument vector, no shell
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _place_of_mark() -> Optional[int]:
    """Return the address of the pod's uid in this process's environment, as /proc/PID/environ shows it.

    Forks overwrite it in place: by it, the processes that a pod leaves behind are found.
    """
    place = own_memory(_ENV_START)
    if place is None:
        return None
    wanted = f"{_MARK}={os.environ[_MARK]}".encode()
    found = ctypes.string_at(*place).split(b"\0")
    if wanted not in found:
        return None
    before = sum(len(each) + 1 for each in found[: found.index(wanted)])
    return place[0] + before + len(_MARK) + 1


if __name__ == "__main__":
    main()
