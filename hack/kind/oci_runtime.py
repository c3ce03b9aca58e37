"""An OCI runtime for machines that give root everything but CAP_SYS_RESOURCE: runc, asked for no more than there is.

Docker calls it as it calls runc. Before runc runs, the capability leaves the container's `config.json` and the process
file of `exec`, and with it negative OOM scores, which only this capability may set. Everything else stays as it was.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

MISSING = "CAP_SYS_RESOURCE"
# Options of runc's that carry the file of a process, and those that name the folder of a container's config.json.
PROCESS = ("-p", "--process")
BUNDLE = ("-b", "--bundle")


def lower(process: dict[str, Any]) -> None:
    """Ask for no capability and no OOM score that this machine cannot give."""
    for names in (process.get("capabilities") or {}).values():
        if MISSING in names:
            names.remove(MISSING)
    if (process.get("oomScoreAdj") or 0) < 0:
        del process["oomScoreAdj"]


def option(argv: list[str], names: tuple[str, str]) -> str | None:
    """The value of `--name value` or `--name=value`."""
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else following
    return None


def rewrite(file: Path, *, process_only: bool) -> None:
    """Lower one file in place."""
    content = json.loads(file.read_text(encoding="utf-8"))
    process = content if process_only else content.get("process")
    if process:
        lower(process)
        file.write_text(json.dumps(content), encoding="utf-8")


def main(argv: list[str]) -> None:
    """Rewrite what this call names, then become runc."""
    if "create" in argv or "run" in argv:
        rewrite(Path(option(argv, BUNDLE) or ".") / "config.json", process_only=False)
    elif "exec" in argv and (file := option(argv, PROCESS)):
        rewrite(Path(file), process_only=True)
    runc = shutil.which("runc")
    assert runc, "docker.io depends on runc"
    os.execv(runc, [runc, *argv])


if __name__ == "__main__":
    main(sys.argv[1:])
