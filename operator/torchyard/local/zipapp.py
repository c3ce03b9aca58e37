"""The agent that local pods run: the very zipapp that ships, built once for each state of its sources."""

import hashlib
import importlib.machinery
import os
import subprocess
import sys
import threading
from pathlib import Path

from torchyard.interpreter import own_environment, own_python
from torchyard.local.user_environment import ARCHIVE, users_environment

_PACKAGE = "torchyard_agent"


def agent_zipapp(cache: Path) -> Path:
    """Return the path of the agent zipapp in `cache`, built if these sources have none yet. Blocks; call in a thread.

    Raises:
        ValueError: the agent is not installed beside the operator.
        OSError: it cannot be built, on a full disk for example.
    """
    # A program of a run finds the archive of that run's agent first.
    paths = [path for path in sys.path if not ARCHIVE.fullmatch(Path(path).name)]
    found = importlib.machinery.PathFinder.find_spec(_PACKAGE, paths)
    if found is None or not found.submodule_search_locations:
        raise ValueError(f"`{_PACKAGE}` is not installed beside torchyard: install the `torchyard` distribution again")
    package = Path(next(iter(found.submodule_search_locations)))
    digest = hashlib.sha256()
    for source in sorted(package.rglob("*.py")):
        name = str(source.relative_to(package))
        digest.update(name.encode() + b"\0" + source.read_bytes() + b"\0")
    target = cache.resolve() / f"torchyard-agent-{digest.hexdigest()[:16]}.pyz"
    if target.exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    # Of a thread, too: the trials of a sweep are controlled by one process.
    fresh = target.with_name(f"{target.stem}-{os.getpid()}-{threading.get_ident()}.pyz")
    command, environment = (
        own_python("-B", "-m", f"{_PACKAGE}.build", str(fresh)),  # on a full disk, Python keeps half of its bytecode
        own_environment(users_environment(os.environ)),
    )
    built = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if built.returncode != 0:
        fresh.unlink(missing_ok=True)  # a part of it may fill the disk
        reason = (built.stderr.strip().splitlines() or [f"exit code {built.returncode}"])[-1]
        raise OSError(f"the agent cannot be built ({reason})")
    fresh.replace(target)
    return target
