"""The most important lines of a failure: the exception, the program's own frames, its output.

A traceback ends in the library that raised, often twenty frames away from the line that a person can change (pure).
"""

from __future__ import annotations

import re
from typing import List, NamedTuple

MAX_FRAMES, MAX_LINE = 6, 200
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+')
_START = "Traceback (most recent call last)"
# Built-in trainers are installed like a library, and are the program all the same.
_LIBRARIES = re.compile(
    r"/(site|dist)-packages/(?!torchyard_trainers/)|/lib/python3\.\d+/(?!site-|dist-)|^<frozen |torchyard[-_]agent"
)
_MARKERS = re.compile(r"^[\s^~|+-]*$")


class _Frame(NamedTuple):
    file: str
    lines: List[str]


def digest(traceback: str, output: List[str], most: int) -> List[str]:
    """Return at most `most` lines: the exception, frames of the program (innermost first), output before it.

    Without frames of the program these are the last lines of the log or, where that is empty, of the traceback: the
    stack of a crash, for example.

    Args:
        traceback: as Python prints it, perhaps without its beginning; used where the log has none.
        output: last lines of the rank's log.
        most: lines.
    """
    frames, raised = _parse(output)
    if not frames:
        frames, raised = _parse(traceback.splitlines())
    own = [frame for frame in frames if not _LIBRARIES.search(frame.file)]
    if not own or not raised:
        return [line[:MAX_LINE] for line in output[-most:] or traceback.splitlines()[-most:]]
    found = [*raised[:3]]
    for frame in reversed(own[-MAX_FRAMES:]):
        found += frame.lines[:2]
    left_out = len(frames) - len(own[-MAX_FRAMES:])
    if left_out:
        found.append(f"  ({left_out} more frame{'' if left_out == 1 else 's'}, most of libraries: see the log)")
    before = _before(output)
    room = most - len(found) - 1
    shown = [*found[:most], *(["output before that:", *before[-room:]] if before and room > 0 else [])]
    return [line[:MAX_LINE] for line in shown]


def _parse(lines: List[str]) -> tuple[List[_Frame], List[str]]:
    """Return the frames of the last exception, outermost first, and the lines of the exception."""
    start = next((index for index in reversed(range(len(lines))) if lines[index].startswith(_START)), None)
    if start is None:
        return [], []
    frames: List[_Frame] = []
    for index in range(start + 1, len(lines)):
        line = lines[index]
        match = _FRAME.match(line)
        if match:
            frames.append(_Frame(match["file"], [line]))
        elif line and not line[0].isspace():
            return frames, [each for each in lines[index:] if each.strip()]
        elif frames and not _MARKERS.match(line):
            frames[-1].lines.append(line)
    return frames, []


def _before(output: List[str]) -> List[str]:
    """Return what the rank printed before its traceback."""
    start = next((index for index, line in enumerate(output) if line.startswith(_START)), None)
    return [line for line in output[:start] if line.strip()] if start is not None else []
