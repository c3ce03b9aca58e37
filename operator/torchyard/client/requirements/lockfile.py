"""The lock as a submission writes it. The agent reads it with its own code (`torchyard_agent.requirements.lock`)."""

import re
from collections.abc import Sequence
from typing import NamedTuple

LOCK = ".torchyard/requirements.lock"
"""Below the folder of the code."""
DIRECT = "#: "
"""Begins a line with a requirement that the user wrote, of a package that an image may have in another version."""

_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:==([A-Za-z0-9.!+_-]+)| @ https://[^\s;@]+\.whl(?:#\S*)?)")
_DIGEST = re.compile(r"--hash=sha256:[0-9a-f]{64}")
_KEPT = re.compile(r"numpy|torch|triton|pytorch-triton(-.*)?|nvidia-.*|cuda-(bindings|pathfinder|toolkit)")


class LockError(ValueError):
    """What uv resolved cannot travel; the message names it."""


class Pin(NamedTuple):
    """A package of a lock: its normalised name, version (empty: in its address), and lines with digests."""

    name: str
    version: str
    lines: tuple[str, ...]


def normal(name: str) -> str:
    """Return the normalised name of a package."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_kept(name: str) -> bool:
    """Return whether a package of an image is never replaced: what torch and its extensions are compiled against."""
    return _KEPT.fullmatch(normal(name)) is not None


def entries(text: str) -> list[tuple[str, list[str]]]:
    """Return the entries of a requirements file with digests: what each requires, and its digests."""
    split = (re.split(r"\s+(?=--hash=)", line.strip()) for line in text.replace("\\\n", " ").splitlines())
    return [(head, digests) for head, *digests in split if head and not head.startswith(("#", "--"))]


def pins(text: str) -> list[Pin]:
    """Return the packages of a lock.

    Raises:
        LockError: one of them is not a wheel of an index or an address.
    """
    found = []
    for head, digests in entries(text):
        match = _PIN.fullmatch(head)
        if match is None or not digests or not all(map(_DIGEST.fullmatch, digests)):
            raise LockError(f"`{head[:120]}` is not a version of a package with its digests")
        found.append(Pin(normal(match[1]), match[2] or "", (head, *digests)))
    return sorted(found)


def lock_text(head: Sequence[str], packages: Sequence[Pin]) -> str:
    """Return a lock."""
    return "\n".join([*head, *(" \\\n    ".join(pin.lines) for pin in packages)]) + "\n"
