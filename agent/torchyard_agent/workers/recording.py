"""Record the environment of a round for comparisons: Python, packages, code; never values of variables.

The agent of node rank 0 starts this file in the interpreter of the workers, writes what it prints into
`environment.json` of the checkpoint folder, and reports its digest. It takes a tenth of a second of processor time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import re
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

from torchyard_agent.files import read_json
from torchyard_agent.workers.zygote_client import python_code

FILE = "environment.json"
INPUTS_FILE = "inputs.json"
"""In the run folder: written by the agent when all inputs are there."""
SCHEMA = 1
SECONDS = 120.0
_LOOK_SECONDS = 0.1
MAX_BYTES = 512 * 1024
MAX_PACKAGES = 2000
MAX_FILES, MAX_ENTRIES, MAX_FILE_BYTES = 500, 20_000, 1 << 20
"""Source files that are read, folder entries that are looked at, and bytes of a file."""
MAX_REFS_BYTES = 4 << 20
SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages", "venv", "env", "build", "dist"})

_NAME, _VERSION = (re.compile(rf"^{field}:[ \t]*(.*\S)", re.MULTILINE | re.IGNORECASE) for field in ("Name", "Version"))

logger = logging.getLogger(__name__)


class Recording:
    """Records the environment of rounds, each in a separate thread.

    Attributes:
        digest: of the newest record; empty before the first.
    """

    def __init__(self, folder: Optional[Path]) -> None:
        self.digest = ""
        self._folder = folder
        self._thread: Optional[threading.Thread] = None

    @property
    def busy(self) -> bool:
        """Whether the newest round is still being recorded."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, interpreter: str, number: int, code: Optional[Path] = None, packages: Optional[str] = None) -> None:
        """Record the environment of a round; a failure is logged and changes nothing else.

        Args:
            interpreter: of the workers.
            number: of the round.
            code: folder of the code, once the launcher has unpacked it; None: the working directory of the agent.
            packages: folder of installed requirements, which come first.
        """
        if self._folder is None:
            return
        command = [interpreter, "-c", python_code("workers.recording"), *([packages] if packages else [])]
        arguments = (self._folder, command, number, code)
        self._thread = threading.Thread(target=self._record, args=arguments, name="recording", daemon=True)
        self._thread.start()

    def _record(self, folder: Path, command: List[str], number: int, code: Optional[Path]) -> None:
        try:
            _wait_for(code)
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False, cwd=code
            )
            record = json.loads(done.stdout[:MAX_BYTES])  # one that is cut is no JSON
            digest = digest_of(record)
            folder.mkdir(parents=True, exist_ok=True)
            temporary = folder / f".{FILE}.{os.getpid()}"
            temporary.write_text(json.dumps({**record, "round": number, "digest": digest}, indent=1), encoding="utf-8")
            temporary.replace(folder / FILE)
            self.digest = digest
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            # A round that is stopped at once takes the recorder with it.
            logger.info("the environment of round %d is not recorded: %s", number, error)


def _wait_for(code: Optional[Path]) -> None:
    """Wait until the launcher has unpacked the code of the round; a round that cannot start has no record."""
    end = time.monotonic() + SECONDS
    while code is not None and not code.is_dir() and time.monotonic() < end:
        time.sleep(_LOOK_SECONDS)


def digest_of(record: Dict[str, Any]) -> str:
    """Return a digest of Python, packages, code and inputs, equal for runs in which these are equal."""
    compared = {name: record.get(name) for name in ("python", "packages", "code")}
    if record.get("inputs"):
        compared["inputs"] = record["inputs"]
    return hashlib.sha256(json.dumps(compared, sort_keys=True).encode()).hexdigest()[:32]


def main() -> None:
    """Print the record as JSON; an argument is a folder with further packages."""
    sys.path[:0] = sys.argv[1:]
    json.dump(
        {
            "schema": SCHEMA,
            "python": platform.python_version(),
            "packages": packages(),
            "code": code_of(Path.cwd()),
            "inputs": inputs(),
            "machine": {"platform": platform.platform(), "cpus": os.cpu_count(), "driver": driver()},
        },
        sys.stdout,
    )


