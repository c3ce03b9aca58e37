"""Lives of a sweep, drawn from seeds: whatever befalls calls, news, operators and trials, it decides the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.kubernetes.sweep_operators import OF_LISTS, OF_NEWS, OF_READS, OF_WRITES

ROOT = Path(__file__).parents[2]


def test_faults_change_no_decision():
    """Run a separate process: the order of a set, which differs from process to process, is part of a life."""
    played = subprocess.run(
        [sys.executable, "-m", "tests.support.kubernetes.sweep_life", "1", "25"],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert played.returncode == 0, played.stderr
    found = json.loads(played.stdout)
    assert found["wrong"] == 0
    assert found["faults"].keys() >= {
        *OF_LISTS,
        *OF_NEWS,
        *OF_READS,
        *OF_WRITES,
        "suspend",
        "preempted",
        "deleted",
        "fail",
    }
    assert set(found["kinds"]) == {"complete", "stopped", "failed"}
    assert found["promoted"], "a stopped trial is promoted"
