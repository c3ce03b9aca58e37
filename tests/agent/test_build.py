"""The zipapp: reproducible, complete, standard library only, Python 3.9."""

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import torchyard_agent
from torchyard_agent.build import build

PACKAGE = Path(torchyard_agent.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))


def test_the_same_sources_build_the_same_bytes_whatever_the_folder_time_and_name(tmp_path):
    for number, zone in enumerate(("UTC", "Asia/Tokyo")):
        folder = tmp_path / f"far-{number}"
        folder.mkdir()
        code = "import os, sys; os.umask(int(sys.argv[2])); from torchyard_agent.build import main; main([sys.argv[1]])"
        env = {**os.environ, "TZ": zone}
        subprocess.run([sys.executable, "-c", code, folder / f"{number}.pyz", str(number * 0o27)], check=True, env=env)
    assert (tmp_path / "far-0/0.pyz").read_bytes() == (tmp_path / "far-1/1.pyz").read_bytes()


def test_it_holds_the_agent_and_the_installed_pynvml_and_nothing_else(tmp_path):
    build(tmp_path / "agent.pyz")
    names = zipfile.ZipFile(tmp_path / "agent.pyz").namelist()
    ours = {f"torchyard_agent/{path.relative_to(PACKAGE)}" for path in SOURCES}
    sources = {"__main__.py", "pynvml.py", *ours}
    assert {name for name in names if not name.endswith("/")} == sources | {f"{name}c" for name in sources}
    assert not any(path.name == "pynvml.py" for path in SOURCES)


IMPORTED = """
import importlib._bootstrap_external as external
external.MAGIC_NUMBER = CHOSEN
from torchyard_agent import exit_codes
print(exit_codes.__file__.rpartition(".")[2], exit_codes.ExitCode.CONFIG + 0)
"""


@pytest.mark.parametrize(
    ("magic", "suffix"), [("external.MAGIC_NUMBER", "pyc"), ("b'none'", "py")], ids=["own", "other"]
)
def test_bytecode_is_used_by_the_python_that_built_it_and_passed_over_by_any_other(tmp_path, magic, suffix):
    build(tmp_path / "agent.pyz")
    code = IMPORTED.replace("CHOSEN", magic)
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "agent.pyz")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [suffix, "64"]


# What the image may have, by the file that asks for it.
OF_THE_IMAGE = {"launcher.py": "torch", "gpu_check.py": "torch", "buckets.py": "fsspec", "hub.py": "huggingface_hub"}


def test_only_the_standard_library_is_imported_and_other_modules_only_where_they_may_be_missing():
    allowed = {*sys.stdlib_module_names, "torchyard_agent"}
    for path in SOURCES:
        imported = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").partition(".")[0])
        assert imported - allowed <= {OF_THE_IMAGE.get(path.name)}, path.name


def test_the_sources_need_no_python_newer_than_3_9():
    vermin = [Path(sys.executable).with_name("vermin"), "-t=3.9-", "--no-tips", "--violations"]
    done = subprocess.run([*vermin, *map(str, SOURCES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
