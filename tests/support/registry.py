"""A real registry on loopback: distribution, which `make registry` or `make kind-up` compiled once."""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.waiting import DEADLINE

SERVER = Path(__file__).parents[2] / "hack/registry"
SKIP = 77
"""Exit code of `python hack/registry --if-built` where it is not built."""
_PROGRAMS = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "torchyard/kind/programs"

needs_registry = pytest.mark.skipif(
    not any(_PROGRAMS.glob("registry-*/registry")),
    reason="no registry in the cache: `make registry` or `make kind-up` builds one",
)


@contextmanager
def registry(folder, *options):
    """Serve what is pushed, in `folder`; yields HOST:PORT. Options are those of `python hack/registry`."""
    argv = [sys.executable, SERVER, "--if-built", "--port", "0", "--folder", folder, *options]
    with (
        (folder / "registry.log").open("w") as log,
        subprocess.Popen(list(map(str, argv)), stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            address = process.stdout.readline().strip()
            if not address and process.wait(DEADLINE) == SKIP:
                pytest.skip("the registry in the cache is an older one: `make registry` builds this one")
            if not address:
                raise RuntimeError(f"the registry did not start: {(folder / 'registry.log').read_text()[-2000:]}")
            yield address
        finally:
            process.terminate()
            process.wait(DEADLINE)
