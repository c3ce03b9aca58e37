"""One fault of a job file, as the user reads it."""

import difflib
import json
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

LONGEST_SHOWN = 60


class Problem(Struct, frozen=True, order=True):
    """A fault; prints `file:line: spec.path: what is wrong: how to fix it`. `line` 0: not in a file (`--set`)."""

    file: str
    line: int
    path: str
    what: str
    fix: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(part for part in (where, self.path, self.what, self.fix) if part)


def shown(value: Any) -> str:
    """Return a value as a message quotes it: on one line, at most 60 characters."""
    text = json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else f"'{value}'"
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 3] + "..."


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that was most likely meant; case and underscores do not matter."""
    plain = {_normalized(candidate): candidate for candidate in known}
    found = difflib.get_close_matches(_normalized(word)[:100], plain, n=1, cutoff=0.7)
    return plain[found[0]] if found else None


def _normalized(word: str) -> str:
    return word.lower().replace("_", "").replace("-", "")