def packages() -> Dict[str, str]:
    """Return the installed distributions by normalised name, with their versions."""
    from importlib.metadata import distributions

    found: Dict[str, str] = {}
    for each in distributions():
        # `each.metadata` and `each.version` would each parse the whole file, most of which is a description.
        text = each.read_text("METADATA") or each.read_text("PKG-INFO") or each.read_text("") or ""
        fields = text.partition("\n\n")[0]
        name, version = _NAME.search(fields), _VERSION.search(fields)
        if name and version and len(found) < MAX_PACKAGES:
            # The first one on the path is the one that is imported.
            found.setdefault(re.sub(r"[-_.]+", "-", name[1]).lower(), version[1])
    return dict(sorted(found.items()))


def inputs() -> Dict[str, Any]:
    """Return source and revision of each input that was fetched for this pod."""
    return read_json(Path(os.environ.get("TORCHYARD_RUN_DIR", "."), INPUTS_FILE)) or {}


def code_of(folder: Path) -> Dict[str, Any]:
    """Return the commit of a folder, if it is of a git repository, and the digests of its Python files."""
    digests = ((path, _digest_of_file(path)) for path in _sources(folder))
    files = {path.relative_to(folder).as_posix(): digest for path, digest in digests if digest is not None}
    return {"commit": commit(folder), "files": files}


def _digest_of_file(path: Path) -> Optional[str]:
    data = _read(path, MAX_FILE_BYTES)
    return None if data is None else hashlib.sha256(data).hexdigest()[:16]


def _read(path: Path, limit: int) -> Optional[bytes]:
    """Return the contents of a regular file of at most `limit` bytes; pipes and devices are not read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(limit + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
    except OSError:  # it was just deleted, or may not be read
        return None
    return data if data is None or len(data) <= limit else None


def commit(folder: Path) -> Optional[str]:
    """Return the commit of HEAD of the repository around a folder, read from its files."""
    git = next((parent / ".git" for parent in (folder, *folder.parents) if (parent / ".git" / "HEAD").is_file()), None)
    if git is None:
        return None
    head = _line(git / "HEAD")
    if not head.startswith("ref: "):
        return _hash(head)
    name = head[len("ref: ") :]
    if (git / name).is_file():
        return _hash(_line(git / name))
    packed = _read(git / "packed-refs", MAX_REFS_BYTES) or b""
    found = re.search(rf"^([0-9a-f]+) {re.escape(name)}$", packed.decode("utf-8", "replace"), re.MULTILINE)
    return _hash(found[1]) if found else None


def _line(path: Path) -> str:
    return (_read(path, 4096) or b"").decode("utf-8", "replace").strip()


def _hash(text: str) -> Optional[str]:
    """Return a commit; None for other text, to which a name may lead out of the repository."""
    return text if re.fullmatch(r"[0-9a-f]{40,64}", text) else None


def driver() -> Optional[str]:
    """Return the version of NVIDIA's driver, if there is one."""
    try:
        found = re.search(r"Kernel Module\s+(?:for \S+\s+)?([0-9.]+)", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        return None
    return found[1] if found else None


def _sources(folder: Path) -> Iterator[Path]:
    """Yield Python files below a folder in order, within the limits; nothing of the root of a file system."""
    if folder == folder.parent:
        return
    looked = found = 0
    runs = Path(os.environ.get("TORCHYARD_CHECKPOINT_DIR", "")).parent.parent  # of this machine, if it is below
    for root, folders, names in os.walk(folder):
        wanted = (name for name in folders if name not in SKIPPED and not name.startswith("."))
        folders[:] = sorted(name for name in wanted if Path(root, name) != runs)
        for name in sorted(names):
            looked += 1
            if name.endswith(".py"):
                found += 1
                yield Path(root, name)
            if found >= MAX_FILES:
                return
        looked += len(folders)
        if looked > MAX_ENTRIES:
            return
