"""The examples of docs/python.md run as they stand; those of a cluster call what there is, as it is."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.shared_templates import SHARED

import torchyard as ty
from torchyard.client import sync

PAGE = (Path(__file__).parents[2] / "docs/python.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```python{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.e2e
def test_the_examples_of_this_machine_run(tmp_path, shared_cache, monkeypatch):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "cache").symlink_to(shared_cache)
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    for name, value in SHARED.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "page.py").write_text("\n".join(blocks("")))
    (tmp_path / "train.py").write_text("\n".join(blocks(" module")))
    for program in ("page.py", "train.py"):
        done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    logs = sorted(path.read_text() for path in (tmp_path / "home/runs/train").glob("pods/*/logs/rank-*.log"))
    assert logs == [f"rank {rank} trains 10 steps at 0.001\n" for rank in (0, 1)]


def test_the_cluster_examples_of_the_page_use_existing_functions():
    calls = [node for text in blocks(" cluster") for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    found = {ast.unparse(call.func): [word.arg for word in call.keywords] for call in calls}
    assert {"ty.submit", "job.logs", "job.wait", "job.fetch", "ty.sweep", "sweep.trials"} <= found.keys()
    owners = {"ty": sync, "job": ty.Job, "sweep": ty.Sweep}
    for called, keywords in found.items():
        owner, _, name = called.partition(".")
        if owner in owners:
            function = getattr(owners[owner], name)
            assert set(keywords) <= inspect.signature(function).parameters.keys(), called
