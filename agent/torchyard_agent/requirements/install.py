"""Install what an image lacks of a lock, and report on it: a program that the agent runs before a round.

It runs in the Python of the workers. Each line that it writes to the pipe of the agent is a JSON object: the state, and
at the end `exit`, with a message or the folder of the packages. What fails and may work again is tried again.
"""

from __future__ import annotations

import errno
import importlib
import importlib.metadata
import itertools
import json
import os
import platform
import random
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from torchyard_agent.exit_codes import ExitCode
from torchyard_agent.requirements import lock as locks
from torchyard_agent.requirements import tools
from torchyard_agent.requirements.overlay import Overlay
from torchyard_agent.workers import code

ATTEMPTS = 6
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0
LOCK_SECONDS = 0.5
_PACKAGING = ("packaging", "pip._vendor.packaging", "setuptools._vendor.packaging", "pkg_resources.extern.packaging")
_FULL = (errno.ENOSPC, errno.EDQUOT)

Write = Callable[[Dict[str, Any]], None]
Again = Callable[[int, str], None]


class Location(NamedTuple):
    """Where packages are installed from and to.

    Attributes:
        root: folder of the folders of packages.
        wheels: folder of wheels; None: an index.
        cwd: folder of the code.
    """

    root: Path
    wheels: Optional[Path]
    cwd: Path


class FailedError(Exception):
    """The packages cannot be installed: trying again cannot help."""


class NotNowError(Exception):
    """The packages cannot be installed now."""


def run(settings: Mapping[str, Any], write: Write, *, sleep: Callable[[float], None] = time.sleep) -> int:
    """Install; return the exit code.

    Args:
        settings: `code` (digest, root and mount of the code), `root` (of the packages) and `wheels`.
        write: called with each report.
        sleep: waits between attempts.
    """
    result: Dict[str, Any] = {"exit": int(ExitCode.DONE), "message": "", "folder": ""}
    try:
        folder = _installed(settings, write, sleep)
        result["folder"] = "" if folder is None else str(folder)
    except (code.MissingError, code.MismatchError) as error:
        result.update(exit=int(ExitCode.CODE_MISMATCH), message=str(error))
    except (FailedError, locks.LockError) as error:
        result.update(exit=int(ExitCode.REQUIREMENTS_FAILED), message=str(error))
    except (NotNowError, OSError) as error:
        full = isinstance(error, OSError) and error.errno in _FULL
        message = f"no space is left on the disk for packages ({error})" if full else str(error)
        result.update(exit=int(ExitCode.REQUIREMENTS_NOT_INSTALLED), message=message)
    write(result)
    return int(result["exit"])


def _installed(settings: Mapping[str, Any], write: Write, sleep: Callable[[float], None]) -> Optional[Path]:
    """Return the folder of the packages of some code; None: the image has all of them."""
    named = settings["code"]
    folder = code.ready(code.Code(named["digest"], Path(named["root"]), Path(named["mount"])))
    path = folder / locks.LOCK
    if not path.is_file():
        return None
    wheels = folder / settings["wheels"] if settings.get("wheels") else None
    lock = locks.read(path.read_text(encoding="utf-8"))
    return prepare(lock, Location(Path(settings["root"]), wheels, folder), write, sleep)


def prepare(
    lock: locks.Lock, place: Location, write: Write, sleep: Callable[[float], None] = time.sleep
) -> Optional[Path]:
    """Return the folder of what this Python lacks of a lock, installed once; None: it lacks nothing.

    Raises:
        FailedError: trying again cannot help.
        NotNowError: all attempts failed.
        OSError: the folder cannot be written.
    """
    plan = locks.plan(lock, installed())
    _require(plan, [("the code", each) for each in lock.direct])
    if not plan.install:
        return None
    if place.wheels is not None and not place.wheels.is_dir():
        raise FailedError(f"spec.code.wheels: {place.wheels} is not a folder")
    overlay = Overlay(place.root, locks.key(plan.install, interpreter()))
    place.root.mkdir(parents=True, exist_ok=True)

    def progress(message: Dict[str, Any]) -> None:
        write({"packages": len(plan.install), **message})

    while not overlay.is_whole():
        with overlay.locked() as mine:
            if mine:
                if not overlay.is_whole():
                    progress({"state": "installing"})
                    _install(overlay, plan, lock.options, place, partial(_pause, write=progress, sleep=sleep))
                break
        progress({"state": "waiting", "message": "another process installs them"})
        sleep(LOCK_SECONDS)
    # Packages of another job with other requirements may share the folder.
    _require(plan, _required_by(overlay.folder))
    overlay.expire()
    return overlay.folder


