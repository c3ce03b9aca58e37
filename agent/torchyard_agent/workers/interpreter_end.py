"""The shutdown steps of an interpreter, in their order, except for the modules of a warm parent.

By hand, and followed by `os._exit`: finalizing the interpreter itself would take a second to take down everything that
the zygote had imported, which nothing can observe.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import stat
import sys
import threading
import traceback
from types import ModuleType
from typing import Any, Callable, Dict, FrozenSet
from weakref import ref

_FLUSH_FAILED = 120
# Compressed files end with what their readers ask for, and it is written when they are closed.
_COMPRESSED = (("gzip", "GzipFile"), ("bz2", "BZ2File"), ("lzma", "LZMAFile"), ("zipfile", "ZipFile"))

_imported_before: FrozenSet[str] = frozenset()


def remember_modules() -> None:
    """Record the modules that are imported now, which `finish` does not clear."""
    global _imported_before  # noqa: PLW0603 - one set per process
    _imported_before = frozenset(sys.modules)


def finish(code: int) -> int:
    """Shut the program of this process down; return the exit code that Python would return after `code`."""
    for stream in (sys.stderr, sys.stdout):
        with contextlib.suppress(BaseException):
            stream.flush()
    ends: Any = threading
    # More than joining: it first tells the threads of executors, which wait for work, to end.
    _ignoring_errors("on threading shutdown", ends._shutdown)  # noqa: SLF001
    _ignoring_errors("in atexit callback", atexit._run_exitfuncs)  # noqa: SLF001
    flushed = _flush_standard_streams()
    _hold_daemon_threads()
    _clear_modules()
    _flush_standard_streams()
    _finish_open_files()
    return code if flushed else _FLUSH_FAILED


def _ignoring_errors(where: str, end: Callable[[], None]) -> None:
    try:
        end()
    except BaseException:  # noqa: BLE001 - Python itself prints it, goes on and keeps the exit code
        _print(f"Exception ignored {where}:")


def _print(line: str) -> None:
    with contextlib.suppress(Exception):
        print(line, file=sys.stderr)
        traceback.print_exc()


def _flush_standard_streams() -> bool:
    flushed = True
    for stream in (getattr(sys, "stdout", None), getattr(sys, "stderr", None)):
        if stream is None or _is_closed(stream):
            continue
        try:
            stream.flush()
        except BaseException as error:  # noqa: BLE001 - as Python does
            flushed = False
            if stream is getattr(sys, "stdout", None):
                with contextlib.suppress(Exception):
                    line = traceback.format_exception_only(type(error), error)[-1]
                    print(f"Exception ignored in: {stream!r}\n{line}", end="", file=sys.stderr)
    return flushed


def _is_closed(stream: Any) -> bool:
    try:
        return bool(stream.closed)
    except Exception:  # noqa: BLE001 - as Python does
        return False


def _hold_daemon_threads() -> None:
    # A finalizing interpreter gives its lock to none of them again: they do not see how the program is taken apart.
    sys.setswitchinterval(1e6)
    threading.excepthook = lambda _: None


def _clear_modules() -> None:
    """Take down the program's modules, so that `__del__` of its objects runs."""
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    sys.last_type = sys.last_value = sys.last_traceback = None
    vars(sys)["last_exc"] = None
    names = [name for name in sys.modules if name in {"__main__", "__mp_main__"} or not _is_inherited(name)]
    # By its type: a library of cffi only calls itself a module, and takes no reference.
    modules = [ref(module) for module in map(sys.modules.pop, names) if issubclass(type(module), ModuleType)]
    gc.collect()
    for reference in reversed(modules):
        _clear(getattr(reference(), "__dict__", {}))
    gc.collect()


def _is_inherited(name: str) -> bool:
    return name in _imported_before or name.partition(".")[0] == "torchyard_agent"


def _clear(namespace: Dict[str, Any]) -> None:
    """Set every name to None, those with one leading underscore first, but for `__builtins__`."""
    for private in (True, False):
        for name in list(namespace):
            if (name[:1] == "_" and name[:2] != "__") is private and name != "__builtins__":
                namespace[name] = None


def _finish_open_files() -> None:
    # What the program's modules did not own, and so is still open. Only files: a pipe that is not read would keep us
    # here. What the zygote had open is frozen, and so not among these.
    things = gc.get_objects()
    buffers = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    modules = [(sys.modules.get(module), name) for module, name in _COMPRESSED]
    compressed = tuple(getattr(module, name) for module, name in modules if module is not None)
    # Text goes into compressed files, and these into buffers.
    for kinds, end in ((buffers, "flush"), (compressed, "close"), (buffers, "flush")):
        for thing in things:
            if issubclass(type(thing), kinds):
                with contextlib.suppress(Exception):  # it is closed, or the disk is full: Python is silent, too
                    if _writes_a_file(thing):
                        getattr(thing, end)()


def _writes_a_file(thing: Any) -> bool:
    file = getattr(thing, "fp", thing)  # a zip archive has no descriptor
    return file.writable() and stat.S_ISREG(os.fstat(file.fileno()).st_mode)
