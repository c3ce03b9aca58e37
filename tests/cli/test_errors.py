"""Whatever goes wrong is one sentence with its fix on stderr, exit code 64, and never a traceback."""

import io
import subprocess
from pathlib import Path

import pytest
from tests.cli.conftest import EXECUTABLE, CommandLine
from tests.support.waiting import DEADLINE

from torchyard.cli.commands.chat import lines
from torchyard.cli.errors import RefusalError
from torchyard.cli.main import COMMANDS, ELSEWHERE


def refused(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 64, done
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["rnu"], ["no command 'rnu'", "did you mean `torchyard run`?"]),
        (["ls"], ["no command 'ls'", "did you mean `torchyard ps`?"]),
        (["--hlep"], ["no option '--hlep'"]),
        (["-n", "team"], ["-n team: no command is given", "torchyard --help"]),
        (["-n"], ["no command is given"]),
        (["-n", "team", "rnu"], ["no command 'rnu'", "did you mean `torchyard run`?"]),
        (["run"], ["FILE", "torchyard run --help"]),
        (["run", "a.yaml", "--nmae", "x"], ["--nmae"]),
        (["ps", "-o", "xml"], ["'xml'", "'json', 'yaml', 'wide'"]),
        (["logs", "x", "--rank", "one"], ["--rank", "'one'"]),
        (["status", "nowhere"], ["no run 'nowhere'", "torchyard ps"]),
        (["status", "../../etc"], ["'../../etc' is not a valid name of a run"]),
        (["rm", "../x"], ["not a valid name of a run"]),
        (["stop", "nowhere"], ["no run 'nowhere'"]),
        (["resume", "nowhere"], ["no run 'nowhere'"]),
        (["completion", "tcsh"], ["'tcsh'", "'bash'"]),
        (["logs", "x", "--tail", "9" * 20], ["--tail: a number of 20 digits is too large"]),
        (["run", "--procs-per-node", "cpu", "--", "true"], ["'cpu' is not a whole number of at least 1, nor auto"]),
        (
            ["run", "--", "printf", "caf\udce9"],
            ["printf: spec.command[1]: character 4 is the byte 0xe9"],
        ),
    ],
)
def test_a_wrong_command_line(torchyard: CommandLine, words: list[str], parts: list[str]) -> None:
    refused(torchyard(*words), *parts)


@pytest.mark.parametrize("command", ["run", "validate"])
@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"spec: [unclosed",
        b"\xff\xfe\x00",
        b"apiVersion: torchyard.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: x}\nspec: {nodes: 0}\n",
        b"- 1\n- 2\n",
        b"a: &a [*a]\n",
    ],
    ids=["missing", "empty", "unclosed", "binary", "invalid", "list", "cyclic"],
)
def test_a_wrong_file(torchyard: CommandLine, command: str, content: bytes | None) -> None:
    if content is not None:
        (torchyard.folder / "job.yaml").write_bytes(content)
    refused(torchyard(command, "job.yaml"), "job.yaml")
    assert not torchyard.home.exists(), "an invalid job leaves nothing behind"


def test_a_program_that_is_taken_for_a_job_file(torchyard: CommandLine) -> None:
    (torchyard.folder / "train").write_text("#!/usr/bin/env python3\nprint(1)\n")
    refused(torchyard("run", "train"), "train:2: expected a mapping", "`torchyard run -- torchrun train`")


def test_a_folder_whose_name_is_not_utf_8(torchyard: CommandLine) -> None:
    torchyard.folder /= "caf\udce9"
    torchyard.folder.mkdir()
    refused(torchyard("run", "--", "true"), "caf\\udce9' is not UTF-8: rename the folder")


def test_a_current_folder_that_is_gone(torchyard: CommandLine) -> None:
    argv = ["bash", "-c", f"mkdir gone; cd gone; rmdir ../gone; {EXECUTABLE} run -- true"]
    done = subprocess.run(argv, cwd=torchyard.folder, env=torchyard.env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        1,
        "torchyard: the current folder was deleted; change to another one",
    )


@pytest.mark.parametrize("home", ["~no-user-of-this-machine/runs", "/tmp/caf\udce9"])
def test_a_home_that_cannot_be_used(torchyard: CommandLine, home: str) -> None:
    torchyard.env["TORCHYARD_HOME"] = home
    done = torchyard("ps")
    assert done.returncode == 1
    assert "set TORCHYARD_HOME to a" in done.stderr
    assert "internal error" not in done.stderr


def test_a_folder_instead_of_a_file(torchyard: CommandLine) -> None:
    (torchyard.folder / "job.yaml").mkdir()
    refused(torchyard("run", "job.yaml"), "job.yaml")


def test_a_home_that_cannot_be_written_to(torchyard: CommandLine) -> None:
    torchyard.env["TORCHYARD_HOME"] = "/dev/null/home"
    (torchyard.folder / "job.yaml").write_text(
        "apiVersion: torchyard.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: x}\nspec: {script: pass}\n"
    )
    refused(torchyard("run", "job.yaml"), "/dev/null/home", "TORCHYARD_HOME")
    assert torchyard("ps").returncode == 0


