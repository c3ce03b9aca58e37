"""A warm worker: forked with torch imported, it becomes the command `python -u script args` as if it were executed.

It differs from a fresh interpreter only in what is already imported; `__main__`, `sys.argv`, `sys.path`, random state,
output, uncaught exceptions and the end (see `interpreter_end.py`) are those of a fresh one.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import pkgutil
import runpy
import signal
import sys
import traceback
import types
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, Dict, List, NoReturn, Optional

from torchyard_agent.workers import hooks, interpreter_end, late_torch
from torchyard_agent.workers.code import enter_as_forked
from torchyard_agent.workers.forks import Command
from torchyard_agent.workers.process import stand_before_others
from torchyard_agent.workers.titles import name_process
from torchyard_agent.workers.uncaught import write_failure

# Where `python -c` in the zygote imports this package from; a program finds it at the end of its PYTHONPATH.
_LOCATION = str(Path(__file__).parents[2])


def run(command: Command, *, hide_torch: bool) -> NoReturn:
    """Become `command` (`python -u SCRIPT ARGS` or `python -u -m MODULE ARGS`); never returns.

    Args:
        command: what to become.
        hide_torch: hide torch until the program imports it; False if modules were preloaded, which may refer to it.
    """
    _become_worker(command.env)
    enter_as_forked(command.env, command.cwd)
    if hide_torch:
        late_torch.hide()
    name_process(f"ty-rank-{os.environ['RANK']}", command.argv)
    code = _exit_code_of(_prepared(command.argv))  # with no name: a reference would keep the program's objects alive
    if code is None:
        interpreter_end.finish(0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        code = 128 + signal.SIGINT
    os._exit(interpreter_end.finish(code))


def _become_worker(env: Dict[str, str]) -> None:
    for name in os.environ.keys() - env.keys():
        del os.environ[name]
    for name, value in env.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
    # torchrun handles these, and so an executed worker has their defaults, even below `nohup`.
    for sig in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(sig, signal.SIG_DFL)
    stand_before_others(1.0)
    log = Path(os.environ["TORCHYARD_LOG_DIR"]) / f"rank-{os.environ['RANK']}.log"
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    _fresh_randomness()
    _apply_thread_count()
    hooks.install()


def _fresh_randomness() -> None:
    # `random` seeds itself after a fork. Without this, unseeded programs would draw the same numbers on every rank.
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _apply_thread_count() -> None:
    # OpenMP read its environment when the zygote loaded it; this round's value may differ.
    asked = os.environ.get("OMP_NUM_THREADS", "")
    torch: Any = sys.modules.get("torch")
    if asked.isdigit() and int(asked) > 0 and torch is not None and torch.get_num_threads() != int(asked):
        torch.set_num_threads(int(asked))


def _prepared(argv: List[str]) -> Callable[[], None]:
    """Set up `sys` and `__main__` for the command; return what runs its program."""
    vars(sys)["orig_argv"] = argv  # Python 3.10 and later have it
    sys.path.remove(_LOCATION)
    program = types.ModuleType("__main__")
    inherited = sys.modules["__main__"].__dict__  # of `python -c`: the names that this Python gives to every program
    program.__dict__.update({name: value for name, value in inherited.items() if name.startswith("__")})
    program.__dict__.update(__builtins__=sys.modules["builtins"], __annotations__={})
    sys.modules["__main__"] = program
    if "__mp_main__" in sys.modules:  # the name that multiprocessing gives to the main module of a child
        sys.modules["__mp_main__"] = program
    if argv[2] == "-m":
        sys.argv = ["-m", *argv[4:]]
        _first_on_path(str(Path.cwd()))
        return lambda: runpy._run_module_as_main(argv[3])  # type: ignore[attr-defined]  # noqa: SLF001
    sys.argv = argv[2:]
    if pkgutil.get_importer(argv[2]) is not None:  # a folder or an archive with a `__main__.py`
        sys.path.insert(0, _absolute(argv[2]))
        return lambda: runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]  # noqa: SLF001
    _first_on_path(str(Path(argv[2]).resolve().parent))
    return lambda: _run_script(argv[2], program.__dict__)


def _first_on_path(folder: str) -> None:
    if not getattr(sys.flags, "safe_path", False):  # PYTHONSAFEPATH, from Python 3.11 on
        sys.path.insert(0, folder)


def _absolute(path: str) -> str:
    # Not normalized: Python leaves `./` and `../` in place.
    return path if Path(path).is_absolute() else str(Path.cwd()) + os.sep + path


def _run_script(path: str, namespace: Dict[str, Any]) -> None:
    """Do what `python SCRIPT` does: `__main__` knows its file by an absolute name."""
    file = _absolute(path)
    loader = importlib.machinery.SourceFileLoader("__main__", file)
    namespace.update(__loader__=loader, __file__=file, __cached__=None)
    exec(compile(Path(path).read_bytes(), file, "exec", dont_inherit=True), namespace)  # noqa: S102 - the user's script


def _exit_code_of(program: Callable[[], None]) -> Optional[int]:
    """Run the program; return its exit code, None for an uncaught KeyboardInterrupt, which Python ends with SIGINT."""
    worker = os.getpid()
    try:
        program()
    except SystemExit as request:
        return _requested(request.code)
    except BaseException as error:  # noqa: BLE001 - the last frame of a program
        uncaught = error.with_traceback(_of_the_program(error.__traceback__))
    else:
        return 0
    interrupted = isinstance(uncaught, KeyboardInterrupt)
    if os.getpid() == worker and not interrupted:
        write_failure(type(uncaught), uncaught, uncaught.__traceback__)
    _print_uncaught(uncaught)
    return None if interrupted else 1


def _of_the_program(trace: Optional[TracebackType]) -> Optional[TracebackType]:
    ours = _of_the_program.__code__.co_filename
    while trace is not None and trace.tb_frame.f_code.co_filename == ours:
        trace = trace.tb_next
    return trace


def _requested(code: Any) -> int:
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    try:
        print(code, file=sys.stderr or sys.__stderr__)
    except Exception:  # noqa: BLE001 - as Python does when its stream is closed
        with contextlib.suppress(OSError):
            os.write(2, b"\n")
    return 1


def _print_uncaught(error: BaseException) -> None:
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    vars(sys)["last_exc"] = error  # Python 3.12 and later have it
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except BaseException as failed:  # noqa: BLE001 - as Python does
        with contextlib.suppress(Exception):
            print("Error in sys.excepthook:", file=sys.stderr)
            traceback.print_exception(type(failed), failed, _of_the_program(failed.__traceback__))
            print("\nOriginal exception was:", file=sys.stderr)
            traceback.print_exception(type(error), error, error.__traceback__)
