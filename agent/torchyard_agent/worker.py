"""A warm worker: forked with torch imported, it becomes the user's program as `python -u script args` would be.

It differs from a fresh interpreter only in what is already imported; `__main__`, `sys.argv`, `sys.path`, signal
handlers, random state, output and exit codes are set as Python sets them.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import multiprocessing.process
import os
import random
import runpy
import signal
import socket
import stat
import sys
import threading
import traceback
import types
from pathlib import Path
from typing import Any, Callable, Dict

from torchyard_agent import hooks
from torchyard_agent.guard import release_signals
from torchyard_agent.process import die_with_parent, stand_before_others

# Taken before the launcher replaces it for itself; a worker resolves names as usual.
GETFQDN = socket.getfqdn
MAIN_PROCESS = multiprocessing.process.current_process()


def run(kind: str, target: str, *argv: str) -> None:
    """Entry point given to torch's launcher: run `target` (`script` or `module`) in this process.

    Returns when the program ended well, as torch expects of a function; any other end leaves the process here, with
    the exit code Python would have given.
    """
    _become_worker()
    code = _execute(kind, target, argv)
    if code == 0:
        return
    os._exit(code)


def _become_worker() -> None:
    parent = os.getppid()
    os.setsid()
    release_signals()
    die_with_parent(signal.SIGKILL, parent)
    stand_before_others(1.0)
    socket.getfqdn = GETFQDN
    log = Path(os.environ["TORCHYARD_LOG_DIR"]) / f"rank-{os.environ['RANK']}.log"
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=True)
    _be_the_main_process()
    _fresh_randomness()
    _threads_as_asked()
    hooks.install()


def _be_the_main_process() -> None:
    # Programs tell their own helpers from themselves by `multiprocessing.current_process().name == "MainProcess"`.
    state: Any = multiprocessing.process
    state._current_process, state._parent_process = MAIN_PROCESS, None  # noqa: SLF001


def _fresh_randomness() -> None:
    # A fork inherits the zygote's generators: unseeded programs would draw the same numbers on every rank, every round.
    random.seed()
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _threads_as_asked() -> None:
    # OpenMP read its environment when the zygote loaded it; this round's value may differ.
    asked = os.environ.get("OMP_NUM_THREADS", "")
    torch: Any = sys.modules.get("torch")
    if asked.isdigit() and int(asked) > 0 and torch is not None and torch.get_num_threads() != int(asked):
        torch.set_num_threads(int(asked))


def _execute(kind: str, target: str, argv: Any) -> int:
    sys.argv = [target, *argv]
    program = types.ModuleType("__main__")
    sys.modules["__main__"] = program
    start = {"script": _script, "module": _module}[kind]
    code = _guarded(lambda: start(target, program.__dict__))
    _end_as_python_does()
    flushed = [_flushed(stream) for stream in (sys.stdout, sys.stderr)]
    _finish_open_files()
    return code or max(flushed)


def _end_as_python_does() -> None:
    """Do what an interpreter does when its program has ended, however that ended, and in its order.

    By hand, because multiprocessing leaves a fork through `os._exit`, which skips `atexit`, and so do we with an exit
    code. `threading._shutdown` is more than joining: it first tells the threads of executors, which wait for work, to
    end.
    """
    ends: Any = threading
    _ignoring_errors("on threading shutdown", ends._shutdown)  # noqa: SLF001
    _ignoring_errors("in atexit callback", atexit._run_exitfuncs)  # noqa: SLF001
    ends._shutdown = lambda: None  # noqa: SLF001 - multiprocessing calls it once more: what failed would fail again


def _ignoring_errors(where: str, end: Callable[[], None]) -> None:
    try:
        end()
    except BaseException:  # noqa: BLE001 - Python itself tells it, goes on and keeps the exit code
        print(f"Exception ignored {where}:", file=sys.stderr)
        traceback.print_exc()


def _flushed(stream: Any) -> int:
    try:
        stream.flush()
    except (OSError, ValueError):
        return 120  # what Python exits with when its last flush fails
    return 0


# Compressed files end with what their readers ask for, and it is written when they are closed.
_COMPRESSED = (("gzip", "GzipFile"), ("bz2", "BZ2File"), ("lzma", "LZMAFile"), ("zipfile", "ZipFile"))


def _finish_open_files() -> None:
    # An interpreter that ends closes what its program left open, and so writes it; `os._exit` would lose it. Only
    # files: a pipe nobody reads from would keep us here. What the zygote had open is frozen, and so not among these.
    # By hand, and not by clearing the program's globals as Python does: daemon threads still run, and would see it.
    things = gc.get_objects()
    buffers = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    modules = [(sys.modules.get(module), name) for module, name in _COMPRESSED]
    compressed = tuple(getattr(module, name) for module, name in modules if module is not None)
    # Text goes into compressed files, and these into buffers.
    for kinds, end in ((buffers, "flush"), (compressed, "close"), (buffers, "flush")):
        for thing in things:
            if issubclass(type(thing), kinds):
                with contextlib.suppress(Exception):  # it is closed, or the disk is full: Python says nothing, too
                    if _writes_a_file(thing):
                        getattr(thing, end)()


def _writes_a_file(thing: Any) -> bool:
    file = getattr(thing, "fp", thing)  # a zip archive has no descriptor of its own
    return file.writable() and stat.S_ISREG(os.fstat(file.fileno()).st_mode)


def _script(path: str, namespace: Dict[str, Any]) -> None:
    if Path(path).is_dir() or path.endswith((".zip", ".pyz")):
        sys.path[0] = path
        runpy.run_path(path, run_name="__main__")
        return
    sys.path[0] = str(Path(path).resolve().parent)
    # By hand instead of runpy.run_path: `__main__` must stay in place for threads, atexit and unpickling in children.
    code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    namespace.update(__file__=path, __builtins__=__builtins__, __cached__=None, __spec__=None, __annotations__={})
    exec(code, namespace)  # noqa: S102 - running the user's script is what a worker is for


def _module(name: str, namespace: Dict[str, Any]) -> None:
    sys.path[0] = str(Path.cwd())
    namespace["__builtins__"] = __builtins__
    # What `python -m` itself calls: unlike runpy.run_module it leaves the module in place as `__main__`.
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # noqa: SLF001


def _guarded(act: Callable[[], None]) -> int:
    """Run `act`; the exit code Python gives to how it ended, with the traceback printed as Python prints it."""
    try:
        act()
    except SystemExit as request:
        if request.code is None or isinstance(request.code, int):
            return (request.code or 0) & 0xFF
        print(request.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BaseException as error:  # noqa: BLE001 - the last frame of a program
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_globals.get("__name__") in (__name__, "runpy"):
            trace = trace.tb_next
        hooks.write_failure(type(error), error, trace)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    return 0
