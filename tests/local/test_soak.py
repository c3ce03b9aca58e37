"""One job, one fault after the other, each held against the status: a short soak, so that the long one stays true."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.waiting import DEADLINE

pytestmark = pytest.mark.e2e

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"
# A worker in a step, in a save and before a spoilt checkpoint, a launcher, a keeper, the operator with a worker, ...
FAULTS = 8


def test_faults_in_a_row_change_neither_weights_nor_status(tmp_path):
    steps = ["--steps", "300", "--reserve", "50", "--pause", "0.1"]  # faults happen to it, however fast the machine is
    command = ["--only", "of a ", "--faults", str(FAULTS), *steps, "--seed", "1"]
    done = subprocess.run(
        [sys.executable, SOAK, *command],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{FAULTS} faults" in done.stdout
    assert "0 anomalies" in done.stdout
