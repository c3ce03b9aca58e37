"""The warm zygote: has torch imported, never touched CUDA, has one thread; forks a launcher for each round.

`torch._dynamo`, which the first optimizer step of a program imports, takes as long as torch itself, and many programs
never need it. The agent requests its import here once a worker has made such a step, so that the first round does not
wait for it and later rounds have it.

One that was forked from a template (see `template.py`) is first sent what its agent would have started itself, as
`{"interpreter": ..., "preload": ..., "env": ...}`, and ends if it is not that.

Speaks lines of JSON with the agent over a socket: in `{"spec": PATH}` and `{"import": NAME}`, out
`{"importing": NAME}`, `{"ready": ...}`, `{"started": PID}`, `{"ended": PID, "status": N}`, `{"failed": REASON}`. It
ends when the agent does.
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
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, NoReturn, Optional, Sequence, Tuple

from torchyard_agent.workers import interpreter_end, launcher, worker
from torchyard_agent.workers.forks import Forked, fork_ahead
from torchyard_agent.workers.process import die_with_parent, reaped, release_file_pages, thread_count
from torchyard_agent.workers.titles import name_process

_ALWAYS = ("torch", "torch.distributed.run", "torch.distributed.launcher.api", "torch.optim")

# What differs between pods whose zygotes are the same: nothing that is imported reads it before a round.
_OF_A_POD = ("KUBEFLOW_TRAINER_SERVER_URL", "KUBEFLOW_TRAINER_SERVER_TOKEN", "TORCH_FR_DUMP_TEMP_FILE")
_OF_A_SHELL = ("_", "OLDPWD", "PWD", "SHLVL")
_PREFIX_OF_A_POD = "TORCHYARD_"


class Origin(NamedTuple):
    """The settings from which a zygote is made."""

    interpreter: str
    preload: Tuple[str, ...]
    env: Mapping[str, str]


def main() -> None:
    """Serve the agent on the socket whose descriptor is the first argument; the others are modules to import."""
    agent = socket.socket(fileno=int(sys.argv[1]))
    die_with_parent(signal.SIGKILL, int(sys.argv[2]))
    _run(agent, tuple(sys.argv[3:]))


def inherited(agent: socket.socket, origin: Origin) -> None:
    """Serve the agent as a fork of a template; `origin` is what the template was made from."""
    data = b""
    while not data.endswith(b"\n"):
        more = agent.recv(65536)
        if not more:
            return
        data += more
    wanted = json.loads(data)
    needed = Origin(wanted["interpreter"], tuple(wanted["preload"]), wanted["env"])
    differing = _differing(origin, needed)
    if differing:
        _say(agent, {"failed": f"was made for other values of {', '.join(differing)}"})
        return
    _enter(needed.env, origin.env)
    _run(agent, needed.preload)


def _differing(origin: Origin, needed: Origin) -> List[str]:
    """Return the names of differing values that an interpreter reads when it starts, or an import reads."""
    before, after = _read_by_imports(origin), _read_by_imports(needed)
    return sorted(name for name in {**before, **after} if before.get(name) != after.get(name))


def _read_by_imports(origin: Origin) -> Dict[str, str]:
    read = {name: value for name, value in origin.env.items() if name not in (*_OF_A_POD, *_OF_A_SHELL)}
    read = {name: value for name, value in read.items() if not name.startswith(_PREFIX_OF_A_POD)}
    read["PYTHONPATH"] = os.pathsep.join(
        "" if path == _hooks(origin.env) else path for path in read.get("PYTHONPATH", "").split(os.pathsep)
    )
    return {**read, "the interpreter": origin.interpreter, "the preloaded modules": ",".join(origin.preload)}


def _hooks(env: Mapping[str, str]) -> str:
    return str(Path(env["TORCHYARD_RUN_DIR"], "hooks"))


def _enter(env: Mapping[str, str], before: Mapping[str, str]) -> None:
    """Replace the environment and the folder of hooks of the template by those of the pod."""
    for name in os.environ.keys() - env.keys():
        del os.environ[name]
    for name, value in env.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    sys.path[:] = [_hooks(env) if path == _hooks(before) else path for path in sys.path]
    installed = sys.modules.get("sitecustomize")
    for holder in () if installed is None else (installed, installed.__spec__):
        for name, value in list(vars(holder).items()):
            if isinstance(value, str) and value.startswith(_hooks(before)):
                setattr(holder, name, value.replace(_hooks(before), _hooks(env), 1))


def _run(agent: socket.socket, preload: Tuple[str, ...]) -> None:
    name_process("ty-warm")
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    known = len(sys.modules)
    failed = import_all(preload, lambda message: _say(agent, message))
    if failed:
        _say(agent, {"failed": failed})
        return
    if len(sys.modules) > known:
        settle()
    _say(agent, {"ready": sys.executable})
    spec_path = _serve(agent, wake_read, wake_write)
    if spec_path is None:
        return  # the agent is gone; the kernel ends the launchers after us
    spec = json.loads(Path(spec_path).read_text(encoding="utf-8"))
    # Workers are forked from here, so that few frames of ours lie below those of a program.
    forks, command = fork_ahead(int(spec["procs"]))
    if command is not None:
        worker.run(command, hide_torch=not preload)
    name_process("ty-launcher", ["torchyard-launcher", spec_path])
    _launch(spec, forks)


def import_all(preload: Sequence[str], say: Callable[[Dict[str, Any]], None]) -> Optional[str]:
    """Import torch and `preload`; return why that failed, or why this process cannot be forked.

    Args:
        preload: names of modules.
        say: called with `{"importing": NAME}` before each.
    """
    for name in (*_ALWAYS, *preload):
        say({"importing": name})
        if name in sys.modules:
            continue
        gc.disable()  # until `settle`: modules are no garbage, and to look for some is a quarter of the time
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - whatever an import does, the agent falls back to a cold start
            return f"import {name}: {type(error).__name__}: {error}"
    return _unfit_to_fork(preload)


def _import_later(name: str) -> Optional[str]:
    """Return why this process cannot be forked any more; a module that cannot be imported is left to the programs."""
    if name in sys.modules:
        return None
    gc.disable()  # until `settle`
    try:
        importlib.import_module(name)
    except Exception:  # noqa: BLE001 - a program that needs it shows the error
        return None
    finally:
        settle()
    return _unfit_to_fork([name])


def _unfit_to_fork(imported: Sequence[str]) -> Optional[str]:
    torch: Any = sys.modules["torch"]
    if torch.cuda.is_initialized():
        return f"importing {', '.join(imported)} touched CUDA"
    if thread_count() > 1:
        return f"{thread_count()} threads after importing torch and {', '.join(imported) or 'nothing else'}"
    return None


def settle() -> None:
    """Exempt what is imported from garbage collections, so that forks share it, and release pages of files."""
    # A collection in a child would otherwise write to, and so copy, every shared page. Nothing is collected first: that
    # takes a quarter of a second, and leaves holes in pages, which children would fill, and so copy.
    gc.freeze()
    gc.enable()
    interpreter_end.remember_modules()
    release_file_pages()  # forks do not have them, and would look smaller than we to who kills the largest process


def _serve(agent: socket.socket, wake_read: int, wake_write: int) -> Optional[str]:
    """Serve the agent until it is gone, and fork a launcher for each `spec`.

    Returns the path of the spec in the launcher, and None in this process.
    """
    pending = b""
    watched: List[Any] = [agent, wake_read]
    unfit: Optional[str] = None
    while True:
        ready, _, _ = select.select(watched, [], [])
        if wake_read in ready:
            os.read(wake_read, 4096)
            _reap(agent)
        if agent in ready:
            data = agent.recv(65536)
            if not data:
                return None
            *lines, pending = (pending + data).split(b"\n")
            for request in map(json.loads, lines):
                if "import" in request:
                    unfit = unfit or _import_later(request["import"])
                    continue
                if unfit is not None:
                    _say(agent, {"failed": unfit})
                    return None
                if _is_fork(agent, (wake_read, wake_write)):
                    return str(request["spec"])


def _reap(agent: socket.socket) -> None:
    for pid, code in reaped():
        _say(agent, {"ended": pid, "status": code})


def _is_fork(agent: socket.socket, wake: Any) -> bool:
    """Fork; return whether this is the new process, with its own session and the signals of a fresh interpreter."""
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
