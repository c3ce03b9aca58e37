"""Who we are to an API server: kubeconfigs as kubectl reads them, tokens that rotate, certificates."""

import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web
from tests.support.kubernetes.api_server import kubeconfig, refused, serving, talking

from torchyard.kubernetes.client import credentials
from torchyard.kubernetes.client.api import connected
from torchyard.kubernetes.client.credentials import Credentials
from torchyard.reconcile.ports import Unavailable


@pytest.fixture
def impatient(monkeypatch):
    """Everything is read again as soon as it is asked for."""
    monkeypatch.setattr(credentials, "RELOAD_SECONDS", 0.0)


def accepting(token: str, seen: list[str]):
    async def answer(request):
        seen.append(request.headers.get("Authorization", ""))
        return web.json_response({}) if seen[-1] == f"Bearer {token}" else refused(401, "Unauthorized", "who are you")

    return answer


async def test_a_token_of_the_kubeconfig_is_sent(tmp_path, monkeypatch):
    seen: list[str] = []
    async with talking(tmp_path, accepting("secret", seen), monkeypatch, {"token": "secret"}) as api:
        await api.request("GET", "/version")
    assert seen == ["Bearer secret"]


async def test_a_refused_token_is_read_again_and_the_request_sent_again(tmp_path, monkeypatch, impatient):
    seen: list[str] = []
    token = tmp_path / "token"
    token.write_text("old")
    async with talking(tmp_path, accepting("new", seen), monkeypatch, {"tokenFile": str(token)}) as api:
        token.write_text("new")
        await api.request("POST", "/version", body={"some": "body"})
        await api.request("GET", "/version")
    assert seen == ["Bearer old", "Bearer new", "Bearer new"]


async def test_a_token_that_stays_refused_is_unavailable_after_one_more_try(tmp_path, monkeypatch, impatient):
    seen: list[str] = []
    async with talking(tmp_path, accepting("another", seen), monkeypatch, {"token": "wrong"}) as api:
        with pytest.raises(Unavailable, match="401 who are you"):
            await api.request("GET", "/version")
    assert seen == ["Bearer wrong", "Bearer wrong"]


async def test_a_server_that_refuses_everybody_does_not_make_us_load_credentials_all_the_time(tmp_path, monkeypatch):
    seen: list[str] = []
    loads: list[None] = []
    load = credentials._load
    monkeypatch.setattr(credentials, "_load", lambda context: loads.append(None) or load(context))
    async with talking(tmp_path, accepting("another", seen), monkeypatch, {"token": "wrong"}) as api:
        for _ in range(10):
            with pytest.raises(Unavailable):
                await api.request("GET", "/version")
    assert len(loads) == 1


async def test_an_exec_plugin_is_asked_for_a_token_and_asked_again_when_it_is_refused(tmp_path, monkeypatch, impatient):
    seen: list[str] = []
    counter = tmp_path / "counter"
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        f"""
import json, pathlib
counter = pathlib.Path({str(counter)!r})
number = int(counter.read_text()) + 1 if counter.exists() else 1
counter.write_text(str(number))
print(json.dumps({{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
                   "status": {{"token": f"token-{{number}}"}}}}))
"""
    )
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": [str(plugin)],
            "interactiveMode": "Never",
        }
    }
    async with talking(tmp_path, accepting("token-2", seen), monkeypatch, user) as api:
        await api.request("GET", "/version")
    assert seen == ["Bearer token-1", "Bearer token-2"]


async def test_tokens_rotate_without_a_401(tmp_path, monkeypatch):
    """As the kubelet does it: the file changes, the old token stays good for a while."""
    monkeypatch.setattr(credentials, "TOKEN_SECONDS", -1.0)
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "token").write_text("first")
    (folder / "ca.crt").write_text("-")
    (folder / "namespace").write_text("ty-system\n")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    from kubernetes.config import incluster_config

    def in_cluster(client_configuration):
        loader = incluster_config.InClusterConfigLoader(str(folder / "token"), str(folder / "ca.crt"))
        loader._token_refresh_period = -loader._token_refresh_period
        loader.load_and_set(client_configuration)
        client_configuration.host = "http://127.0.0.1:1"

    monkeypatch.setattr(credentials, "load_incluster_config", in_cluster)
    monkeypatch.setattr(credentials, "NAMESPACE_FILE", folder / "namespace")
    found = await Credentials.load()
    assert found.namespace == "ty-system"
    await found.refresh()
    assert found.authorization == "bearer first"
    (folder / "token").write_text("second")
    await found.refresh()
    assert found.authorization == "bearer second"


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="session")
def pki(tmp_path_factory) -> Path:
    """A CA, a server's and a client's certificate."""
    folder = tmp_path_factory.mktemp("pki")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    _openssl("req", "-x509", *key, "-keyout", f"{folder}/ca.key", "-out", f"{folder}/ca.crt", "-subj", "/CN=ca")
    for name, more in (("server", ("-addext", "subjectAltName=IP:127.0.0.1")), ("client", ())):
        out = ("-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.crt", "-subj", f"/CN={name}")
        _openssl("req", "-x509", *key, *out, *more, "-CA", f"{folder}/ca.crt", "-CAkey", f"{folder}/ca.key")
    return folder


async def test_client_certificates_and_the_clusters_ca(tmp_path, monkeypatch, pki):
    asked = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(pki / "ca.crt"))
    asked.load_cert_chain(pki / "server.crt", pki / "server.key")
    asked.verify_mode = ssl.CERT_REQUIRED
    asked.verify_flags &= ~ssl.VERIFY_X509_STRICT  # as API servers are

    async def answer(request):
        subject = dict(pair for part in request.transport.get_extra_info("peercert")["subject"] for pair in part)
        return web.json_response({"you": subject["commonName"]})

    async with serving(answer, asked) as url:
        user = {"client-certificate": str(pki / "client.crt"), "client-key": str(pki / "client.key")}
        file = kubeconfig(tmp_path, url, user, cluster={"certificate-authority": str(pki / "ca.crt")})
        monkeypatch.setenv("KUBECONFIG", str(file))
        async with connected() as api:
            assert await api.request("GET", "/") == b'{"you": "client"}'
        kubeconfig(tmp_path, url, user)
        async with connected() as api:
            with pytest.raises(Unavailable, match="certificate verify failed"):
                await api.request("GET", "/")


@pytest.mark.parametrize(
    ("content", "context", "says"),
    [
        (None, None, "set KUBECONFIG"),
        ("{", None, "set KUBECONFIG"),
        ("{}", None, "set KUBECONFIG"),
        ("apiVersion: v1\nkind: Config\ncontexts: []\ncurrent-context: gone\n", None, "gone|contexts"),
        (f"contexts: {'[' * 100_000}", None, "nested more than 64 deep"),
        ("apiVersion: v1\nkind: Config\ncontexts: []\ncurrent-context: gone\n", "staging", "context `staging`"),
    ],
)
async def test_a_kubeconfig_that_is_no_good_is_explained(tmp_path, monkeypatch, content, context, says):
    file = tmp_path / "config"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("KUBECONFIG", str(file))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ValueError, match=says):
        await Credentials.load(context)


async def test_the_namespace_of_the_context_is_used(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, "http://127.0.0.1:1", namespace="team")))
    assert (await Credentials.load("test")).namespace == "team"
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, "http://127.0.0.1:1")))
    assert (await Credentials.load()).namespace == "default"
