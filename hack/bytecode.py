"""Keep the bytecode of installed packages for other clones: `python hack/bytecode.py keep`, and `take` where it is new.

Python compiles a module where it is first imported. In a new clone, all processes of a test run that start together
compile the same 4,500 modules, four of them for 65 s of a processor where one needs 15. Packages are pinned by their
hashes, so that their bytecode is the same in each clone, except for the time of the source, with which Python compares
it.
"""

import hashlib
import os
import shutil
import struct
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
KEPT = Path.home() / ".cache" / "torchyard" / "bytecode"
CHECKED_BY_TIME = 0
HEADER = struct.Struct("<4sIII")  # version of the format, how it is checked, time and size of the source (PEP 552)
SUFFIX = f".{sys.implementation.cache_tag}.pyc"


def main(words: list[str]) -> int:
    """Keep or take; return the exit code. Neither is necessary, so that a cache that cannot be used is no failure."""
    packages, lock = Path(sysconfig.get_path("purelib")), (ROOT / "requirements.lock").read_bytes()
    kept = KEPT / hashlib.sha256(lock + sys.version.encode()).hexdigest()[:16]
    try:
        match words:
            case ["keep"]:
                keep(packages, kept, installed=(ROOT / ".venv" / ".installed").stat().st_mtime)
                for other in KEPT.glob("*"):
                    if other != kept:  # of other versions of the packages
                        shutil.rmtree(other, ignore_errors=True)
            case ["take"]:
                take(packages, kept)
            case _:
                sys.stderr.write("usage: python hack/bytecode.py {keep|take}\n")
                return 2
    except OSError as error:
        sys.stderr.write(f"bytecode of packages is not shared between clones: {error}\n")
    return 0


def keep(packages: Path, kept: Path, *, installed: float) -> None:
    """Copy what was compiled in a folder of packages; leave out what has been edited since it was installed."""
    for file in _compiled(packages):
        copy, source = kept / file.relative_to(packages), _source(file)
        if copy.exists() or not source.exists() or source.stat().st_mtime > installed:
            continue
        code = file.read_bytes()
        if code[: HEADER.size] == _header(code, source):
            _write(copy, code)


def take(packages: Path, kept: Path) -> None:
    """Put what was kept into a folder of packages, beside sources of the same size that have no bytecode yet."""
    for file in _compiled(kept):
        to = packages / file.relative_to(kept)
        source = _source(to)
        if to.exists() or not source.exists():
            continue
        code = file.read_bytes()
        header = _header(code, source)
        if header[-4:] == code[HEADER.size - 4 : HEADER.size]:
            _write(to, header + code[HEADER.size :])


def _compiled(folder: Path) -> Iterator[Path]:
    for at, _, names in os.walk(folder):
        if at.endswith("__pycache__"):
            yield from (Path(at, name) for name in names if name.endswith(SUFFIX))


def _source(file: Path) -> Path:
    return file.parent.parent / f"{file.name.removesuffix(SUFFIX)}.py"


def _header(code: bytes, source: Path) -> bytes:
    """Return the header that this bytecode has if it belongs to the source as that is now."""
    found = source.stat()
    return HEADER.pack(code[:4], CHECKED_BY_TIME, int(found.st_mtime) & 0xFFFFFFFF, found.st_size & 0xFFFFFFFF)


def _write(file: Path, code: bytes) -> None:
    """Write a file that another process may read, or write, at the same time."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f"{file.name}.{os.getpid()}")
    part.write_bytes(code)
    part.replace(file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
