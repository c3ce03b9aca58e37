"""Benchmarks of the operator's parts run, small, so that those who need their figures can have them. None is timed."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.waiting import DEADLINE

pytestmark = pytest.mark.e2e

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("events.py 20 1", ["| pod |", "| job |", "| agent |"]),
        ("plan.py 20", ["plan"]),
        (
            "intake.py --agents 100 --interval 1 --seconds 3",
            ["memory a connection", "CPU a sync", "restart: all agents back"],
        ),
        ("restart.py 1", ["warm: kill -9 of a rank"]),
    ],
    ids=lambda value: value.partition(" ")[0] if isinstance(value, str) else "",
)
def test_a_benchmark_prints_what_it_measured(command, told):
    program, *options = command.split()
    run = [sys.executable, BENCHMARKS / program, *options]
    done = subprocess.run(run, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [each for each in told if each not in done.stdout] == []
