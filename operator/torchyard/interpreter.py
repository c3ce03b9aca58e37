"""Start our own Python programs without importing modules of the current directory."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def own_python(*words: str) -> list[str]:
    """Return the command that runs Python without the current directory, or that of a script, on `sys.path`.

    Modules that lie there, `json.py` for instance, are a program's own, and none of ours may run them: to look through
    a job file must be safe in any directory.
    """
    return [sys.executable, "-P", *words]


def own_environment(environment: Mapping[str, str], **more: str) -> dict[str, str]:
    """Return the environment for it: an empty or relative entry of PYTHONPATH means the current directory, too."""
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if Path(path).is_absolute()]
    kept = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    return {**kept, **({"PYTHONPATH": os.pathsep.join(paths)} if paths else {}), **more}
