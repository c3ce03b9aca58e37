"""Code that is not sent with a job: from a private repository over TLS, or mounted; and each way in which it fails."""

import json
import os
from pathlib import Path

import pytest
from tests.support.agents.git_server import TOKEN, git, repository, serving_git

from torchyard.client.bundle.bundle import bundle_of
from torchyard_agent.exit_codes import ExitCode
from torchyard_agent.inputs import fetch
from torchyard_agent.inputs import git as git_module


class Pod:
    """What a pod has of the code, and what its agent reports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reports: list[dict] = []

    def fetch(self, **source: object) -> tuple[int, str]:
        """Prepare the code; return exit code and message."""
        self.reports.clear()
        known = {"root": str(self.folder / "code"), "cache": str(self.folder / "cache"), "shown": "the source"}
        fetch.run(None, self.reports.append, json.dumps({**known, **source}))
        return self.reports[-1]["exit"], self.reports[-1]["message"]

    @property
    def state(self) -> dict:
        return self.reports[-2]["inputs"][0]

    @property
    def tree(self) -> Path:
        return self.folder / "code" / self.state["revision"]


@pytest.fixture
def pod(tmp_path, monkeypatch) -> Pod:
    monkeypatch.setattr(fetch, "FIRST_PAUSE_SECONDS", 0.0)
    return Pod(tmp_path / "pod")


@pytest.fixture
def secret(tmp_path):
    """Return a folder as a Secret is mounted."""

    def secret(**keys: bytes) -> str:
        folder = tmp_path / "secret"
        folder.mkdir()
        for name, data in keys.items():
            (folder / name.replace("_", ".")).write_bytes(data)
        return str(folder)

    return secret


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("repositories")
    first = repository(root / "code", train_py="print(1)\n", lib__model_py="VALUE = 1\n")
    (root / "code" / "run.sh").write_bytes(b"#!/bin/sh\n\0")
    (root / "code" / "run.sh").chmod(0o755)
    (root / "code" / "link.py").symlink_to("lib/model.py")
    # Neither a filter nor an export rule of the repository has a say.
    (root / "code" / ".gitattributes").write_text("*.py filter=evil eol=crlf ident\nlib export-ignore\n")
    second = repository(root / "code")
    with serving_git(root) as server:
        yield server, root / "code", first, second


def test_a_private_repository_gives_the_files_of_a_checkout_and_their_digest(pod, secret, served, tmp_path):
    server, folder, first, second = served
    mounted = secret(token=TOKEN.encode() + b"\n", ca_crt=server.ca)
    wanted = {"url": f"{server.url}/code", "commit": second, "secret": mounted}
    assert pod.fetch(git=wanted) == (0, "")
    git(tmp_path, "clone", "--quiet", "--config=core.autocrlf=false", str(folder), "clone")
    (tmp_path / "clone/.git/info/attributes").write_text("* -filter -eol -ident -text\n")
    git(tmp_path / "clone", "checkout", "--quiet", "--", ".")
    assert pod.state["revision"] == bundle_of(tmp_path / "clone").digest
    assert (pod.tree / "link.py").read_text() == "VALUE = 1\n"
    assert os.access(pod.tree / "run.sh", os.X_OK)
    assert not (pod.tree / "train.py").stat().st_mode & 0o222
    server.requests.clear()
    assert pod.fetch(git=wanted) == (0, "")
    assert server.requests == [], "a commit is fetched once"
    assert pod.fetch(git={**wanted, "commit": first, "path": "lib"}) == (0, "")
    assert [path.name for path in pod.tree.iterdir()] == ["model.py"], "an older commit, and a folder of it"


def test_commits_that_no_round_used_for_a_month_are_deleted_from_the_cache(pod, secret, served):
    server, _, first, second = served
    wanted = {"url": f"{server.url}/code", "secret": secret(token=TOKEN.encode(), ca_crt=server.ca)}
    assert pod.fetch(git={**wanted, "commit": first}) == (0, "")
    (manifest,) = (pod.folder / "cache").glob("*.json")
    (abandoned := pod.folder / "cache" / "0.partial").mkdir()
    for path in (manifest, abandoned):
        os.utime(path, (1, 1))
    assert pod.fetch(git={**wanted, "commit": second}) == (0, "")
    (kept,) = (pod.folder / "cache").glob("*.json")
    assert kept != manifest
    assert {path.name for path in (pod.folder / "cache").iterdir() if path.is_dir()} == {kept.stem}


@pytest.mark.parametrize(
    ("change", "keys", "end"),
    [
        ({}, {"token": b"wrong"}, (ExitCode.CODE_REJECTED, "Authentication failed")),
        ({}, {"username": b"me"}, (ExitCode.CODE_REJECTED, "has neither `token` nor `password`")),
        ({}, {}, (ExitCode.CODE_REJECTED, "certificate")),
        ({"commit": "0" * 40}, {"token": TOKEN.encode()}, (ExitCode.CODE_REJECTED, "not our ref")),
        ({"path": "absent"}, {"token": TOKEN.encode()}, (ExitCode.CODE_REJECTED, "has no folder absent")),
        ({"url": "https://127.0.0.1:9/code"}, {}, (ExitCode.CODE_NOT_FETCHED, "Failed to connect")),
        ({"url": "file:///etc"}, {}, (ExitCode.CODE_REJECTED, "transport 'file' not allowed")),
        ({"url": "ext::sh -c true"}, {}, (ExitCode.CODE_REJECTED, "transport 'ext' not allowed")),
        ({"url": "ssh://git@localhost/code"}, {}, (ExitCode.CODE_REJECTED, "ssh needs ssh-privatekey and known_hosts")),
    ],
)
def test_code_that_cannot_be_had_ends_with_the_sentence_of_git(pod, secret, served, change, keys, end):  # noqa: PLR0917
    server, _, _, second = served
    mounted = secret(ca_crt=server.ca, **keys) if keys else ""
    wanted = {"url": f"{server.url}/code", "commit": second, "secret": mounted, **change}
    code, message = pod.fetch(git=wanted)
    assert code == end[0]
    assert end[1] in message
    assert TOKEN not in message


def test_without_git_the_image_is_named(pod, served, monkeypatch):
    server, _, _, second = served
    monkeypatch.setenv("PATH", "/nowhere")
    code, message = pod.fetch(git={"url": f"{server.url}/code", "commit": second})
    assert (code, message.partition(":")[0]) == (ExitCode.CODE_REJECTED, "git is not in the image (spec.image)")


def test_a_commit_that_is_too_large_is_refused(pod, secret, served, monkeypatch):
    server, _, _, second = served
    monkeypatch.setattr(git_module, "MAX_TREE_BYTES", 10)
    mounted = secret(token=TOKEN.encode(), ca_crt=server.ca)
    code, message = pod.fetch(git={"url": f"{server.url}/code", "commit": second, "secret": mounted})
    assert code == ExitCode.CODE_REJECTED
    assert "name a folder in spec.code.git.path" in message


def test_mounted_code_is_verified_and_run_where_it_is(pod, tmp_path):
    (tmp_path / "claim").mkdir()
    (tmp_path / "claim" / "train.py").write_text("print(1)\n")
    assert pod.fetch(folder=str(tmp_path / "claim")) == (0, "")
    digest = bundle_of(tmp_path / "claim").digest
    size = {"bytes": 9, "totalBytes": 9, "files": 1}
    assert pod.state == {"name": "spec.code", "state": "ready", "revision": digest, **size}
    assert pod.tree.resolve() == tmp_path / "claim"
    assert pod.fetch(folder=str(tmp_path / "claim"), digest=digest) == (0, "")
    (tmp_path / "claim" / "train.py").write_text("print(2)\n")
    code, message = pod.fetch(folder=str(tmp_path / "claim"), digest=digest)
    assert code == ExitCode.CODE_MISMATCH
    assert f"and the job names {digest[:12]}" in message
    assert pod.fetch(folder=str(tmp_path / "absent"), absent="claim c has no folder absent") == (
        ExitCode.CODE_REJECTED,
        "claim c has no folder absent",
    )
