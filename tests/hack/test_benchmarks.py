"""Benchmarks run on demand, so a move of what they import is noticed here."""

import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
# The peers' sides run in environments of their own.
PEERS = {"vla_peer.py"}


@pytest.mark.parametrize(
    "file",
    [file for file in sorted(FOLDER.rglob("*.py")) if file.name not in PEERS],
    ids=lambda file: str(file.relative_to(FOLDER)),
)
def test_everything_that_a_benchmark_imports_exists(file, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(file.parent), *sys.path])
    monkeypatch.setattr(sys, "argv", [str(file)])
    runpy.run_path(str(file), run_name="imported")
