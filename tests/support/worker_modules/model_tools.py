"""Tools as users write them, good and bad."""

import asyncio
import os
import threading
from typing import Literal

_BOTH = asyncio.Barrier(2)


def double(number: int) -> str:
    """Double a number.

    Args:
        number: The number.
    """
    return str(2 * number)


async def meet(name: str, unit: Literal["a", "b"] = "a") -> dict:
    """Answer once two calls have begun.

    Args:
        name: Of the caller.
        unit: Anything.
    """
    await _BOTH.wait()
    return {"met": name}


async def wait(name: str) -> str:
    """Wait for ever.

    Args:
        name: Of the caller.
    """
    await asyncio.Event().wait()
    return name


def hang(name: str) -> str:
    """Hang.

    Args:
        name: Of the caller.
    """
    threading.Event().wait()
    return name


def leave(name: str) -> str:
    """End the process.

    Args:
        name: Of the caller.
    """
    os._exit(3)


def much(count: int) -> str:
    """Answer with a long text.

    Args:
        count: Of characters.
    """
    return "x" * count


def undocumented(name):
    return name


def without_types(name):
    """Return the name.

    Args:
        name: Of the caller.
    """
    return name
