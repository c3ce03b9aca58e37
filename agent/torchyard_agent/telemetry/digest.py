"""The most important lines of a failure: the exception, the program's own frames, its output.

A traceback ends in the library that raised, often twenty frames away from the line that a person can change (pure).
"""

from __future__ import annotations

import re
from typing import List, NamedTuple

MAX_FRAMES, MAX_LINE = 6, 200
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line \d+')
_START = "Traceback (most recent call last)"
_CRASH = "Fatal Python error: "
# Built-in trainers are installed like a library, and are the program all the same.
_LIBRARIES = re.compile(
    r"/(site|dist)-packages/(?!torchyard_trainers/)|/lib/python3\.\d+/(?!site-|dist-)|^<frozen |torchyard[-_]agent"
)
_MARKERS = re.compile(r"^[\s^~|+-]*$")


class _Frame(NamedTuple):
    file: str
    lines: List[str]


class _Traceback(NamedTuple):
    frames: List[_Frame]
    raised: List[str]


def digest(traceback: str, output: List[str], most: int) -> List[str]:
    """Return at most `most` lines: the exception, frames of the program (innermost first), output before it.

    Of a crash these are its stack and the output before it, which may show an exception that was handled. Without
    frames of the program these are the last lines of the log or, where that is empty, of the traceback.

    Args:
        traceback: of the failure's cause, as Python prints it, perhaps shortened.
        output: last lines of the rank's log.
        most: lines.
    """
    if traceback.startswith(_CRASH):
        before = _before(output, _CRASH)
        return [line[:MAX_LINE] for line in _joined(_filled(traceback.splitlines())[:most], before, most)]
    frames, raised = _find(traceback.splitlines(), output)
    own = [frame for frame in frames if not _LIBRARIES.search(frame.file)]
    if not own or not raised:
        return [line[:MAX_LINE] for line in output[-most:] or traceback.splitlines()[-most:]]
    found = [*raised[:3]]
    for frame in reversed(own[-MAX_FRAMES:]):
        found += frame.lines[:2]
    left_out = len(frames) - len(own[-MAX_FRAMES:])
    if left_out:
        found.append(f"  ({left_out} more frame{'' if left_out == 1 else 's'}, most of libraries: see the log)")
    return [line[:MAX_LINE] for line in _joined(found[:most], _before(output, _START), most)]


def _joined(found: List[str], before: List[str], most: int) -> List[str]:
    """Return the lines of a failure and, where they fit, the last ones of the output before it."""
    room = most - len(found) - 1
    return [*found, *(["output before that:", *before[-room:]] if before and room > 0 else [])]


def _find(cause: List[str], output: List[str]) -> _Traceback:
    """Return the traceback of the cause: as the log has it, in full, or else as it was reported.

    What started the program may have printed another one after it. If none was reported, it is the last one of the log.
    """
    printed = _tracebacks(output)
    end = next((line for line in reversed(cause) if line.strip() and not line[0].isspace()), None)
    for each in reversed(printed):
        if end is not None and end in each.raised:
            return each._replace(raised=each.raised[: each.raised.index(end) + 1])
    reported = [each for each in _tracebacks(cause) if each.frames]
    return (reported or printed or [_Traceback([], [])])[-1]


def _tracebacks(lines: List[str]) -> List[_Traceback]:
    starts = [index for index, line in enumerate(lines) if line.startswith(_START)]
    return [_parse(lines[start + 1 : end]) for start, end in zip(starts, [*starts[1:], len(lines)])]


def _parse(lines: List[str]) -> _Traceback:
    """Return the frames of an exception, outermost first, and the lines of the exception itself."""
    frames: List[_Frame] = []
    for index, line in enumerate(lines):
        match = _FRAME.match(line)
        if match:
            frames.append(_Frame(match["file"], [line]))
        elif line and not line[0].isspace():
            return _Traceback(frames, [each for each in lines[index:] if each.strip()])
        elif frames and not _MARKERS.match(line):
            frames[-1].lines.append(line)
    return _Traceback(frames, [])


def _before(output: List[str], mark: str) -> List[str]:
    """Return what the rank printed before the first line that begins with `mark`."""
    start = next((index for index, line in enumerate(output) if line.startswith(mark)), None)
    return _filled(output[:start]) if start is not None else []


def _filled(lines: List[str]) -> List[str]:
    return [line for line in lines if line.strip()]
