"""The termination log: what `kubectl describe` shows of a container that ended."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any, Dict, Mapping, NoReturn, Optional

from torchyard_agent.exit_codes import ExitCode

MAX_BYTES = 4096

logger = logging.getLogger(__name__)


def text(code: int, ended: Optional[Dict[str, Any]]) -> str:
    """Return JSON of at most 4096 bytes about the first failure; the head of its traceback is dropped first."""
    ended = ended or {}
    cause = dict(ended.get("failure") or {})
    document = {"code": code, "round": ended.get("round"), "failure": cause or None}
    for name in ("traceback", "message"):
        while len(json.dumps(document).encode()) > MAX_BYTES and cause.get(name):
            cause[name] = cause[name][len(cause[name]) // 2 + 1 :]
    return json.dumps(document)


def write(path: Path, code: int, ended: Optional[Dict[str, Any]]) -> None:
    """Write the log in place: the kubelet mounts this file, so it cannot be replaced."""
    try:
        path.write_text(text(code, ended), encoding="utf-8")
    except OSError as error:
        logger.warning("the termination log cannot be written: %s", error)


def refuse(message: str, env: Mapping[str, str]) -> NoReturn:
    """End a program that cannot begin, with the exit code of an invalid configuration and the reason in its log."""
    print(f"torchyard-agent: {message}", file=sys.stderr)
    log = env.get("TORCHYARD_TERMINATION_LOG")
    if log:
        write(Path(log), ExitCode.CONFIG, {"failure": {"code": ExitCode.CONFIG, "message": message}})
    sys.exit(ExitCode.CONFIG)
