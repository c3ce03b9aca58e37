"""The programs that install packages: uv, or else pip; their command lines and what their errors mean."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import List, Mapping, NamedTuple, Optional

SECONDS = 3600.0
_SENTENCE = 500
MISSING = "the image has neither uv nor pip, with which requirements are installed: add uv to it, or install them in it"
# Failures that may be over at the next attempt: of the network, a server, the disk.
_TRANSIENT = re.compile(
    r"error sending request|connection|timed out|timeout|dns error|name resolution|temporarily|unreachable|network"
    r"|HTTP status (server error|client error \(429)|\b(429|50[0-4]) |no space left|os error 28|max retries exceeded",
    re.IGNORECASE,
)
# Of a server whose certificate the image does not trust; uv says it after `error sending request`.
_UNTRUSTED = re.compile(r"invalid peer certificate|certificate verify failed", re.IGNORECASE)
# Of pip, which says that it found nothing where it could not ask.
_AFTER_RETRIES = re.compile(r"Retrying \(Retry")


class Installer(NamedTuple):
    """A program that installs.

    Attributes:
        name: as it is shown.
        command: its first words.
    """

    name: str
    command: List[str]


class Failure(NamedTuple):
    """Why an installation failed."""

    sentence: str
    transient: bool


def installer(env: Mapping[str, str]) -> Optional[Installer]:
    """Return uv of PATH or of this Python, else pip of this Python; None: there is neither."""
    beside = Path(sys.executable).with_name("uv")
    uv = shutil.which("uv", path=env.get("PATH")) or (str(beside) if os.access(beside, os.X_OK) else None)
    if uv is not None:
        return Installer("uv", [uv, "pip", "install", "--no-progress", "--link-mode=copy", "--compile-bytecode"])
    if importlib.util.find_spec("pip") is not None:
        quiet = ["--disable-pip-version-check", "--no-input", "--root-user-action=ignore", "--progress-bar=off"]
        return Installer("pip", [sys.executable, "-m", "pip", "install", *quiet])
    return None


def install(tool: Installer, requirements: Path, target: Path, wheels: Optional[Path], cwd: Path) -> Optional[Failure]:
    """Install a requirements file with digests into a folder; return why that failed, None if it did not.

    Args:
        tool: what installs.
        requirements: the file.
        target: the folder.
        wheels: folder of wheels, from which alone is installed; None: an index.
        cwd: folder of the code, whose `pyproject.toml` may configure indexes of uv.
    """
    options = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--target", str(target)]
    if tool.name == "uv":
        options += ["--python", sys.executable]
    if wheels is not None:
        options += ["--no-index", "--find-links", str(wheels)]
    try:
        done = subprocess.run(
            [*tool.command, *options, "-r", str(requirements)],
            cwd=cwd,
            env={**os.environ, "UV_PYTHON_DOWNLOADS": "never"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Failure(f"{tool.name} did not end within {SECONDS:g} s", transient=True)
    except OSError as error:
        return Failure(f"{tool.command[0]} cannot be started ({error.strerror})", transient=False)
    if done.returncode == 0:
        return None
    said = done.stderr.decode("utf-8", "replace")
    killed = f"it was killed by signal {-done.returncode}" if done.returncode < 0 else ""
    retried = not _UNTRUSTED.search(said) and (_TRANSIENT.search(said) or _AFTER_RETRIES.search(said))
    transient = bool(killed or retried)
    return Failure(f"{tool.name}: {sentence(said) or killed or f'exit code {done.returncode}'}", transient)


def sentence(said: str) -> str:
    """Return what a tool says about its failure in one line, without credentials of addresses."""
    lines = [line.strip() for line in said.splitlines()]
    errors = [line for line in lines if line and not line.lower().startswith(("warning", "hint", "[notice]"))]
    first = next((at for at, line in enumerate(errors) if line.lower().startswith("error")), 0)
    text = " ".join(re.sub(r"^(error|cause|caused by):\s*", "", line, flags=re.IGNORECASE) for line in errors[first:])
    return re.sub(r"(https?://)[^/@\s]+@", r"\1", text)[:_SENTENCE]
