"""Plain commands, and interpreters without torch: the agent needs nothing but a Python >= 3.9."""

import functools
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.waiting import DEADLINE

pytestmark = pytest.mark.e2e


@functools.cache
def interpreters():
    """Pythons >= 3.9 of this machine other than the one that runs the tests, one per minor version."""
    search = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    own = f"3.{sys.version_info.minor}"
    found = {own: sys.executable}
    places = [(pyenv, "3.*/bin/python"), *((folder, "python3.*[0-9]") for folder in search)]
    readable = [(folder, pattern) for folder, pattern in places if os.access(folder, os.R_OK | os.X_OK)]
    for path in [path for folder, pattern in readable for path in folder.glob(pattern)]:
        named = re.search(r"3\.\d+(?!.*3\.\d)", str(path))  # a start takes a moment, that of a shim a long one
        if named is None or named[0] in found or int(named[0][2:]) < 9:
            continue
        try:
            version = subprocess.run(
                [path, "-c", "import sys, ssl, ctypes; print('%d.%d' % sys.version_info[:2])"],
                capture_output=True,
                text=True,
                check=False,
                timeout=DEADLINE,
            ).stdout.strip()
        except (OSError, subprocess.TimeoutExpired):
            continue
        if version == named[0]:
            found[version] = str(path)
    missing = pytest.mark.skip(reason="no other Python >= 3.9 on PATH: install one (pyenv, uv python install)")
    del found[own]
    return sorted(found.items()) or [pytest.param("", "", marks=missing)]


@pytest.mark.parametrize(("version", "python"), interpreters())
def test_the_agent_runs_a_plain_command_on_every_python_at_hand(pod, version, python):
    one = pod("sh", "-c", "echo $NODE_RANK/$PET_NNODES $MASTER_PORT $TORCHYARD_ROUND; exit 3", python=python)
    one.ready()
    one.run(7, nodes=2, rank=1, port=4321)
    ended = one.ended()
    assert (ended["code"], ended["failure"]["rank"]) == (3, 1)
    assert one.log(1) == "1/2 4321 7\n"
    one.tell("exit", code=3)
    assert one.exited() == 3


def test_a_signal_that_is_ignored_where_the_agent_starts_is_ignored_by_the_command(pod):
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    one = pod("grep", "SigIgn", "/proc/self/status")
    signal.signal(signal.SIGUSR2, before)
    one.ready()
    one.run()
    assert one.ended()["code"] == 0
    assert int(one.log().split()[1], 16) >> (signal.SIGUSR2 - 1) & 1


@pytest.mark.parametrize(("version", "python"), interpreters()[:1])
def test_torchrun_without_torch_ends_with_a_code_and_a_message_of_its_own(pod, script, tmp_path, version, python):
    shim = tmp_path / "torchrun"
    shim.write_text(f"#!{python}\n")
    shim.chmod(0o755)
    one = pod(shim, script("print(1)"), python=python)
    state = one.ready()
    assert any("warm start is off" in notice and "torch" in notice for notice in state["notices"])
    one.run()
    ended = one.ended()
    assert ended["code"] == 72
    assert ended["failure"]["message"] == f"{python} has no module torch"
    assert ended["failure"]["classified"]


@pytest.mark.parametrize(
    ("name", "code", "words"), [("nowhere", 127, "No such file"), ("data", 126, "Permission denied")]
)
def test_a_command_that_cannot_start_ends_with_127_or_126_and_a_message(pod, tmp_path, name, code, words):
    (tmp_path / "data").write_text("not a program")
    one = pod(tmp_path / name)
    one.ready()
    one.run()
    ended = one.ended()
    assert ended["code"] == ended["failure"]["code"] == code
    assert name in ended["failure"]["message"]
    assert words in ended["failure"]["message"]


def test_a_signal_is_128_plus_its_number_and_streams_that_are_opened_by_name_keep_what_was_written(pod):
    one = pod("sh", "-c", "echo one; echo two > /dev/stderr; echo three; echo four > /dev/stdout; kill -SEGV $$")
    one.ready()
    one.run()
    ended = one.ended()
    assert (ended["code"], ended["failure"]["message"]) == (139, "killed by SIGSEGV")
    assert one.log() == "one\ntwo\nthree\nfour\n"


def test_workers_get_the_environment_but_not_the_token(pod):
    one = pod("env", MARK="kept", TORCHYARD_CONFIG="/config.json")
    one.ready()
    one.run(env={"EXTRA": "from the round"})
    one.ended()
    env = dict(line.partition("=")[::2] for line in one.log().splitlines() if "=" in line)
    assert (env["MARK"], env["EXTRA"], env["TORCHYARD_CONFIG"]) == ("kept", "from the round", "/config.json")
    assert "TORCHYARD_TOKEN_FILE" not in env
    assert env["GLOO_SOCKET_IFNAME"] == "lo"


def test_wrong_settings_are_exit_64_and_name_the_variable(agent_pyz):
    for env, words in (
        ({}, "TORCHYARD_RUN_DIR is not set"),
        ({"TORCHYARD_RUN_DIR": "/tmp/x"}, "TORCHYARD_JOB is not set"),
    ):
        done = subprocess.run(
            [sys.executable, agent_pyz, "--", "true"],
            env={"PATH": "/usr/bin:/bin", **env},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 64
        assert words in done.stderr
        assert "Traceback" not in done.stderr


def test_exit_code_0_without_the_completion_file_is_a_failure_with_a_message(pod, tmp_path):
    one = pod("true", TORCHYARD_CHECKPOINT_DIR=str(tmp_path), TORCHYARD_COMPLETION_FILE="DONE")
    one.ready()
    one.run()
    ended = one.ended()
    assert ended["code"] == 1
    assert "without writing" in ended["failure"]["message"]
    (tmp_path / "DONE").touch()
    one.run(2)
    assert one.ended(2)["code"] == 0


def test_the_folder_for_checkpoints_is_there_before_the_program_is(pod, tmp_path):
    folder = tmp_path / "volume" / "job"
    one = pod("touch", folder / "saved", TORCHYARD_CHECKPOINT_DIR=str(folder))
    one.ready()
    one.run()
    assert one.ended()["code"] == 0
    assert (folder / "saved").exists()
