"""`python torchyard-agent.pyz install --to DIR`: the program of the init container of a training pod.

Copies the zipapp it runs from to DIR/bin and writes the files its environment holds to DIR/config (docs/protocol.md).
A pod that mounts the image of the agent has no such container; there, the agent writes the files itself.
"""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Dict, Mapping, MutableMapping, Sequence

NAME = "torchyard-agent.pyz"
USAGE = f"python {NAME} install --to DIR"


def install(argv: Sequence[str], env: Mapping[str, str], zipapp: Path) -> None:
    """Copy the agent and the job's files to the volume of the trainer's container.

    Args:
        argv: what follows `install`.
        env: holds the files, in parts.
        zipapp: the archive that is running.

    Raises:
        ValueError: names the option or variable and what it should hold.
        OSError: a file cannot be written.
    """
    if len(argv) != 2 or argv[0] != "--to":
        raise ValueError(f"install needs a folder: start as `{USAGE}`")
    if not zipfile.is_zipfile(zipapp):
        raise ValueError(f"{zipapp} is no zipapp: build one with `python -m torchyard_agent.build OUT.pyz`")
    target = Path(argv[1])
    for name, text in files(env).items():
        _write(target / "config" / name, os.fsencode(text))
    (target / "bin").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(zipapp, target / "bin" / NAME)
    (target / "bin" / NAME).chmod(0o555)


def write_own(env: MutableMapping[str, str]) -> None:
    """Write the files that the agent's own environment holds, and remove them from it.

    A pod with an installer has none.

    Raises:
        ValueError: a name leaves the folder, or a part is missing.
        OSError: a file cannot be written.
    """
    folder = env.pop("TORCHYARD_FILES_TO", None)
    if folder is None:
        return
    for name, text in files(env).items():
        path = Path(folder) / name
        _write(path, os.fsencode(text))
        path.chmod(0o444)
    for name in [name for name in env if name == "TORCHYARD_FILES" or name.startswith("TORCHYARD_FILE_")]:
        del env[name]


def files(env: Mapping[str, str]) -> Dict[str, str]:
    """Return the files that an environment holds, by name (pure).

    Raises:
        ValueError: a name leaves the folder, or a part is missing: half a script must never run.
    """
    text = env.get("TORCHYARD_FILES", "{}")
    try:
        counts = json.loads(text)
        listed = [(str(name), int(count)) for name, count in counts.items()]
    except (ValueError, TypeError, AttributeError):
        raise ValueError(f"TORCHYARD_FILES must be a JSON object of names and numbers of parts, got `{text}`") from None
    found = {}
    for number, (name, count) in enumerate(listed):
        if name != Path(name).name or name in ("", ".."):
            raise ValueError(f"TORCHYARD_FILES: `{name}` must be a plain file name")
        parts = [f"TORCHYARD_FILE_{number}_{part}" for part in range(count)]
        missing = [part for part in parts if part not in env]
        if missing:
            raise ValueError(f"{missing[0]} is not set, and `{name}` has {count} parts")
        found[name] = "".join(env[part] for part in parts)
    return found


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