def test_an_error_while_a_run_is_controlled_is_not_reported_as_an_invalid_file(torchyard: CommandLine) -> None:
    in_the_way = torchyard.record("cvrp") / "intake.sock"
    in_the_way.mkdir()
    try:
        for command in ("resume", "stop"):
            done = torchyard(command, "cvrp")
            assert done.returncode == 1, done
            assert "intake.sock" in done.stderr
            assert "Traceback" not in done.stderr
            assert "check the path" not in done.stderr
        assert "torchyard resume cvrp" in torchyard("resume", "cvrp").stderr
    finally:
        in_the_way.rmdir()


def test_a_closed_stderr_changes_no_exit_code(torchyard: CommandLine) -> None:
    done = subprocess.run(["bash", "-c", f"{EXECUTABLE} status nowhere 2>&-"], env=torchyard.env, check=False)
    assert done.returncode == 64
    process = torchyard.start("ps", "-o", "bogus")
    assert process.stderr is not None
    process.stderr.close()
    assert process.wait(timeout=DEADLINE) == 64


@pytest.mark.parametrize(
    ("words", "code"), [("ps", 0), ("status cvrp", 0), ("status nowhere", 64), ("logs cvrp", 0), ("--version", 0)]
)
def test_a_closed_stdout_changes_no_exit_code(torchyard: CommandLine, words: str, code: int) -> None:
    torchyard.record("cvrp")
    argv = ["bash", "-c", f"{EXECUTABLE} {words} >&-"]
    done = subprocess.run(argv, env=torchyard.env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert "internal error" not in done.stderr


def test_a_near_name_is_suggested(torchyard: CommandLine) -> None:
    torchyard.record("cvrp")
    refused(torchyard("status", "cvpr"), "did you mean 'cvrp'?")


def test_a_damaged_job_file_is_named_and_hides_no_other_run(torchyard: CommandLine) -> None:
    (torchyard.record("broken") / "job.yaml").write_text("spec: [")
    torchyard.record("whole", {"state": "Succeeded"})
    refused(torchyard("status", "broken"), "broken/job.yaml")
    listed = torchyard("ps")
    assert listed.returncode == 0
    assert "whole" in listed.stdout
    assert "Unreadable" in listed.stdout


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"status": 3}', b"\xff\x00"])
def test_a_damaged_status_does_not_end_a_run(torchyard: CommandLine, content: bytes) -> None:
    (torchyard.record("cvrp") / "status.json").write_bytes(content)
    for command in (["status", "cvrp"], ["status", "cvrp", "-o", "json"], ["ps"], ["logs", "cvrp"], ["events", "cvrp"]):
        done = torchyard(*command)
        assert done.returncode == 0, done
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("switch", ["--debug", "TORCHYARD_DEBUG"])
def test_debug_shows_the_traceback_and_keeps_the_exit_code(torchyard: CommandLine, switch: str) -> None:
    words = ["status", "nowhere"]
    if switch == "--debug":
        words.append(switch)
    else:
        torchyard.env[switch] = "1"
    done = torchyard(*words)
    assert done.returncode == 64
    assert "Traceback" in done.stderr
    assert "no run 'nowhere'" in done.stderr.splitlines()[-1]


def test_a_closed_pipe_is_not_an_error(torchyard: CommandLine) -> None:
    log = torchyard.record("cvrp") / "pods" / "cvrp-0-0" / "logs" / "rank-0.log"
    log.parent.mkdir(parents=True)
    log.write_text("line\n" * 200_000)
    process = torchyard.start("logs", "cvrp")
    assert process.stdout is not None
    assert process.stdout.readline() == "[r0 cvrp-0-0] line\n"
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(timeout=DEADLINE) == 141


def test_a_finished_failure_cannot_be_resumed_and_names_the_cause(torchyard: CommandLine) -> None:
    torchyard.record("cvrp", {"state": "Failed"})
    refused(torchyard("resume", "cvrp"), "has already failed", "torchyard status cvrp", "torchyard run FILE")


def test_paths_are_not_needed_to_ask_for_help(torchyard: CommandLine, tmp_path: Path) -> None:
    torchyard.env["TORCHYARD_HOME"] = str(tmp_path / "not" / "there")
    assert torchyard("--help").returncode == 0
    assert torchyard("ps").returncode == 0


def test_each_suggested_command_exists():
    assert set(ELSEWHERE.values()) <= set(COMMANDS)
    assert not set(ELSEWHERE) & set(COMMANDS)


def test_a_line_of_a_conversation_that_is_not_text_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\ufeffcaf\u00e9\n \n".encode() + b"caf\xe9\n")))
    turns = lines(terminal=False)
    assert next(turns) == "caf\u00e9"
    with pytest.raises(RefusalError, match="stdin, line 3: not UTF-8"):
        next(turns)
