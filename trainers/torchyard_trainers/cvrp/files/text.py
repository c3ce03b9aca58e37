"""Reads text files and numbers from users, with an error of one sentence for any invalid content."""

import math
import re
from pathlib import Path

from torchyard_trainers.core.exits import ConfigError

FIELD = "trainer.params.instances"
_WHOLE = re.compile(r"([+-]?[0-9]{1,15})(?:\.0*)?")
_REAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_LONGEST = 60
MAX_BYTES = 64 << 20
"""Far more than a million customers; the largest published problem has thirty thousand."""


def lines_of(path: Path) -> list[str]:
    """Read a text file.

    Raises:
        ConfigError: it is not a file, cannot be read, is larger than 64 MiB, or is not text.
    """
    kind = path.suffix if path.suffix in (".vrp", ".sol") else ".vrp"
    try:
        # Reading from a pipe or a device may block forever.
        data = _first_bytes(path) if path.is_file() or not path.exists() else None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{FIELD}: {path}: {reason(error)}; give a readable {kind} file") from error
    if data is None:
        raise ConfigError(f"{FIELD}: {path} is no file; give a readable {kind} file")
    if len(data) > MAX_BYTES:
        raise ConfigError(
            f"{FIELD}: {path} has more than {MAX_BYTES >> 20} MiB; give a {kind} file, which is far smaller"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        byte = data[error.start]
        raise ConfigError(
            f"{FIELD}: {path}:{number}: byte {byte:#04x} is no UTF-8; give a {kind} file that is such text"
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def whole(text: str) -> int | None:
    """Return a whole number below 10**15, also if it ends with `.0`; None if it is not one."""
    found = _WHOLE.fullmatch(text)
    return int(found[1]) if found else None


def real(text: str) -> float | None:
    """Return a finite number; None if it is not one."""
    if not _REAL.fullmatch(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def printable(text: str) -> str:
    """Return the start of a text, at most 60 characters, with `?` for what cannot be printed."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_LONGEST])


def reason(error: Exception) -> str:
    """Return the system's message without the error number and the path."""
    return str(getattr(error, "strerror", None) or error)
