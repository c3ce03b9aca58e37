"""What tests that compile need of the machine."""

import os
import shutil
from pathlib import Path

import pytest

# For TORCHINDUCTOR_CACHE_DIR: what was compiled once is found again, also by the next test run.
COMPILED_CODE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "torchyard" / "inductor"

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="no C++ compiler on PATH (Debian, Ubuntu: apt-get install g++)"
)
