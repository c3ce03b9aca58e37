"""Hooks in a worker's process: stacks on a signal, a failure file, a count of optimizer steps, output.

Installed by `sitecustomize` in every Python that a worker is or starts, and by the warm worker itself in one that was
forked. Nothing here may break a user's program: every step gives up silently where it cannot work.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import importlib.abc
import importlib.machinery
import os
import signal
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, Optional, Sequence, Set

from torchyard_agent.workers import uncaught
from torchyard_agent.workers.titles import name_process

WORKER = "TORCHYARD_HOOKS_WORKER"
PACE = "TORCHYARD_PACE"  # 0: neither steps nor waits are measured
# A real-time signal, which neither programs nor schedulers use; SIGUSR1 and SIGUSR2 belong to the program.
STACKS_SIGNAL = getattr(signal, "SIGRTMIN", 34) + 11
# One package under two names.
_LIGHTNING = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")

SITECUSTOMIZE = '''"""First on PYTHONPATH: installs the TorchYard agent's hooks, then runs the user's own file."""

import importlib.machinery
import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
try:
    from torchyard_agent.workers import hooks

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
    """Install all hooks in a worker; in another Python process below it, only those needed once it imports torch.

    A driver, a shell or another launcher may start the program that trains. Whatever else they start in Python, and
    that may be much, is left alone but for how it ends.
    """
    env = os.environ
    if env.get("TORCHYARD_HOOKS", "1") == "0" or "TORCHYARD_ROUND" not in env or "TORCHYARD_RUN_DIR" not in env:
        return
    nested = env.get(WORKER) == env["TORCHYARD_ROUND"]
    env[WORKER] = env["TORCHYARD_ROUND"]
    run_dir = Path(env["TORCHYARD_RUN_DIR"])
    _keep_printing(run_dir)
    uncaught.watch()
    if not nested:
        _mark(run_dir)
    _when_imported("torch.optim.optimizer", lambda module: _watch(module, run_dir, nested=nested))
    for name in _LIGHTNING:
        _when_imported(name, _report_from_lightning)
    _when_imported("transformers.trainer", _report_from_hugging_face)
    if env.get(PACE) != "0":
        _when_imported("torch.distributed.distributed_c10d", _watch_collectives)
        _when_imported("torch.nn.parallel.distributed", _watch_replicas)


def _keep_printing(run_dir: Path) -> None:
    folder = os.environ.get("TORCHYARD_LOG_DIR")
    if folder:
        from torchyard_agent.telemetry.output import tolerate_full_disk

        tolerate_full_disk(Path(folder) / f"rank-{_rank()}.log", run_dir)


def _rank() -> str:
    return os.environ.get("RANK") or os.environ.get("NODE_RANK") or "0"


def _mark(run_dir: Path) -> None:
    """Register this process for stacks and for the report of crashes."""
    name_process(f"ty-rank-{_rank()}")
    register_stacks(run_dir)
    _catch_crashes(run_dir)


def is_watched(run_dir: Path, pid: int) -> bool:
    """Return whether a process has these hooks: if an exception ends it, it writes a failure file."""
    return (run_dir / f"stacks.{pid}.txt").exists()


def register_stacks(run_dir: Path) -> None:
    """Append the stacks of all threads to `stacks.<pid>.txt` at each STACKS_SIGNAL, even while C++ is running."""
    try:
        file = (run_dir / f"stacks.{os.getpid()}.txt").open("w", encoding="utf-8")
        faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True, chain=False)
    except (OSError, RuntimeError, AttributeError, ValueError):
        return
    register_stacks.file = file  # type: ignore[attr-defined]


def _catch_crashes(run_dir: Path) -> None:
    """Have a fatal signal write its stack to `crash.<pid>.txt`, unless the program uses faulthandler itself."""
    if faulthandler.is_enabled():  # by PYTHONFAULTHANDLER
        return
    try:
        file = (run_dir / f"crash.{os.getpid()}.txt").open("w", encoding="utf-8")
        faulthandler.enable(file=file, all_threads=False)
    except (OSError, RuntimeError, AttributeError):
        return
    _catch_crashes.file = file  # type: ignore[attr-defined]


def _watch(module: ModuleType, run_dir: Path, *, nested: bool) -> None:
    if nested:
        _mark(run_dir)
        for kind in ("stacks", "crash"):
            _remove_at_exit(run_dir / f"{kind}.{os.getpid()}.txt")
    register = getattr(module, "register_optimizer_step_post_hook", None)
    if register is not None:
        register(_StepCounter(run_dir))


def _report_from_lightning(module: ModuleType) -> None:
    from torchyard_agent.telemetry import lightning

    lightning.report_from(module)


def _report_from_hugging_face(module: ModuleType) -> None:
    from torchyard_agent.telemetry import hugging_face

    hugging_face.report_from(module)


def _watch_collectives(module: ModuleType) -> None:
    from torchyard_agent.telemetry import waits

    waits.watch_collectives(module)


def _watch_replicas(module: ModuleType) -> None:
    from torchyard_agent.telemetry import waits

    waits.watch_replicas(module)


def _remove_at_exit(path: Path) -> None:
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            with contextlib.suppress(OSError):
                path.unlink()

    atexit.register(remove)


def _when_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    loaded = sys.modules.get(name)
    if loaded is not None:
        then(loaded)
    else:
        sys.meta_path.insert(0, _AfterImport(name, then))


class _StepCounter:
    """Counts the optimizer steps of this process; several optimizers that alternate count as one step per turn.

    A turn ends when an optimizer steps again: those of a GAN, or of actor and critic, take turns, and where one is used
    after the other each of its steps is a turn.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.pid = 0
        self.turn: Set[int] = set()
        self.writer: Any = None
        self.observe: Callable[[Any], None] = lambda _optimizer: None
        self.measure: Callable[[], None] = lambda: None

    def __call__(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if os.getpid() != self.pid:  # also in a fork, which counts for itself
            self._start(optimizer)
        else:
            self.observe(optimizer)
        document = dict(self.writer.document, counter=self.writer.document["counter"] + 1)
        if id(optimizer) in self.turn or not self.turn:
            self.turn = {id(optimizer)}
            self.measure()
            document.update(step=document["step"] + 1, roundSteps=document["roundSteps"] + 1)
        else:
            self.turn.add(id(optimizer))
        self.writer.document = document

    def _start(self, optimizer: Any) -> None:
        from torchyard_agent.telemetry import observation, pace, progress

        self.observe = observation.observed().step
        self.observe(optimizer)  # before the first report
        self.pid, self.turn = os.getpid(), set()
        self.writer = progress.ReportWriter(self.run_dir, dict(os.environ), yields=True)
        before = _steps_before(optimizer)
        self.writer.document.update(phase="step", phaseSince=time.time(), roundSteps=0, step=before or 0)
        if before is None:
            self.writer.document["fromStart"] = True
        progress.silence_with(self.writer.stop)
        self.writer.start()
        if os.environ.get(PACE) != "0":
            measured = pace.Pace(self.run_dir, dict(os.environ))
            measured.start()
            self.measure = measured.step
        mark = self.run_dir / f"steps.{self.pid}"
        with contextlib.suppress(OSError):
            mark.touch()
        _remove_at_exit(mark)


def _steps_before(optimizer: Any) -> Optional[int]:
    """Return how many steps an optimizer had made before its first one here, according to its restored state.

    None: unknown, since the optimizer keeps no count, like SGD.
    """
    try:
        cuda: Any = sys.modules["torch"].cuda
        if cuda.is_initialized() and cuda.is_current_stream_capturing():
            return None
        counts = (state["step"] for state in optimizer.state.values() if "step" in state)
        return max(0, int(next(counts)) - 1)
    except Exception:  # noqa: BLE001 - any class may call itself an optimizer
        return None


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls `then` with the module `name` right after it was imported, by any module."""

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
