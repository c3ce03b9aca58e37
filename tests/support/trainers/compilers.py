"""What tests that compile need of the machine."""

import shutil

import pytest

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="no C++ compiler on PATH (Debian, Ubuntu: apt-get install g++)"
)
