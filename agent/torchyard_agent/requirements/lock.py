"""The lock that travels with the code, and what of it an image lacks (pure)."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Callable, List, Mapping, NamedTuple, Sequence, Tuple

LOCK = ".torchyard/requirements.lock"
"""Below the folder of the code: written by the submission."""
MAX_BYTES = 8 << 20
MAX_PINS = 2000
DIRECT = "#: "
"""Begins a line with a requirement that the user wrote, of a package that an image may have in another version."""

_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:==([A-Za-z0-9.!+_-]+)| @ (https://[^\s;]+\.whl(?:#\S*)?))")
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
_OPTION = re.compile(r"--(?:extra-)?index-url https?://[^\s@]+")
_TORCH = re.compile(r"torch|triton|pytorch-triton(-.*)?|nvidia-.*|cuda-(bindings|pathfinder|toolkit)")
_LEFT_TO_IMAGE = ("numpy", "torch", "triton")
"""What a submission takes from an image that it does not know, where it resolves from a folder of wheels."""
_KEPT = re.compile(rf"numpy|{_TORCH.pattern}")


class LockError(ValueError):
    """The lock cannot be used; the message says why."""


class Pin(NamedTuple):
    """One package of a lock.

    Attributes:
        name: normalised.
        version: the version.
        lines: as they are in the lock, with the digests.
    """

    name: str
    version: str
    lines: Tuple[str, ...]


class Lock(NamedTuple):
    """A lock, parsed.

    Attributes:
        pins: each package.
        options: the indexes of packages, as options of a requirements file.
        direct: what the user wrote about packages that an image may have.
    """

    pins: Tuple[Pin, ...]
    options: Tuple[str, ...] = ()
    direct: Tuple[str, ...] = ()


class Plan(NamedTuple):
    """What is done for one lock in one image.

    Attributes:
        install: what the image lacks, or has in another version.
        kept: the version that the image has, and stays, by the name of the package: where the lock names another one,
            or leaves the package to the image. Empty: it has none, since its torch comes without the package.
        absent: packages that the lock leaves to the image, which has none.
    """

    install: Tuple[Pin, ...]
    kept: Mapping[str, str]
    absent: Tuple[str, ...] = ()


def normal(name: str) -> str:
    """Return the normalised name of a package."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read(text: str) -> Lock:
    """Parse a lock.

    Raises:
        LockError: it holds something else than versions of packages with their digests.
    """
    pins: List[Pin] = []
    options: List[str] = []
    direct: List[str] = []
    for line in text.replace("\\\n", " ").splitlines():
        words = line.strip()
        if words.startswith(DIRECT):
            direct.append(words[len(DIRECT) :])
        elif _OPTION.fullmatch(words):
            options.append(words)
        elif words and not words.startswith("#"):
            pins.append(_pin(words))
    if len(pins) > MAX_PINS:
        raise LockError(f"it has {len(pins):,} packages, the limit is {MAX_PINS:,}")
    return Lock(tuple(pins), tuple(options), tuple(direct))


def _pin(words: str) -> Pin:
    head, *rest = re.split(r"\s+(?=--hash=)", words)
    match = _PIN.fullmatch(head.strip())
    if match is None or not rest or not all(map(_HASH.fullmatch, rest)):
        raise LockError(f"`{head[:120]}` is not a version of a package with its digests")
    name, version, address = match.groups()
    if version is None:
        version = [*address.rpartition("/")[2].split("-"), ""][1].replace("%2B", "+")
    return Pin(normal(name), version, (head.strip(), *rest))


def is_kept(name: str) -> bool:
    """Return whether a package of an image is never replaced: what torch and its extensions are compiled against."""
    return _KEPT.fullmatch(name) is not None


def plan(lock: Lock, installed: Mapping[str, str]) -> Plan:
    """Return what to install into an image, and what of the image stays in another version than the lock names.

    Args:
        lock: the lock.
        installed: versions in the image by normalised name.
    """
    install: List[Pin] = []
    named = {pin.name for pin in lock.pins}
    kept = {name: version for name, version in installed.items() if is_kept(name) and name not in named}
    for pin in lock.pins:
        have = installed.get(pin.name)
        if have == pin.version:
            continue
        of_torch = "torch" in installed and _TORCH.fullmatch(pin.name) is not None
        if of_torch or (have is not None and is_kept(pin.name)):
            if have is None or _public(have) != _public(pin.version):
                kept[pin.name] = have or ""
        else:
            install.append(pin)
    absent = tuple(name for name in _LEFT_TO_IMAGE if name not in named and name not in installed)
    return Plan(tuple(install), kept, absent)


def _public(version: str) -> str:
    """Return a version without what a build adds to it, such as `+cu130`."""
    return version.partition("+")[0]


def text_of(pins: Sequence[Pin], options: Sequence[str]) -> str:
    """Return a requirements file with digests."""
    lines = [*options, *(" \\\n    ".join(pin.lines) for pin in pins)]
    return "\n".join(lines) + "\n"


def key(pins: Sequence[Pin], interpreter: Mapping[str, str]) -> str:
    """Return the name of the folder in which these packages are, for one interpreter."""
    identity = [sorted(pin.lines for pin in pins), sorted(interpreter.items())]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]


def conflicts(
    kept: Mapping[str, str],
    requirements: Sequence[Tuple[str, str]],
    parse: Callable[[str], Any],
    absent: Sequence[str] = (),
) -> List[str]:
    """Return a sentence for each requirement that the version of the image does not fulfil.

    Args:
        kept: versions of the image by name.
        requirements: who requires something, and what, as in `numpy>=2.3; python_version >= "3.11"`.
        parse: `packaging.requirements.Requirement`.
        absent: names of packages that are neither in the image nor installed into it.
    """
    sentences = []
    for owner, text in requirements:
        try:
            requirement = parse(text)
        except ValueError:
            continue
        name = normal(requirement.name)
        have = kept.get(name)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if have and applies and not requirement.specifier.contains(have, prereleases=True):
            wanted = f"{name}{requirement.specifier}"
            sentences.append(f"{owner} needs {wanted}, and the image has {name} {have}, which stays")
        elif applies and name in absent:
            sentences.append(f"{owner} needs {name}{requirement.specifier}, and the image has no {name}")
    return sentences
