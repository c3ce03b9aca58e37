"""JSON for pages and programs, of whatever jobs and other users have written."""

from collections.abc import Mapping
from typing import Any

import msgspec

MAX_NUMBER = 40
"""Characters of an integer of more than 64 bits, which becomes a text."""


def encoded(value: Any) -> bytes:
    """Return a value as JSON; a type that JSON does not have as its text.

    The name of a file may not be UTF-8, and a record of a program may hold a number of any size: neither may hide what
    is shown beside it.
    """
    try:
        return msgspec.json.encode(value, enc_hook=str)
    except (UnicodeEncodeError, OverflowError):
        return msgspec.json.encode(_portable(msgspec.to_builtins(value, enc_hook=str)))


def _portable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)[:MAX_NUMBER]
    if isinstance(value, Mapping):
        return {_portable(key): _portable(item) for key, item in value.items()}
    return [_portable(item) for item in value] if isinstance(value, list | tuple) else value
