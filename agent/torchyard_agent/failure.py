"""Why a round ended here: exit codes and failure files of the local ranks, merged into one first cause (pure)."""

from __future__ import annotations

import re
import signal
from typing import Any, Dict, Iterable, List, Optional

from torchyard_agent.files import head, is_number, is_text, is_whole, tail

PEER_LOST = 76
_TRACEBACK_BYTES = 4000
_MESSAGE_BYTES = 1000
_WORD_BYTES = 200

# What a healthy rank raises when another one vanished: consequences, never the root cause.
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
_CHILD_KILLED = re.compile(r"DataLoader worker .*killed by signal: Killed")
_LAST_LINE = re.compile(
    r"^(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Failed|Timeout))(?:: (?P<message>.*))?$"
)


def is_secondary(exception: Optional[str], message: str, code: int, *, classified: bool = False) -> bool:
    """Return whether this failure only says that a peer or the collective went away."""
    if code == PEER_LOST and classified:
        return True
    if exception is None or _OWN_FAULT.search(message):
        return False
    return bool(_SECONDARY_TYPES.search(exception)) or (
        exception.rpartition(".")[2] == "RuntimeError" and bool(_SECONDARY_TEXT.search(message))
    )


def is_sigkill(failure: Dict[str, Any]) -> bool:
    """Whether SIGKILL ended the worker, or a process of its own as torch's DataLoader words it."""
    return failure["code"] == 128 + signal.SIGKILL or bool(_CHILD_KILLED.search(failure["message"]))


def record(
    *, rank: int, local_rank: int, pid: int, code: int, time: float, found: Optional[Dict[str, Any]] = None
) -> Dict[str, Any]:
    """One failure in the form of the protocol. `found` is what the worker itself wrote; it wins where it speaks.

    Any program may have written it: what is of the wrong kind is left out, what is long is cut.
    """
    found = found or {}
    exception = found["exception"] if is_text(found.get("exception")) else None
    message = str(found.get("message") or describe(code))
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
        }
    )


def bounded(failure: Dict[str, Any]) -> Dict[str, Any]:
    """The failure with its texts cut to what a request has room for: the head of each, of the traceback the end."""
    exception, phase = failure["exception"], failure["phase"]
    return {
        **failure,
        "exception": exception and head(exception, _WORD_BYTES),
        "message": head(failure["message"], _MESSAGE_BYTES),
        "traceback": tail(failure["traceback"], _TRACEBACK_BYTES),
        "phase": phase and head(phase, _WORD_BYTES),
    }


def first_cause(failures: Iterable[Dict[str, Any]]) -> Optional[Dict[str, Any]]:
    """The earliest failure that is not the consequence of another one; the earliest of all if every one is."""
    ordered = sorted(failures, key=lambda failure: (failure["secondary"], failure["time"]))
    return ordered[0] if ordered else None


def exit_code(status: int) -> int:
    """A worker's exit status as a shell writes it: `-9` (killed by a signal) becomes 137."""
    return 128 - status if status < 0 else status


def describe(code: int) -> str:
    """A sentence for an exit that left no exception."""
    if 128 < code < 128 + signal.NSIG:
        try:
            return f"killed by {signal.Signals(code - 128).name}"
        except ValueError:
            return f"killed by signal {code - 128}"
    shell = {126: " (of a shell: a command cannot be executed)", 127: " (of a shell: a command was not found)"}
    return f"exit code {code}{shell.get(code, '')}"


def from_lines(lines: List[str]) -> Dict[str, Any]:
    """Exception, message and traceback read from the last output of a Python program; empty if there is none."""
    start = next((i for i in range(len(lines) - 1, -1, -1) if lines[i].startswith("Traceback (most recent")), None)
    if start is None:
        return {}
    for index in range(start + 1, len(lines)):
        match = _LAST_LINE.match(lines[index])
        if match:
            return {
                "exception": match["type"],
                "message": match["message"] or "",
                "traceback": "\n".join(lines[start : index + 1]),
            }
    return {}
