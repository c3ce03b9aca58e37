"""The exception that ended a program, in what it printed: for programs that leave no failure file (pure).

A traceback may be of an exception that was handled long ago. It ended the program only if nothing follows but what
interpreters and launchers print as they end.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, NamedTuple, Optional

# What a launcher raises because a process that it started has failed.
_WRAPPERS = re.compile(
    r"(^|\.)(CalledProcessError|ChildFailedError|ProcessExitedException|ProcessRaisedException|BrokenProcessPool)$"
)
# A launcher may put a rank before each line: `[rank0]: `, `[default0]:`.
_START = re.compile(
    r"(?P<prefix>(?:\[[\w: -]+\]:? ?)?)(?P<group>  \+ Exception Group )?Traceback \(most recent call last\):\s*$"
)
_LAST = re.compile(r"(?P<type>[A-Za-z_][\w.<>]*)(?:: (?P<message>.*))?$")
_MEMBER = re.compile(r"    \| (?P<text>[A-Za-z_][\w.<>]*(?:: .*)?)$")
_GROUP_END = re.compile(r"    \+-{36,}$")
_MEMBERS = 3
# The line before a traceback, if the exception ended no process but a thread, a task, a destructor or an exit handler.
_HARMLESS = re.compile(
    r"Exception ignored |Exception in thread |Error in atexit|Error in sys\.|Exception in callback "
    r"|(Task|Future) exception was never retrieved|--- Logging error ---|Unhandled exception in thread"
)
_OF_PROCESS = re.compile(r"Process \S+:$")  # of multiprocessing
_ENDINGS = re.compile(
    r"\S+:\d+: \w*Warning: "  # of the `warnings` module: leaked semaphores, unclosed files
    r"|(\[rank\d+\]:? ?)?\[[WEIF]\d{3,4} "  # of c10: process groups that are not destroyed
    r"|[WEIF]\d{4} [\d:.]+ +\d+ \S*torch/distributed/"  # of torchrun
    r"|\[[\d :,.-]+\] \[\w+\] \[launch\.py:"  # of DeepSpeed's launcher
    r"|For debugging consider passing|Compile with `TORCH_USE_CUDA_DSA`|CUDA kernel errors might"
    r"|Search for `|Device-side assertion"
    r"|wandb: |COMET |Set the environment variable HYDRA_FULL_ERROR"
    r"|make(\[\d+\])?: \*\*\* |(error: )?[Rr]ecipe |npm (ERR!|error)|srun: |slurmstepd: |ERROR conda\."
    r"|Command (terminated|exited) |(real|user|sys)\s+\d|(During handling of|The above exception was) "
)
# What torchrun's exception shows of the workers that have failed.
_SUMMARY = re.compile(r"[=-]{20,}$|\S+ FAILED$|Failures:|Root Cause |\[\d+\]:$")
_PROGRESS_BAR = re.compile(r"\s+\d+%")


class _Traceback(NamedTuple):
    start: int
    """Place of its first line, or of the line that introduces it."""
    end: int
    exception: str
    message: str
    text: str
    harmless: bool
    of_process: bool


def is_wrapper(exception: Any) -> bool:
    """Return whether an exception only says that another process has failed."""
    return isinstance(exception, str) and bool(_WRAPPERS.search(exception))


def cause(lines: List[str], *, watched: bool) -> Dict[str, Any]:
    """Return exception, message and traceback that ended a program by its last lines; empty if none did.

    Args:
        lines: of its output.
        watched: the worker would have left a file if an exception had ended it. Then only the processes that Python's
            multiprocessing starts, which end without a file, and in a recognizable way, may be the cause.
    """
    wrapper: Optional[_Traceback] = None
    limit = len(lines)
    for each in reversed(_tracebacks(lines)):
        if not all(_is_ending(line, each.exception) for line in lines[each.end + 1 : limit]):
            break
        limit = each.start
        if each.harmless:
            continue
        if watched and not each.of_process:
            break
        if not is_wrapper(each.exception):
            return _fields(each)
        wrapper = wrapper or each
    return _fields(wrapper) if wrapper is not None else {}


def quoted(lines: List[str]) -> Dict[str, Any]:
    """Return the exception of the last traceback that a message quotes; empty if it quotes none."""
    tracebacks = _tracebacks(lines)
    return _fields(tracebacks[-1]) if tracebacks else {}


def _fields(traceback: _Traceback) -> Dict[str, Any]:
    return {"exception": traceback.exception, "message": traceback.message, "traceback": traceback.text}


def _is_ending(line: str, exception: str) -> bool:
    """Return whether a line behind an exception is more of its message, or what programs print as they end."""
    if not line.strip() or (line[0].isspace() and not _PROGRESS_BAR.match(line)):
        return True
    return bool(_ENDINGS.match(line) or (is_wrapper(exception) and _SUMMARY.match(line)))


def _tracebacks(lines: List[str]) -> List[_Traceback]:
    found = []
    end = -1
    for index, line in enumerate(lines):
        match = _START.match(line) if index > end else None
        traceback = _traceback(lines, index, match["prefix"], grouped=bool(match["group"])) if match else None
        if traceback is not None:
            found.append(traceback)
            end = traceback.end
    return found


def _traceback(lines: List[str], start: int, prefix: str, *, grouped: bool) -> Optional[_Traceback]:
    def plain(line: str) -> str:
        return line.removeprefix(prefix)

    bar = "  | " if grouped else ""
    for index in range(start + 1, len(lines)):
        line = plain(lines[index])
        line = line[len(bar) :] if line.startswith(bar) else ""
        if not line or line[0].isspace():  # a frame
            continue
        match = _LAST.match(line)
        if match is None:
            return None
        end, message = index, match["message"] or ""
        if grouped:
            end = next((at for at in range(index + 1, len(lines)) if _GROUP_END.match(plain(lines[at]))), index)
            members = [found for each in lines[index + 1 : end] if (found := _MEMBER.match(plain(each)))]
            shown = "; ".join(member["text"] for member in members[:_MEMBERS])
            message = f"{message}: {shown}" if shown else message
        before = plain(lines[start - 1]) if start else ""
        harmless, of_process = bool(_HARMLESS.match(before)), bool(_OF_PROCESS.match(before))
        return _Traceback(
            start=start - (harmless or of_process),
            end=end,
            exception=match["type"],
            message=message,
            text="\n".join(lines[start : end + 1]),
            harmless=harmless,
            of_process=of_process,
        )
    return None
