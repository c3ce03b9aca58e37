"""The three journeys of docs/architecture.md do not get longer."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_no_journey_crosses_more_files_than_it_did():
    ran = subprocess.run(
        [sys.executable, "hack/journeys.py", "--files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("goal") == 3
