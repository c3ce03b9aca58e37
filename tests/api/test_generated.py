"""What `make generate` writes is committed as it is written now."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_generated_file_is_the_committed_one():
    said = subprocess.run(
        [sys.executable, ROOT / "hack/generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr
