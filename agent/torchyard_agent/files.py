"""Small JSON files exchanged through the run folder: written atomically, read with a bound."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, Callable, Dict, Optional

MAX_BYTES = 256 * 1024


def write_json(path: Path, document: Dict[str, Any]) -> None:
    """Replace `path` atomically; readers see the old document or the new one, never half of one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(document, default=str), encoding="utf-8")
    temporary.replace(path)


def try_write_json(path: Path, document: Dict[str, Any]) -> bool:
    """Write as `write_json` does; return False where the disk refuses, which must not end a round."""
    try:
        write_json(path, document)
    except OSError:
        return False
    return True


def read_json(path: Path, *, repair: Optional[Callable[[str], str]] = None) -> Optional[Dict[str, Any]]:
    """Return the object in `path`; None if it is missing, too large, not JSON or not an object.

    `repair`: applied to a text that is not JSON.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        document = _parsed(data, repair) if len(data) <= MAX_BYTES else None
    except (OSError, ValueError, RecursionError):  # the last: nested a thousand deep
        return None
    return document if isinstance(document, dict) else None


def _parsed(data: bytes, repair: Optional[Callable[[str], str]]) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        if repair is None:
            raise
        return json.loads(repair(data.decode()))


def is_whole(value: Any) -> bool:
    """Return whether `value` is an integer of 64 bits: those of JSON and Python are unbounded."""
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def is_number(value: Any) -> bool:
    """Return whether `value` is a finite number."""
    return is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def is_text(value: Any) -> bool:
    """Return whether `value` is a string."""
    return isinstance(value, str)


def head(text: str, size: int) -> str:
    """Return the beginning of `text` that fits into `size` bytes of UTF-8."""
    return text[:size].encode("utf-8", "replace")[:size].decode("utf-8", "ignore")


def tail(text: str, size: int) -> str:
    """Return the end of `text` that fits into `size` bytes of UTF-8."""
    return text[-size:].encode("utf-8", "replace")[-size:].decode("utf-8", "ignore")


def ends(text: str, size: int) -> str:
    """Return a text whose middle is left out where it does not fit: a traceback begins and ends with what matters."""
    if len(text.encode("utf-8", "replace")) <= size:
        return text
    return head(text, size // 3) + "\n  ...\n" + tail(text, size - size // 3 - 7)
