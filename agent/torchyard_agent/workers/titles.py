"""Names of processes in `ps`, `top` and `nvidia-smi`: a fork would show the command line of its parent."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Optional, Sequence, Tuple

_PR_SET_NAME = 15
_MOST_NAME = 15  # bytes, as the kernel has it
_ARG_START = 47  # index in /proc/self/stat, counted from 0


def name_process(name: str, command: Optional[Sequence[str]] = None) -> None:
    """Set the name and the listed command line of this process, if possible.

    Args:
        name: what `ps -o comm` and `top` show, cut to 15 bytes.
        command: what `ps aux`, `pgrep -f` and `nvidia-smi` show, cut to the length of the command line that this
            process was started with: it is written over that one.
    """
    try:
        import ctypes
    except ImportError:  # an interpreter without libffi
        return
    with contextlib.suppress(OSError, AttributeError, ValueError):
        buffer = ctypes.create_string_buffer(name.encode()[:_MOST_NAME])
        ctypes.CDLL(None).prctl(_PR_SET_NAME, buffer, 0, 0, 0)
        place = own_memory(_ARG_START) if command is not None else None
        if command is not None and place is not None:
            start, size = place
            ctypes.memmove(start, b"\0".join(map(os.fsencode, command))[: size - 1].ljust(size, b"\0"), size)


def own_memory(index: int) -> Optional[Tuple[int, int]]:
    """Return address and size of the initial arguments of this process; None if they cannot be read or written.

    Args:
        index: of the field of /proc/self/stat that holds the first address, followed by the last one.
    """
    text = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
    fields = ["", "", *text[text.rfind(")") + 2 :].split()]  # pid and name, which may hold anything, are left out
    start, end = int(fields[index]), int(fields[index + 1])
    if not 0 < start < end:
        return None
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        addresses, access, *_ = line.split()
        low, high = (int(each, 16) for each in addresses.split("-"))
        if low <= start and end <= high:
            return (start, end - start) if access.startswith("rw") else None
    return None
