"""Resolve the requirements of a job into a lock: versions and digests of all packages, by uv.

A lock is kept in `$TORCHYARD_HOME/locks`, so that the same requirements have the same lock, and code the same digest,
until the requirements change: an index that has a newer version does not change a submission.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from torchyard.api.spec import TrainingJobSpec
from torchyard.api.values import plural
from torchyard.client.backend import Notice
from torchyard.client.errors import FAILED, TorchYardError
from torchyard.client.requirements.declared import FIELD, Declared, declared
from torchyard.client.requirements.lockfile import DIRECT, LockError, entries, is_kept, lock_text, pins
from torchyard.client.requirements.stand_ins import left_to_image, stand_ins, without
from torchyard.client.requirements.target import Target
from torchyard.local.run import home_folder, write_atomic

KEPT_LOCKS = 500
_FORMAT = 2
_SECONDS = 900
_SENTENCE = 600
_INDEXES = ("UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL", "UV_INDEX", "UV_FIND_LINKS")
_UNREACHED = re.compile(r"error sending request|operation timed out|Could not connect|HTTP status server error")
"""What uv says where trying again may help."""
_PLAIN = ["--quiet", "--no-header", "--no-annotate"]


def locked(spec: TrainingJobSpec, folder: Path, target: Target, notice: Notice) -> str | None:
    """Return the text of the lock of the requirements of a job; None: the code has no requirements.

    Args:
        spec: of the job.
        folder: of the code.
        target: where the packages will be installed.
        notice: called with a sentence about it.

    Raises:
        TorchYardError: they cannot be resolved: uv's sentence, and what to do.
    """
    if spec.code is None or spec.code.requirements is None:
        return None
    wanted = declared(spec, folder)
    wheels = _wheels(spec, folder)
    kept = home_folder() / "locks" / f"{_key(wanted, target, wheels)}.txt"
    try:
        text = kept.read_text(encoding="utf-8")
        os.utime(kept)
    except OSError:
        text = _resolved(wanted, target, wheels)
        _keep(kept, text)
    packages = pins(text)
    new = [pin for pin in packages if target.installed.get(pin.name) != pin.version and not is_kept(pin.name)]
    known = f", {len(new)} of them to be installed" if target.installed else ""
    notice(f"torchyard: requirements: {plural(len(packages), 'package')} for {target.shown}{known}")
    return text


def _wheels(spec: TrainingJobSpec, folder: Path) -> Path | None:
    """Return the folder of wheels on this machine; None: there is none, or it is on a volume that is not here."""
    if spec.code is None or spec.code.wheels is None:
        return None
    wheels = folder / spec.code.wheels
    if not wheels.is_dir() and not Path(spec.code.wheels).is_absolute():
        raise TorchYardError(f"spec.code.wheels: {wheels} is not a folder", "give one below the folder of the code")
    return wheels if wheels.is_dir() else None


def _key(wanted: Declared, target: Target, wheels: Path | None) -> str:
    listed = sorted((each.name, each.stat().st_size) for each in wheels.iterdir()) if wheels is not None else None
    indexes = [os.environ.get(name) for name in _INDEXES]
    python = target.markers["python_full_version"]
    identity = [_FORMAT, wanted.kind, wanted.texts, target.options, python, sorted(target.installed.items())]
    return _digest([*identity, listed, indexes])


def _digest(identity: list[Any]) -> str:
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]


def _keep(path: Path, text: str) -> None:
    with contextlib.suppress(OSError):  # the next submission resolves again
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode())
        for old in sorted(path.parent.iterdir(), key=lambda each: each.stat().st_mtime)[:-KEPT_LOCKS]:
            old.unlink(missing_ok=True)


def _resolved(wanted: Declared, target: Target, wheels: Path | None) -> str:
    """Resolve with uv.

    Raises:
        TorchYardError: it cannot be resolved, or into something that cannot travel.
    """
    with tempfile.TemporaryDirectory() as temporary:
        lines = _exported(wanted, target) if wanted.kind == "lock" else _compiled(wanted, target, wheels, temporary)
    try:
        packages = pins(lines)
    except LockError as error:
        fix = "only wheels of an index or of an https:// address travel: leave folders, git and editable packages out"
        raise TorchYardError(f"{FIELD}: {error}", fix) from error
    head = [f"# {wanted.path.name} for {target.shown}", *(f"{DIRECT}{each}" for each in wanted.direct)]
    return lock_text([*head, *wanted.options], packages)


def _compiled(wanted: Declared, target: Target, wheels: Path | None, temporary: str) -> str:
    """Return what uv makes of requirements: the versions of the image where they fit."""
    preferred, constraints = Path(temporary, "preferred.txt"), Path(temporary, "image.txt")
    preferred.write_text(_listed(target.installed))
    constraints.write_text(_listed({name: each for name, each in target.installed.items() if is_kept(name)}))
    words = ["compile", str(wanted.path), *_PLAIN, "--generate-hashes", "--only-binary", ":all:", *target.options]
    # uv would otherwise look for an interpreter of that version everywhere.
    words += [] if "--python" in target.options else ["--python", sys.executable]
    words += ["--constraint", str(constraints), "--output-file", str(preferred)]
    of_image: set[str] = set()
    if wheels is not None:
        here = Path(temporary, "of-image")
        of_image = stand_ins(target.installed, here)
        words += ["--no-index", "--find-links", str(wheels), "--find-links", str(here)]
        if not target.installed and (left := left_to_image(wheels)):
            excluded = Path(temporary, "excluded.txt")
            excluded.write_text("\n".join(left))
            words += ["--excludes", str(excluded)]
    said = _uv(["pip", *words], wanted.path.parent)
    if said is not None and _UNREACHED.search(said):
        fix = "check the network and the index of packages; UV_INDEX_URL names another one"
        raise TorchYardError(f"{FIELD}: {said}", fix, FAILED)
    if said is not None:
        fix = "correct the requirements; what the image has of torch, CUDA and numpy stays"
        if wheels is not None:
            fix += f", and the image or {wheels} must have each package"
        raise TorchYardError(f"{FIELD}: {said.replace(str(constraints), 'the image')}", fix)
    return without(preferred.read_text(), of_image)


def _exported(wanted: Declared, target: Target) -> str:
    """Return what a `uv.lock` names for the target."""
    from packaging.markers import Marker

    words = ["export", "--frozen", "--no-emit-workspace", "--no-dev", "--format", "requirements.txt", *_PLAIN]
    with tempfile.NamedTemporaryFile("r", suffix=".txt") as file:
        said = _uv([*words, "--output-file", file.name], wanted.path.parent)
        if said is not None:
            raise TorchYardError(f"{FIELD}: {said}", "run `uv lock`")
        text = file.read()
    chosen = []
    for head, digests in entries(text):
        pin, _, marker = head.partition(" ; ")
        if not marker or Marker(marker).evaluate({**target.markers}):
            chosen.append(" \\\n    ".join([pin.strip(), *digests]))
    return "\n".join(chosen) + "\n"


def _listed(installed: dict[str, str]) -> str:
    return "".join(f"{name}=={version.partition('+')[0]}\n" for name, version in sorted(installed.items()))


def _uv(words: list[str], folder: Path) -> str | None:
    """Run uv; return its sentence if it fails."""
    beside = Path(sysconfig.get_path("scripts"), "uv")
    uv = shutil.which("uv") or (str(beside) if beside.exists() else None)
    if uv is None:
        raise TorchYardError(f"{FIELD} is resolved by uv, which is not installed", "`pip install uv`")
    try:
        done = subprocess.run([uv, *words], cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise TorchYardError(f"{FIELD}: uv did not end within {_SECONDS} s", "check the index", FAILED) from error
    return None if done.returncode == 0 else sentence(done.stderr)


def sentence(said: str) -> str:
    """Return what uv says about its failure in one line, without credentials of addresses."""
    lines = [line.strip() for line in said.splitlines()]
    errors = [line for line in lines if line and not line.lower().startswith(("warning", "hint"))]
    first = next((at for at, line in enumerate(errors) if line.startswith("error")), 0)
    text = " ".join(re.sub(r"^(error|cause|Caused by):\s*", "", line) for line in errors[first:])
    return re.sub(r"(https?://)[^/@\s]+@", r"\1", text)[:_SENTENCE].rstrip(".")
