"""Completion offers commands, options, values and run names, in every shell it knows."""

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.cli.conftest import EXAMPLES, EXECUTABLE, CommandLine

from torchyard.cli.completion.candidates import candidates
from torchyard.cli.main import COMMANDS, parser_of


@pytest.fixture
def runs(torchyard: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    torchyard.record("cvrp")
    torchyard.record("script")
    (torchyard.home / "sweeps/tune").mkdir(parents=True)
    (torchyard.home / "sweeps/tune/sweep.yaml").touch()
    monkeypatch.setenv("TORCHYARD_HOME", str(torchyard.home))
    return torchyard


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["st"], ["status", "stacks", "stop"]),
        (["logs", ""], ["cvrp", "script"]),
        (["logs", "s"], ["script"]),
        (["logs", "cvrp", "--r"], ["--rank", "--round"]),
        (["logs", "cvrp", ""], []),
        (["logs", "--rank", "0", ""], ["cvrp", "script"]),
        (["rm", "cvrp", "s"], ["script"]),
        (["ps", "-o", ""], ["json", "yaml", "wide"]),
        (["sweep", "re"], ["report", "resume"]),
        (["sweep", "show", ""], ["tune"]),
        (["run", "--name", ""], []),
        (["run", ""], []),
        (["run", "train.py", "--nod"], ["--nodes"]),
        (["run", "train.py", "--", "--no"], []),
        (["completion", "z"], ["zsh"]),
        (["nonsense", ""], []),
        (["--debug", "stat"], ["status"]),
        (["run", "--set", "trainer.p"], ["trainer.params."]),
        (["run", "--set", "spec.nod"], ["spec.nodes="]),
        (["run", "--set", "trainer.params.pre"], []),
        (["run", str(EXAMPLES / "cvrp.yaml"), "--set", "trainer.params.pre"], ["trainer.params.preset="]),
        (["run", "--set", "trainer.name=lm", "--set", "trainer.params.preset=t"], ["trainer.params.preset=tiny"]),
        (["run", "--set", "trainer.mode", "=", "tr"], ["trainer.mode=train"]),
        (["run", "--set", "procsPerNode", "="], ["procsPerNode=auto"]),
        (["run", "--set", "nowhere.x"], []),
    ],
)
def test_candidates(runs: CommandLine, words: list[str], found: list[str]) -> None:
    assert candidates(words, COMMANDS, parser_of) == found


def test_bash_completes_with_the_script(runs: CommandLine) -> None:
    ask = """
    eval "$(torchyard completion bash)"
    COMP_WORDS=(torchyard logs cv) COMP_CWORD=2; _torchyard; printf '%s\\n' "${COMPREPLY[@]}"
    COMP_WORDS=(torchyard logs cvrp "") COMP_CWORD=3; _torchyard; echo "${#COMPREPLY[@]}"
    COMP_WORDS=(torchyard run --set trainer.mode = tr) COMP_CWORD=5; _torchyard; printf '%s\\n' "${COMPREPLY[@]}"
    """
    env = {**runs.env, "PATH": f"{Path(EXECUTABLE).parent}:/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", ask], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["cvrp", "0", "train"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_the_shell_can_read(torchyard: CommandLine, shell: str) -> None:
    done = torchyard("completion", shell)
    assert done.returncode == 0
    assert "torchyard __complete" in done.stdout
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=done.stdout, text=True, check=True)
