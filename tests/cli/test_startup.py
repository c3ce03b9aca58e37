"""`torchyard --help` is quick because of what it does not import."""

import json
import subprocess
import sys

import pytest

from torchyard.api.resource import read_job
from torchyard.cli.main import COMMANDS, command_of, overview, parser_of
from torchyard.local.run import run_folder
from torchyard.local.runs import create_run

HEAVY = {"torch", "textual", "kopf", "kubernetes", "aiohttp", "yaml", "jsonschema", "asyncio"}
FOR_COMMANDS = {"typer", "click", "pydantic", "msgspec", "rich"}

PROBE = """
import json, sys
from torchyard.cli.main import main
code = main(sys.argv[1:])
packages = {".".join(name.split(".")[:parts]) for name in sys.modules for parts in (1, 2)}
print(json.dumps([code, sorted(packages)]), file=sys.stderr)
"""


def loaded(*words: str) -> tuple[str, int, set[str]]:
    done = subprocess.run([sys.executable, "-c", PROBE, *words], capture_output=True, text=True, check=True)
    code, modules = json.loads(done.stderr.splitlines()[-1])
    return done.stdout, code, set(modules)


@pytest.mark.parametrize("words", [["--help"], ["-h"], [], ["--version"]])
def test_the_overview_imports_nothing_that_is_slow(words: list[str]) -> None:
    text, code, modules = loaded(*words)
    assert code == 0
    assert text
    assert modules & (HEAVY | FOR_COMMANDS) == set()


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - {"operator"}))
def test_help_of_a_command_imports_neither_the_cluster_nor_the_view(command: str) -> None:
    text, code, modules = loaded(command, "--help")
    assert code == 0
    assert f"torchyard {command}" in text
    assert modules & HEAVY == set()


def test_listing_runs_imports_nothing_that_only_controlling_them_needs(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path))
    job = read_job({"metadata": {"name": "demo"}, "spec": {"script": "pass"}})
    create_run(run_folder("demo"), job, tmp_path)
    text, code, modules = loaded("ps")
    assert code == 0
    assert "demo" in text
    assert modules & (HEAVY | {"rich", "ctypes", "tempfile"}) == set()
    assert modules & {f"torchyard.{package}" for package in ("agents", "kubernetes", "sweeps")} == set()


def test_the_overview_lists_every_command() -> None:
    text, _, _ = loaded("--help")
    assert all(f"  {name} " in text for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_summary_of_a_command_is_written_once_and_shown_in_both_helps(command: str) -> None:
    summary = COMMANDS[command].summary
    assert summary in overview()
    assert parser_of(command).format_help().split("\n\n")[1] == summary
    assert (command_of(command).__doc__ or "").startswith(f"Carry out `torchyard {command}`.")
