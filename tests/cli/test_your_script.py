"""The page "Your own script in ten minutes": its script runs, reports, is killed and goes on from its checkpoint."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
from tests.cli.conftest import CommandLine, eventually
from tests.support.waiting import DEADLINE

PAGE = Path(__file__).parents[2] / "docs" / "your-script.md"


@pytest.mark.e2e
def test_the_script_of_the_page_reports_and_continues_from_its_checkpoint(torchyard: CommandLine) -> None:
    (script,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    (torchyard.folder / "train.py").write_text(script)
    run = torchyard.start("run", "train.py", "--nodes", "2", "-o", "json", "--", "--lr", "0.02", "--steps", "100000000")
    folder = torchyard.run_folder("train")
    eventually((folder / "checkpoints" / "checkpoint.pt").exists)
    (worker,) = re.findall("rank 1 ([0-9]+)", torchyard("status", "train").stdout)
    assert "train.py" in Path(f"/proc/{worker}/cmdline").read_text()
    assert Path(f"/proc/{worker}/comm").read_text() == "ty-rank-1\n"
    os.kill(int(worker), signal.SIGKILL)
    eventually(lambda: torchyard.has_logged("train", "resumed after step"))
    assert "resumed after step" in torchyard("logs", "train").stdout
    eventually(lambda: b'"Running"' in (folder / "status.json").read_bytes())
    run.send_signal(signal.SIGINT)
    stdout, stderr = run.communicate(timeout=DEADLINE)
    status = json.loads(stdout)["status"]
    assert (run.returncode, status["state"]) == (75, "Suspended"), stderr
    assert re.search(r"^\[rank 0\] step [0-9]+/100000000 loss 0\.[0-9]+$", stderr, re.MULTILINE)
    assert re.search(r"^\[rank 1\] resumed after step [0-9]+$", stderr, re.MULTILINE)
    assert status["progress"]["totalSteps"] == 100_000_000
    assert status["checkpoint"]["step"] > 0
    assert 0 <= status["metrics"]["loss"] < 10
    assert "checkpoint.pt" in torchyard("fetch", "train").stdout
