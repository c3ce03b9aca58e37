"""Build the zipapp: `python -m torchyard_agent.build OUT.pyz`. The same sources and Python give the same bytes.

Beside each source lies its bytecode for the Python that builds: an agent or a zygote of that version starts without
compiling the package each time. Any other version finds bytecode that is not its own, and compiles the source.

pynvml.py of the installed nvidia-ml-py is packed into it; it is never copied into the repository.
"""

from __future__ import annotations

import importlib.metadata
import os
import py_compile
import shutil
import sys
import tempfile
import time
import zipapp
from pathlib import Path
from typing import Sequence

_EPOCH = 315532800  # 1980-01-01, the first time a zip archive can hold
_MAIN = "from torchyard_agent.__main__ import main\n\nmain()\n"


def build(target: Path) -> None:
    """Write the zipapp to `target`.

    Raises:
        ValueError: nvidia-ml-py is not installed.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        package = Path(__file__).parent
        for source in sorted(package.rglob("*.py")):
            target_file = root / package.name / source.relative_to(package)
            target_file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target_file)
        shutil.copyfile(_pynvml(), root / "pynvml.py")
        (root / "__main__.py").write_text(_MAIN, encoding="utf-8")
        # Of one name, whatever the target is called: archives that replace each other are read by running processes.
        for source in sorted(root.rglob("*.py")):
            _add_bytecode(source, f"torchyard-agent.pyz/{source.relative_to(root)}")
        for path in root.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
            os.utime(path, (_EPOCH, _EPOCH))
        # Zip entries hold local time: the same bytes anywhere need one time zone.
        zone = os.environ.get("TZ")
        os.environ["TZ"] = "UTC"
        time.tzset()
        try:
            zipapp.create_archive(root, target, interpreter="/usr/bin/env python3", compressed=True)
        finally:
            os.environ.pop("TZ") if zone is None else os.environ.update(TZ=zone)
            time.tzset()


def _add_bytecode(source: Path, shown: str) -> None:
    """Compile `source`, which tracebacks show as `shown`; without its time, which archives keep in a local zone."""
    py_compile.compile(
        str(source),
        cfile=str(source.with_suffix(".pyc")),
        dfile=shown,
        doraise=True,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )


def _pynvml() -> Path:
    try:
        distribution = importlib.metadata.distribution("nvidia-ml-py")
    except importlib.metadata.PackageNotFoundError:
        raise ValueError("nvidia-ml-py is not installed: `pip install nvidia-ml-py`, then build again") from None
    return Path(str(distribution.locate_file("pynvml.py")))


def main(argv: Sequence[str]) -> None:
    """Command line."""
    if len(argv) != 1:
        sys.exit("usage: python -m torchyard_agent.build OUT.pyz")
    try:
        build(Path(argv[0]))
    except (OSError, ValueError) as error:
        sys.exit(f"{argv[0]}: {(error.strerror if isinstance(error, OSError) else None) or error}")


if __name__ == "__main__":
    main(sys.argv[1:])
