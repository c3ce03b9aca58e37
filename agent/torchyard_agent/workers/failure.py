"""Merge exit codes and failure files of the local ranks into one first cause (pure)."""

from __future__ import annotations

import re
import signal
from typing import Any, Dict, Iterable, List, Optional

from torchyard_agent.exit_codes import ExitCode
from torchyard_agent.files import ends, head, is_number, is_text, is_whole

_TRACEBACK_BYTES = 4000
_MESSAGE_BYTES = 1000
_WORD_BYTES = 200

# Exceptions of healthy ranks after another rank has vanished: consequences, never the root cause.
_SECONDARY_TYPES = re.compile(r"(^|\.)(Dist(Backend|Network|Store)Error|Connection\w*Error|BrokenPipeError|EOFError)$")
_SECONDARY_TEXT = re.compile(
    r"connection (closed|reset|refused|aborted)|broken pipe|peer (closed|lost|died)|socket (timeout|error)"
    r"|timed? ?out.*(store|barrier|collective|allreduce|all_reduce|broadcast|gather|recv|send)"
    r"|(store|barrier|collective|gloo|nccl).*timed? ?out|remote process (exited|has terminated)"
    r"|ncclRemoteError|ncclSystemError|NCCL communicator was aborted|connectFullMesh|TCPStore",
    re.IGNORECASE,
)
_OWN_FAULT = re.compile(
    r"out of memory|cuda error|cuda failure|illegal memory|device-side assert|uncorrectable ECC|EADDRINUSE",
    re.IGNORECASE,
)
_TRACEBACK = re.compile(r"(  \+ Exception Group )?Traceback \(most recent")
_MEMBER = re.compile(r"^    \| (?P<text>[A-Za-z_][\w.]*(?:: .*)?)$")
_GROUP_END = re.compile(r"^    \+-{36,}$")
_MEMBERS = 3
_LINES_AFTER = 20  # as many as an attempt shows of the output
_FATAL = "Fatal Python error: "
# What a launcher raises because a process that it started has failed.
_WRAPPERS = re.compile(
    r"(^|\.)(CalledProcessError|ChildFailedError|ProcessExitedException|ProcessRaisedException|BrokenProcessPool)$"
)
_SIGNALS = 128  # exit codes above it are those of signals
_CHILD_KILLED = re.compile(r"DataLoader worker .*killed by signal: Killed")
_LAST_LINE = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")


def is_secondary(exception: Optional[str], message: str, code: int, *, classified: bool = False) -> bool:
    """Return whether this failure only says that a peer or the collective went away."""
    if code == ExitCode.PEER_LOST and classified:
        return True
    if exception is None or _OWN_FAULT.search(message):
        return False
    return bool(_SECONDARY_TYPES.search(exception)) or (
        exception.rpartition(".")[2] == "RuntimeError" and bool(_SECONDARY_TEXT.search(message))
    )


def is_wrapper(exception: Any) -> bool:
    """Return whether an exception only says that another process has failed."""
    return isinstance(exception, str) and bool(_WRAPPERS.search(exception))


def unwrapped(found: Dict[str, Any]) -> Dict[str, Any]:
    """Return a failure with the exception of the process that failed, where a launcher quotes its traceback."""
    if not is_wrapper(found.get("exception")):
        return found
    inner = from_lines(str(found.get("message") or "").splitlines())
    return {**found, **inner} if inner else found


def is_sigkill(failure: Dict[str, Any]) -> bool:
    """Return whether SIGKILL ended the worker, or a process that it started, in the words of torch's DataLoader."""
    return failure["code"] == 128 + signal.SIGKILL or bool(_CHILD_KILLED.search(failure["message"]))


