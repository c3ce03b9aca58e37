"""What a worker carries without knowing: stacks on SIGUSR2, a failure file, and a count of its optimizer steps.

Installed by `sitecustomize` in a worker that was executed, and by the warm worker itself in one that was forked.
Nothing here may break a user's program: every step gives up silently where it cannot work.
"""

from __future__ import annotations

import faulthandler
import importlib.abc
import importlib.machinery
import os
import signal
import sys
import time
import weakref
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Callable, Optional, Sequence, Type

from torchyard_agent.titles import name_process

OWNER = "TORCHYARD_HOOKS_OWNER"
_MEMBERS = 3

SITECUSTOMIZE = '''"""First on PYTHONPATH: installs the TorchYard agent's hooks, then runs the user's own file."""

import importlib.machinery
import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
try:
    from torchyard_agent import hooks

    hooks.install()
except Exception:
    pass
_spec = importlib.machinery.PathFinder.find_spec(
    "sitecustomize", [path for path in sys.path if os.path.abspath(path or ".") != _here]
)
if _spec is not None and _spec.loader is not None:
    _module = importlib.util.module_from_spec(_spec)
    sys.modules["sitecustomize"] = _module
    _spec.loader.exec_module(_module)
'''


def install() -> None:
    """Install everything, once per worker: programs a worker starts inherit its environment but are not workers."""
    env = os.environ
    if env.get("TORCHYARD_HOOKS", "1") == "0" or "TORCHYARD_ROUND" not in env or "TORCHYARD_RUN_DIR" not in env:
        return
    owner = f"{env['TORCHYARD_ROUND']}/{env.get('LOCAL_RANK', '')}"
    if env.get(OWNER) == owner:
        return
    env[OWNER] = owner
    run_dir = Path(env["TORCHYARD_RUN_DIR"])
    name_process(f"ty-rank-{env.get('RANK') or env.get('NODE_RANK') or '0'}")
    register_stacks(run_dir)
    _catch_crashes(run_dir)
    _chain_excepthook()
    _count_steps(run_dir)


def register_stacks(run_dir: Path) -> None:
    """Have SIGUSR2 append the stacks of all threads to `stacks.<pid>.txt`, even while C++ holds the main thread."""
    try:
        file = (run_dir / f"stacks.{os.getpid()}.txt").open("w", encoding="utf-8")
        faulthandler.register(signal.SIGUSR2, file=file, all_threads=True, chain=False)
    except (OSError, RuntimeError, AttributeError):
        return
    register_stacks.file = file  # type: ignore[attr-defined]


def _catch_crashes(run_dir: Path) -> None:
    """Have a fatal signal write the stack of its thread to `crash.<pid>.txt`, unless the program has asked for it."""
    if faulthandler.is_enabled():  # by PYTHONFAULTHANDLER
        return
    try:
        file = (run_dir / f"crash.{os.getpid()}.txt").open("w", encoding="utf-8")
        faulthandler.enable(file=file, all_threads=False)
    except (OSError, RuntimeError, AttributeError):
        return
    _catch_crashes.file = file  # type: ignore[attr-defined]


def write_failure(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
    """Leave `failure.<rank>.json`, unless the program has already said better why it ends."""
    import traceback

    from torchyard_agent.files import ends, write_json

    env = os.environ
    rank = env.get("RANK") or env.get("NODE_RANK") or "0"
    path = Path(env["TORCHYARD_RUN_DIR"]) / f"failure.{rank}.json"
    if path.exists():
        return
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    document = {
        "rank": int(rank),
        "exception": name,
        "message": _message(error)[:2000],
        "traceback": ends("".join(traceback.format_exception(kind, error, trace)), 8000),
        "time": time.time(),
    }
    try:
        write_json(path, document)
    except OSError:
        return


def _message(error: BaseException) -> str:
    """Return the text of the exception, for a group with those of its first members: they say what happened."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - it is the program's own
        text = f"<str() of {type(error).__qualname__} failed>"
    members = getattr(error, "exceptions", None)
    if isinstance(members, tuple) and members and isinstance(members[0], BaseException):
        shown = "; ".join(f"{type(member).__qualname__}: {_message(member)}" for member in members[:_MEMBERS])
        return f"{text}: {shown}"
    return text


def _chain_excepthook() -> None:
    previous, owner = sys.excepthook, os.getpid()

    def hook(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
        if os.getpid() == owner and not issubclass(kind, KeyboardInterrupt):
            write_failure(kind, error, trace)
        previous(kind, error, trace)

    sys.excepthook = hook


def _count_steps(run_dir: Path) -> None:
    def installed(module: ModuleType) -> None:
        register = getattr(module, "register_optimizer_step_post_hook", None)
        if register is not None:
            register(_StepCounter(run_dir))

    loaded = sys.modules.get("torch.optim.optimizer")
    if loaded is not None:
        installed(loaded)
    else:
        sys.meta_path.insert(0, _AfterImport("torch.optim.optimizer", installed))


class _StepCounter:
    """Counts the steps of the first optimizer seen: a turn of several (a GAN, actor and critic) is one step."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.pid = os.getpid()
        self.optimizer: Callable[[], Any] = lambda: None
        self.writer: Any = None
        self.observe: Callable[[Any], None] = lambda _optimizer: None

    def __call__(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        first = self.optimizer()
        if first is None:
            self.optimizer = weakref.ref(optimizer)
        elif first is not optimizer:
            return
        if self.writer is None:
            if os.getpid() != self.pid:
                return
            self._start()
        self.observe(optimizer)
        document = self.writer.document
        self.writer.document = dict(document, step=document["step"] + 1, counter=document["counter"] + 1)

    def _start(self) -> None:
        from torchyard_agent import observation, progress

        self.observe = observation.observed().step
        self.writer = progress.ReportWriter(self.run_dir, dict(os.environ), yields=True)
        self.writer.document.update(phase="step", phaseSince=time.time())
        progress.silence_with(self.writer.stop)
        self.writer.start()


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls `then` with the module `name` right after it was imported, whoever imports it."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name, self.then = name, then

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute, then = spec.loader.exec_module, self.then

        def exec_module(module: ModuleType) -> None:
            execute(module)
            then(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