def _pause(attempt: int, sentence: str, write: Write, sleep: Callable[[float], None]) -> None:
    """Report why an attempt failed, and wait before the next one."""
    write({"state": "installing", "message": sentence[:200]})
    pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** (attempt - 1))
    sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - so that pods do not come back together


def _install(overlay: Overlay, plan: locks.Plan, options: Sequence[str], place: Location, again: Again) -> None:
    """Install into an overlay.

    Args:
        overlay: the folder.
        plan: what is installed.
        options: indexes.
        place: where from.
        again: called with the number of an attempt that failed, and why, before the next one.
    """
    tool = tools.installer(os.environ)
    if tool is None:
        raise FailedError(tools.MISSING)
    listed = overlay.partial.with_suffix(".txt")
    for attempt in itertools.count(1):
        target = overlay.begin()
        listed.write_text(locks.text_of(plan.install, options if place.wheels is None else ()), encoding="utf-8")
        try:
            failure = tools.install(tool, listed, target, place.wheels, place.cwd)
        finally:
            listed.unlink()
        if failure is None:
            break
        if not failure.transient:
            raise FailedError(failure.sentence)
        if attempt == ATTEMPTS:
            raise NotNowError(f"{failure.sentence} ({attempt} attempts)")
        again(attempt, failure.sentence)
    _require(plan, _required_by(overlay.partial))
    overlay.commit()


def _require(plan: locks.Plan, requirements: Sequence[Tuple[str, str]]) -> None:
    """Check that what stays of the image is what others need; without `packaging`, that is not known.

    Raises:
        FailedError: it is not.
    """
    versions = {name: version for name, version in plan.kept.items() if version}
    parse = _parser() if versions or plan.absent else None
    wrong = locks.conflicts(versions, requirements, parse, plan.absent) if parse is not None else []
    if wrong:
        raise FailedError("; ".join(wrong[:3]))


def _parser() -> Optional[Callable[[str], Any]]:
    for name in _PACKAGING:
        try:
            parse: Callable[[str], Any] = importlib.import_module(f"{name}.requirements").Requirement
        except ImportError:
            continue
        return parse
    return None


def _required_by(folder: Path) -> List[Tuple[str, str]]:
    """Return what the packages of a folder require, by name and version of each."""
    found = []
    for each in importlib.metadata.distributions(path=[str(folder)]):
        owner = f"{each.metadata['Name']} {each.version}"
        found += [(owner, text) for text in each.requires or ()]
    return found


def installed() -> Dict[str, str]:
    """Return the versions that this Python has, by normalised name; the first on its path wins."""
    found: Dict[str, str] = {}
    for each in importlib.metadata.distributions():
        name = each.metadata["Name"]
        if name:
            found.setdefault(locks.normal(name), each.version)
    return found


def interpreter() -> Dict[str, str]:
    """Return what packages are installed for: another Python cannot use them."""
    return {
        "executable": sys.executable,
        "tag": sys.implementation.cache_tag or "",
        "machine": platform.machine(),
        "libc": "-".join(platform.libc_ver()),
    }


def main() -> None:
    """Install what the first argument, a JSON object, names; write lines to the descriptor that is the second."""
    settings = json.loads(sys.argv[1])
    with os.fdopen(int(sys.argv[2]), "wb", buffering=0) as pipe:

        def write(message: Dict[str, Any]) -> None:
            try:
                pipe.write(json.dumps(message).encode() + b"\n")
            except OSError:  # the agent is gone
                os._exit(ExitCode.TERMINATED)

        sys.exit(run(settings, write))