def record(
    *, rank: int, local_rank: int, pid: int, code: int, time: float, found: Optional[Dict[str, Any]] = None
) -> Dict[str, Any]:
    """Return one failure in the form of the protocol. `found`, which the worker wrote, takes precedence.

    Any program may have written it: values of a wrong type are dropped, long ones are truncated.
    """
    found = found or {}
    exception = found["exception"] if is_text(found.get("exception")) else None
    said = str(found.get("message") or "")
    message = said or describe(code)
    # A program that writes the code it ends with knows the table of exit codes; a bare number may mean anything.
    classified = is_whole(found.get("code")) and found["code"] == code
    secondary = found.get("secondary")
    if not isinstance(secondary, bool):
        secondary = is_secondary(exception, message, code, classified=classified)
    return bounded(
        {
            "rank": rank,
            "localRank": local_rank,
            "pid": pid,
            "code": code,
            "exception": exception,
            "message": message,
            "traceback": str(found.get("traceback") or ""),
            "time": float(found["time"] if is_number(found.get("time")) else time),
            "secondary": secondary,
            "phase": found["phase"] if is_text(found.get("phase")) else None,
            "step": found["step"] if is_whole(found.get("step")) else None,
            "nextMicroBatch": found["nextMicroBatch"] if is_whole(found.get("nextMicroBatch")) else None,
            "outOfMemory": False,
            "classified": classified,
            "exitCodeOnly": exception is None and not said and not _is_signal(code),
        }
    )


def bounded(failure: Dict[str, Any]) -> Dict[str, Any]:
    """Return the failure with its texts cut to fit a request: the head of each, both ends of the traceback."""
    exception, phase = failure["exception"], failure["phase"]
    return {
        **failure,
        "exception": exception and head(exception, _WORD_BYTES),
        "message": head(failure["message"], _MESSAGE_BYTES),
        "traceback": ends(failure["traceback"], _TRACEBACK_BYTES),
        "phase": phase and head(phase, _WORD_BYTES),
    }


def first_cause(failures: Iterable[Dict[str, Any]]) -> Optional[Dict[str, Any]]:
    """Return the earliest failure that is not the consequence of another one; the earliest of all if every one is."""
    ordered = sorted(failures, key=lambda failure: (failure["secondary"], failure["time"]))
    return ordered[0] if ordered else None


def exit_code(status: int) -> int:
    """Return a worker's exit status as a shell writes it: `-9` (killed by a signal) becomes 137."""
    return 128 - status if status < 0 else status


def _is_signal(code: int) -> bool:
    return _SIGNALS < code < _SIGNALS + signal.NSIG


def describe(code: int) -> str:
    """Return a sentence for an exit that left no exception."""
    if _is_signal(code):
        try:
            return f"killed by {signal.Signals(code - _SIGNALS).name}"
        except ValueError:
            return f"killed by signal {code - _SIGNALS}"
    shell = {126: " (of a shell: a command cannot be executed)", 127: " (of a shell: a command was not found)"}
    return f"exit code {code}{shell.get(code, '')}"


def from_lines(lines: List[str]) -> Dict[str, Any]:
    """Return exception, message and traceback at the end of a Python program's output; empty if it has no traceback.

    A traceback that other output follows for longer was handled: it did not end the program.
    """
    starts = (index for index in range(len(lines) - 1, -1, -1) if _TRACEBACK.match(lines[index]))
    start = next(starts, None)
    if start is None:
        return {}
    bar = "  | " if "+ Exception Group" in lines[start] else ""
    for index in range(start + 1, len(lines)):
        line = lines[index][len(bar) :] if lines[index].startswith(bar) else ""
        match = _LAST_LINE.match(line)  # the frames before it are indented
        if match:
            end, message = index, match["message"] or ""
            if bar:
                end = next((at for at in range(index + 1, len(lines)) if _GROUP_END.match(lines[at])), index)
                members = [found for line in lines[index + 1 : end] if (found := _MEMBER.match(line))]
                shown = "; ".join(member["text"] for member in members[:_MEMBERS])
                message = f"{message}: {shown}" if shown else message
            if len(lines) - 1 - end > _LINES_AFTER:
                return {}
            traceback = "\n".join(lines[start : end + 1])
            return {"exception": match["type"], "message": message, "traceback": traceback}
    return {}


def from_crash(text: str) -> Dict[str, Any]:
    """Return message and stack that faulthandler wrote as the process was killed; empty if it wrote nothing."""
    lines = text.splitlines()
    start = next((index for index in range(len(lines) - 1, -1, -1) if lines[index].startswith(_FATAL)), None)
    if start is None:
        return {}
    kept: List[str] = []
    for line in lines[start:]:
        if "torchyard_agent" in line or (kept and line.startswith("Extension modules:")):
            break
        kept.append(line)
    frames = (line.strip() for line in kept if line.startswith("  File "))
    at = next(frames, "")
    return {"message": lines[start] + (f", at {at}" if at else ""), "traceback": "\n".join(kept)}
