"""The warm zygote: has torch imported, never touched CUDA, has one thread; forks a launcher for each round.

`torch._dynamo`, which the first optimizer step of a program imports, takes longer than torch itself, and many programs
never need it. It is imported once nothing has been asked for a while, so that the first round does not wait for it and
later rounds have it.

Speaks lines of JSON with the agent over a socket: in `{"spec": PATH}`, out `{"importing": NAME}`, `{"ready": ...}`,
`{"started": PID}`, `{"ended": PID, "status": N}`, `{"failed": REASON}`. It ends when the agent does.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any, Dict, List, NoReturn, Optional

from torchyard_agent.workers import interpreter_end, launcher, worker
from torchyard_agent.workers.forks import Forked, fork_ahead
from torchyard_agent.workers.process import die_with_parent, reaped, release_file_pages, thread_count
from torchyard_agent.workers.titles import name_process

_ALWAYS = ("torch", "torch.distributed.run", "torch.distributed.launcher.api", "torch.optim")
_WHEN_IDLE = "torch._dynamo"
_IDLE_SECONDS = 15.0  # without a message: short jobs are over by then


def main() -> None:
    """Serve the agent on the socket whose descriptor is the first argument; the others are modules to import."""
    agent = socket.socket(fileno=int(sys.argv[1]))
    die_with_parent(signal.SIGKILL, int(sys.argv[2]))
    name_process("ty-warm")
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    failed = _import(agent, sys.argv[3:])
    if failed:
        _say(agent, {"failed": failed})
        return
    _settle()
    _say(agent, {"ready": sys.executable})
    spec_path = _serve(agent, wake_read, wake_write)
    if spec_path is None:
        return  # the agent is gone; the kernel ends the launchers after us
    spec = json.loads(Path(spec_path).read_text(encoding="utf-8"))
    # Workers are forked from here, so that few frames of ours lie below those of a program.
    forks, command = fork_ahead(int(spec["procs"]))
    if command is not None:
        worker.run(command, hide_torch=not sys.argv[3:])
    name_process("ty-launcher", ["torchyard-launcher", spec_path])
    _launch(spec, forks)


def _import(agent: socket.socket, preload: List[str]) -> Optional[str]:
    gc.disable()  # until `_settle`: modules are no garbage, and to look for some is a quarter of the time
    for name in (*_ALWAYS, *preload):
        _say(agent, {"importing": name})
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - whatever an import does, the agent falls back to a cold start
            return f"import {name}: {type(error).__name__}: {error}"
    return _unfit_to_fork(preload)


def _import_when_idle() -> Optional[str]:
    """Return why this process cannot be forked any more; a module that cannot be imported is left to the programs."""
    gc.disable()  # until `_settle`
    try:
        importlib.import_module(_WHEN_IDLE)
    except Exception:  # noqa: BLE001 - a program that needs it shows the error
        return None
    finally:
        _settle()
    return _unfit_to_fork([_WHEN_IDLE])


def _unfit_to_fork(imported: List[str]) -> Optional[str]:
    torch: Any = sys.modules["torch"]
    if torch.cuda.is_initialized():
        return f"importing {', '.join(imported)} touched CUDA"
    if thread_count() > 1:
        return f"{thread_count()} threads after importing torch and {', '.join(imported) or 'nothing else'}"
    return None


def _settle() -> None:
    """Leave what is imported alone from here on: forks share it."""
    gc.collect()
    gc.enable()
    gc.freeze()  # a collection in a child would otherwise write to, and so copy, every shared page
    interpreter_end.remember_modules()
    release_file_pages()  # forks do not have them, and would look smaller than we to who kills the largest process


def _serve(agent: socket.socket, wake_read: int, wake_write: int) -> Optional[str]:
    """Fork a launcher whenever the agent asks for one; return its spec's path there, and None here in the end."""
    pending = b""
    watched: List[Any] = [agent, wake_read]
    unfit: Optional[str] = None
    timeout = None if _WHEN_IDLE in sys.modules else _IDLE_SECONDS
    while True:
        ready, _, _ = select.select(watched, [], [], timeout)
        if not ready:
            _say(agent, {"importing": _WHEN_IDLE})
            unfit, timeout = _import_when_idle(), None
        if wake_read in ready:
            os.read(wake_read, 4096)
            _reap(agent)
        if agent in ready:
            data = agent.recv(65536)
            if not data:
                return None
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                if unfit is not None:
                    _say(agent, {"failed": unfit})
                    return None
                if _is_fork(agent, (wake_read, wake_write)):
                    return str(json.loads(line)["spec"])


def _reap(agent: socket.socket) -> None:
    for pid, code in reaped():
        _say(agent, {"ended": pid, "status": code})


def _is_fork(agent: socket.socket, wake: Any) -> bool:
    """Fork; whether this is the new process, which has a session and the signals of a fresh interpreter."""
    zygote = os.getpid()
    pid = os.fork()
    if pid:
        _say(agent, {"started": pid})
        return False
    os.setsid()
    die_with_parent(signal.SIGKILL, zygote)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for descriptor in (agent.detach(), *wake):
        os.close(descriptor)
    return True


def _launch(spec: Dict[str, Any], forks: List[Forked]) -> NoReturn:
    code = 1
    try:
        code = launcher.run(spec, forks)
    except SystemExit as request:
        code = request.code if isinstance(request.code, int) else 1
    except BaseException as error:  # noqa: BLE001 - the last frame of the launcher
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _say(agent: socket.socket, message: Dict[str, Any]) -> None:
    agent.sendall(json.dumps(message).encode() + b"\n")
