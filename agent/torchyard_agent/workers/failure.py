"""Merge exit codes and failure files of the local ranks into one first cause (pure)."""

from __future__ import annotations

import re
import signal
from typing import Any, Dict, Iterable, List, Optional

from torchyard_agent.exit_codes import ExitCode
from torchyard_agent.files import ends, head, is_number, is_text, is_whole
from torchyard_agent.workers import printed

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
_FATAL = "Fatal Python error: "
# In the words of faulthandler; what Python itself says before it aborts differs.
_FATAL_SIGNALS: Dict[int, str] = {
    signal.SIGSEGV: "Segmentation fault",
    signal.SIGABRT: "",
    signal.SIGBUS: "Bus error",
    signal.SIGFPE: "Floating",
    signal.SIGILL: "Illegal instruction",
}
_SIGNALS = 128  # exit codes above it are those of signals
_CHILD_KILLED = re.compile(r"DataLoader worker .*killed by signal: Killed")
_WRAPPED_STATUS = re.compile(r"exit (?:status|code):? (?P<code>\d{1,3})\b|died with|terminated with signal")


def is_secondary(exception: Optional[str], message: str, code: int, *, classified: bool = False) -> bool:
    """Return whether this failure only says that a peer or the collective went away."""
    if code == ExitCode.PEER_LOST and classified:
        return True
    if exception is None or _OWN_FAULT.search(message):
        return False
    return bool(_SECONDARY_TYPES.search(exception)) or (
        exception.rpartition(".")[2] == "RuntimeError" and bool(_SECONDARY_TEXT.search(message))
    )


def unwrapped(found: Dict[str, Any]) -> Dict[str, Any]:
    """Return a failure with the exception of the process that failed, where a launcher quotes its traceback."""
    if not printed.is_wrapper(found.get("exception")):
        return found
    inner = printed.quoted(str(found.get("message") or "").splitlines())
    return {**found, **inner} if inner else found


def is_sigkill(failure: Dict[str, Any]) -> bool:
    """Return whether SIGKILL ended the worker, or a process that it started, in the words of torch's DataLoader."""
    return failure["code"] == 128 + signal.SIGKILL or bool(_CHILD_KILLED.search(failure["message"]))


def record(
    *,
    rank: int,
    local_rank: int,
    pid: int,
    code: int,
    time: float,
    found: Optional[Dict[str, Any]] = None,
    watched: bool = False,
) -> Dict[str, Any]:
    """Return one failure in the form of the protocol. `found`, which the worker wrote, takes precedence.

    Any program may have written it: values of a wrong type are dropped, long ones are truncated.

    `watched`: the worker would have left a file if an exception had ended it.
    """
    found = found or {}
    exception = found["exception"] if is_text(found.get("exception")) else None
    said = str(found.get("message") or "")
    message = said or ("" if exception else describe(code))
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
            "watched": watched,
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


def status_in(message: str) -> Optional[int]:
    """Return the exit code that the message of a wrapper names, -1 for a signal; None: it names none."""
    match = _WRAPPED_STATUS.search(message)
    return None if match is None else int(match["code"] or -1)


def from_crash(text: str, code: int) -> Dict[str, Any]:
    """Return message and stack that faulthandler wrote as the process was killed; empty if it wrote nothing.

    Args:
        text: what it wrote, or output in which it may be.
        code: exit code of the process: another signal killed another process.
    """
    lines = text.splitlines()
    fatal = _FATAL + _FATAL_SIGNALS.get(code - _SIGNALS, "\n")
    start = next((index for index in range(len(lines) - 1, -1, -1) if lines[index].startswith(fatal)), None)
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
