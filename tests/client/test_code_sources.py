"""Code that is not sent: a branch becomes a commit, and an image is what its folder is, in a real registry."""

import asyncio
import base64
import json
import os

import pytest
from tests.support.agents.git_server import git, repository
from tests.support.registry import needs_registry, registry
from tests.support.token_service import IDENTITY, token_service

from torchyard.api.spec_code import Code, GitCode
from torchyard.client.bundle import store
from torchyard.client.bundle.bundle import bundle_of
from torchyard.client.bundle.repository import pinned
from torchyard.client.errors import TorchYardError
from torchyard.client.registry.credentials import credentials
from torchyard.client.registry.pull import pull_code
from torchyard.client.registry.push import push
from torchyard.client.registry.reference import parse

USERS = "user:$2b$12$WvKhkK6O3P/VR9JP/UWoaeNDTHBmxjOal4eyU19ciUiOvB8b27tT6\n"
"""Their password is `secret`."""


def quiet(_sentence):
    """Print nothing."""


def test_a_branch_or_tag_becomes_the_commit_that_it_is_now(tmp_path):
    folder = tmp_path / "code"
    first = repository(folder, train_py="1")
    git(folder, "tag", "--annotate", "--message=v1", "v1")
    second = repository(folder, train_py="2")
    wanted = GitCode(url=f"file://{folder}", ref="main")
    code = pinned(Code(git=wanted))
    assert (code.commit, code.branch) == (second, "main")
    assert pinned(Code(git=GitCode(url=wanted.url))).commit == second, "HEAD"
    assert pinned(Code(git=GitCode(url=wanted.url, ref="v1"))).commit == first, "not the object of the tag"
    assert pinned(Code(git=GitCode(url="https://127.0.0.1:9/x", ref=first))).commit == first, "nothing is asked"
    third = repository(folder, train_py="3")
    assert pinned(code).commit == second, "a printed job runs what it ran"
    git(folder, "tag", "main", third)
    with pytest.raises(TorchYardError, match=r"is a branch and a tag of .* set spec.code.git.ref to refs/heads/main"):
        pinned(Code(git=wanted))
    with pytest.raises(TorchYardError, match="has no branch or tag absent"):
        pinned(Code(git=GitCode(url=wanted.url, ref="absent")))
    with pytest.raises(TorchYardError, match=r"cannot be read \(fatal: "):
        pinned(Code(git=GitCode(url="https://127.0.0.1:9/x", ref="main")))


def test_credentials_come_from_where_docker_keeps_them(tmp_path, monkeypatch):
    helper = tmp_path / "docker-credential-vault"
    helper.write_text('#!/bin/sh\nread host\necho "{\\"Username\\": \\"me\\", \\"Secret\\": \\"of $host\\"}"\n')
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert credentials("one.io") is None
    auths = {"one.io": {"auth": base64.b64encode(b"a:b:c").decode()}, "two.io": {"identitytoken": "t"}}
    known = {"auths": auths, "credHelpers": {"three.io": "vault", "four.io": "absent"}}
    (tmp_path / "config.json").write_text(json.dumps(known))
    assert credentials("one.io") == ("a", "b:c")
    assert credentials("two.io").is_token
    assert credentials("three.io") == ("me", "of three.io")
    with pytest.raises(TorchYardError, match="docker-credential-absent cannot be run"):
        credentials("four.io")


def test_code_of_images_that_no_run_has_used_for_a_month_is_deleted(tmp_path):
    for name in ("code-images/old", "code-images/new", "checkpoints-of-a-user"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("code-images/old", "checkpoints-of-a-user"):
        os.utime(tmp_path / name, (1, 1))
    store.expire(tmp_path)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")} == {
        "checkpoints-of-a-user", "code-images", "code-images/new",
    }  # fmt: skip


@pytest.mark.parametrize("text", ["code", "me/code", "HOST.io/me/code", "host.io/me/Code", "host.io/../x", "-x.io"])
def test_a_name_without_a_registry_is_refused(text):
    with pytest.raises(TorchYardError, match="is not the name of an image in a registry"):
        parse(text)


@needs_registry
def test_pushed_code_is_one_image_everywhere_and_is_read_back_bit_by_bit(tmp_path, monkeypatch):
    (tmp_path / "users").write_text(USERS)
    with registry(tmp_path, "--htpasswd", tmp_path / "users") as address:
        _push_and_pull(address, tmp_path, monkeypatch)


def _push_and_pull(address, tmp_path, monkeypatch):
    folder = tmp_path / "project"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "ä.bin").write_bytes(bytes(range(256)) * 8192)
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("lib/ä.bin")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    image = parse(f"{address}/me/code")
    with pytest.raises(TorchYardError, match="asks for credentials"):
        asyncio.run(push(folder, image, quiet))
    word = base64.b64encode(b"user:secret").decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {address: {"auth": word}}}))
    said: list[str] = []
    first = asyncio.run(push(folder, image, said.append))
    assert first.layer.digest == bundle_of(folder).digest
    assert first.tag == f"code-{first.layer.digest[:12]}"
    os.utime(folder / "run.sh", (1, 1))
    again = asyncio.run(push(folder, image, said.append))
    assert again.reference == first.reference
    assert f"torchyard: {address} has the files already" in said
    tree = pull_code(first.reference, quiet, tmp_path / "home")
    assert bundle_of(tree).digest == first.layer.digest
    with pytest.raises(TorchYardError, match="HTTP 404"):
        pull_code(first.reference[:-64] + "0" * 64, quiet, tmp_path / "home")


@needs_registry
def test_a_registry_that_asks_for_a_bearer_token_gets_one_for_what_is_done(tmp_path, monkeypatch):
    (folder := tmp_path / "project").mkdir()
    (folder / "train.py").write_text("print(1)\n")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with token_service(tmp_path) as service:
        options = ("--token-realm", service.realm, "--token-certificate", service.certificate)
        with registry(tmp_path, *options) as address:
            _with_tokens(address, service, folder, tmp_path)


def _with_tokens(address, service, folder, tmp_path):
    image = parse(f"{address}/me/code")

    def log_in(**known):
        (tmp_path / "config.json").write_text(json.dumps({"auths": {address: known}}))

    with pytest.raises(TorchYardError, match=r"asks for credentials; `docker login "):
        asyncio.run(push(folder, image, quiet))
    log_in(auth=base64.b64encode(b"writer:wrong").decode())
    with pytest.raises(TorchYardError, match="rejects the stored credentials"):
        asyncio.run(push(folder, image, quiet))
    log_in(auth=base64.b64encode(b"reader:secret").decode())
    with pytest.raises(TorchYardError, match=r"HTTP 401 UNAUTHORIZED.* as a user that may write to me/code"):
        asyncio.run(push(folder, image, quiet))
    log_in(identitytoken=IDENTITY)
    pushed = asyncio.run(push(folder, image, quiet))
    service.scopes.clear()
    log_in(auth=base64.b64encode(b"writer:secret").decode())
    assert asyncio.run(push(folder, image, quiet)) == pushed
    assert service.scopes == ["writer repository:me/code:pull,push"], "one token serves a whole push"
    log_in(auth=base64.b64encode(b"reader:secret").decode())
    tree = pull_code(pushed.reference, quiet, tmp_path / "home")
    assert bundle_of(tree).digest == pushed.layer.digest
    assert service.scopes[1:] == ["reader repository:me/code:pull"]
