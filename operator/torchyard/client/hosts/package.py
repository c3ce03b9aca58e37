"""The folder that a host gets: TorchYard and the libraries that a controller imports, by digest.

A controller needs two compiled libraries, so the folder belongs to one version of Python and one platform. Where the
host has those of this machine, its files are copied; otherwise pip or uv fetches the same versions for the host.
"""

import hashlib
import importlib.metadata
import io
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from torchyard.client.errors import FAILED, TorchYardError
from torchyard.interpreter import own_python
from torchyard.local.run import home_folder, write_atomic

PACKAGES = ("torchyard", "torchyard_agent", "torchyard_trainers")
LIBRARIES = ("msgspec", "httptools", "PyYAML", "rich", "pathspec", "nvidia-ml-py")
OMITTED = {"__pycache__", "share", "static", "tests"}
KEPT_PACKAGES = 4


class Platform(NamedTuple):
    """What compiled files depend on."""

    python: tuple[int, int]
    machine: str
    libc: str
    """`glibc 2.36` or `musl`."""

    def runs_files_of(self, other: "Platform") -> bool:
        """Return whether it can import what was installed on the other one."""
        return (
            self.python == other.python
            and self.machine == other.machine
            and self.libc.split()[0] == other.libc.split()[0]
        )


def this_platform() -> Platform:
    """Return the platform of this process."""
    import os
    import platform

    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError, OSError):
        libc = ""
    if sys.platform != "linux":
        libc = sys.platform
    return Platform(sys.version_info[:2], platform.machine(), libc or "musl")


class Package(NamedTuple):
    """A compressed tar of files for `site-packages`."""

    digest: str
    archive: Path


def package_for(platform: Platform) -> Package:
    """Return the package for a platform, built if this machine has none of these sources yet.

    Raises:
        TorchYardError: libraries for another platform cannot be fetched.
    """
    libraries = _libraries_for(platform)
    content = sorted([*_own(), *_tree(libraries)]) if libraries is not None else sorted([*_own(), *_installed()])
    digest = hashlib.sha256()
    for name, path in content:
        digest.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    folder = home_folder() / "cache" / "packages"
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"{digest.hexdigest()[:16]}.tar.gz"
    if not archive.exists():
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as tar:
            for name, path in content:
                tar.add(path, arcname=name, recursive=False, filter=_anonymous)
        write_atomic(archive, buffer.getvalue())
        for old in sorted(folder.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)[:-KEPT_PACKAGES]:
            old.unlink(missing_ok=True)
    return Package(digest.hexdigest()[:16], archive)


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mode = 0o755 if info.mode & 0o100 else 0o644
    return info


def _own() -> Iterator[tuple[str, Path]]:
    """Yield the files of TorchYard itself, and its metadata."""
    for package in PACKAGES:
        root = Path(str(files(package)))
        yield from ((f"{package}/{name}", path) for name, path in _tree(root))
    yield from _files_of("torchyard", metadata_only=True)


def _installed() -> Iterator[tuple[str, Path]]:
    for library in LIBRARIES:
        yield from _files_of(library)


def _files_of(distribution: str, *, metadata_only: bool = False) -> Iterator[tuple[str, Path]]:
    for file in importlib.metadata.files(distribution) or ():
        name = file.as_posix()
        metadata = name.endswith(".dist-info/METADATA")
        if name.startswith("..") or OMITTED & set(file.parts) or name.endswith((".pyc", ".pth")):
            continue
        if metadata or not (metadata_only or ".dist-info/" in name):
            yield name, Path(str(file.locate()))


def _tree(root: Path) -> Iterator[tuple[str, Path]]:
    for path in root.rglob("*"):
        inside = path.relative_to(root)
        if path.is_file() and not OMITTED & set(inside.parts) and path.suffix != ".pyc":
            yield inside.as_posix(), path


def _libraries_for(platform: Platform) -> Path | None:
    """Return the folder with the libraries of another platform; None: those of this machine fit."""
    if platform.runs_files_of(this_platform()):
        return None
    versions = [f"{name}=={importlib.metadata.version(name)}" for name in LIBRARIES]
    tag = hashlib.sha256(repr((platform.python, platform.machine, platform.libc, versions)).encode()).hexdigest()[:16]
    folder = home_folder() / "cache" / "libraries" / tag
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        problem = next((why for words in _fetchers(platform) if (why := _fetch(words, fresh, versions)) == ""), None)
        if problem is None:
            wanted = f"Python {platform.python[0]}.{platform.python[1]} on {platform.machine} ({platform.libc})"
            fix = (
                "give this machine pip or uv and a package index, or use a Python on the host of this machine's version"
            )
            raise TorchYardError(f"the libraries of a controller cannot be fetched for {wanted}", fix, FAILED)
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


def _fetchers(platform: Platform) -> Iterator[list[str]]:
    """Yield the command lines that may fetch libraries for another platform, without the folder and the names."""
    version = f"{platform.python[0]}.{platform.python[1]}"
    musl = platform.libc.startswith("musl")
    uv = shutil.which("uv") or _beside_python("uv")
    if uv is not None:
        kind = f"{platform.machine}-{'unknown-linux-musl' if musl else 'manylinux_2_28'}"
        options = ["--python-platform", kind, "--python-version", version, "--only-binary", ":all:", "--no-deps"]
        yield [uv, "pip", "install", "--quiet", *options]
    tags = ["musllinux_1_2"] if musl else ["manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux_2_5"]
    platforms = [word for tag in tags for word in ("--platform", f"{tag}_{platform.machine}")]
    options = [*platforms, "--python-version", version, "--implementation", "cp", "--only-binary=:all:", "--no-deps"]
    yield [*own_python("-m", "pip"), "install", "--quiet", "--disable-pip-version-check", *options]


def _fetch(words: list[str], folder: Path, versions: list[str]) -> str:
    """Install libraries into a folder; return why that failed, empty if it did not."""
    done = subprocess.run([*words, "--target", str(folder), *versions], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip()[-300:] or f"exit code {done.returncode}"


def _beside_python(program: str) -> str | None:
    path = Path(sysconfig.get_path("scripts")) / program
    return str(path) if path.exists() else None
