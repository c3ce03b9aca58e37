"""`make check` finds rejected words where users and developers read them, and nowhere else."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_docstrings_messages_and_names_are_checked_but_no_comments(tmp_path):
    (tmp_path / "module.py").write_text(
        '"""Give the answer."""\n\n# whoever reads this\nTEXT = f"{1} of nobody"\nTOLD = "Give it"\n'
        "\n\nclass Wakeup: ...\n"
        '\n\ndef size():\n    """The size."""\n'
    )
    (tmp_path / "picture.py").touch()
    (tmp_path / "test_it.py").write_text("def test_nobody_is_heard():\n    ...\n")
    (tmp_path / "page.md").write_text("# Page\n\nThe agent is told so.\n")
    (tmp_path / "data.bin").write_bytes(b"nobody \xff")
    ran = subprocess.run(
        [sys.executable, ROOT / "hack/vocabulary.py", tmp_path], capture_output=True, text=True, check=False
    )
    lines = [line.removeprefix(f"{tmp_path}/") for line in ran.stdout.splitlines()]
    assert ran.returncode == 1
    assert sorted(line.split(": ")[0] for line in lines) == [
        "module.py:1",
        "module.py:11",
        "module.py:4",
        "module.py:8",
        "page.md:3",
        "picture.py:1",
        "test_it.py:1",
    ]
