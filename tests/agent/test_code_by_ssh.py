"""Code of a repository that ssh reaches: with the deploy key of a Secret, and only on the host that it names."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.agents.git_server import repository
from tests.support.hosts.machines import Machine

from torchyard.client.bundle.bundle import bundle_of
from torchyard_agent.exit_codes import ExitCode
from torchyard_agent.inputs import fetch

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A machine with sshd, which knows one deploy key; yields it, and the commit of a repository on it."""
    folder = tmp_path_factory.mktemp("ssh")
    key(folder / "user_key")
    machine = Machine(folder, "git", "127.0.0.1")
    commit = repository(folder / "code", train_py="print(1)\n", lib__model_py="VALUE = 1\n")
    machine.start()
    yield machine, folder, commit
    machine.cut()


def key(path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path


@pytest.fixture
def fetched(server, tmp_path, monkeypatch):
    """Fetch with the keys of a Secret; return exit code, message and the folder of the code."""
    machine, folder, commit = server
    monkeypatch.setattr(fetch, "FIRST_PAUSE_SECONDS", 0.0)
    host_key = (machine.folder / "host_key.pub").read_text()

    def fetched(private: Path = folder / "user_key", known: str = host_key):
        secret = tmp_path / "secret"
        shutil.rmtree(secret, ignore_errors=True)
        secret.mkdir()
        secret.joinpath("ssh-privatekey").write_bytes(private.read_bytes())
        secret.joinpath("known_hosts").write_text(f"[127.0.0.1]:{machine.port} {known}")
        address = f"ssh://root@127.0.0.1:{machine.port}{folder}/code"
        git = {"url": address, "commit": commit, "secret": str(secret)}
        reports: list[dict] = []
        place = {"root": str(tmp_path / "code"), "cache": str(tmp_path / "cache"), "shown": "the source"}
        fetch.run(None, reports.append, json.dumps({**place, "git": git}))
        state = reports[-2]["inputs"][0]
        return reports[-1]["exit"], reports[-1]["message"], tmp_path / "code" / state.get("revision", "")

    return fetched


def test_a_deploy_key_and_known_hosts_give_the_files_of_the_commit(fetched, server):
    code, message, tree = fetched()
    assert (code, message) == (0, "")
    assert tree.name == bundle_of(server[1] / "code").digest


def test_a_host_with_another_key_than_known_hosts_names_gets_no_connection(fetched, tmp_path):
    code, message, _ = fetched(known=key(tmp_path / "other").with_suffix(".pub").read_text())
    assert code == ExitCode.CODE_REJECTED
    assert "Host key verification failed" in message


def test_a_key_that_the_server_does_not_know_is_rejected_by_name(fetched, tmp_path):
    code, message, _ = fetched(private=key(tmp_path / "other"))
    assert code == ExitCode.CODE_REJECTED
    assert "Permission denied (publickey" in message
