"""The context that kubectl would take out of several files, who it would be there, through which proxy it would go."""

import json

import pytest
from aiohttp import web
from tests.support.kubernetes.api_server import kubeconfig, serving, talking

from torchyard.kubernetes.client.api import connected
from torchyard.kubernetes.client.credentials import Credentials, proxy_for


def write(folder, name, *, current=True, namespace="default", token="", server="http://127.0.0.1:1"):
    """A kubeconfig with one context of this name."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server}}],
        "users": [{"name": name, "user": {"token": token} if token else {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": namespace}}],
    }
    (folder / name).write_text(json.dumps(document | ({"current-context": name} if current else {})))
    return str(folder / name)


async def test_of_several_files_the_first_current_context_wins(tmp_path, monkeypatch):
    first = write(tmp_path, "first", namespace="one", server="http://first:1")
    second = write(tmp_path, "second", namespace="two", server="http://second:1")
    monkeypatch.setenv("KUBECONFIG", f"{first}:{second}:{tmp_path}/gone")
    found = await Credentials.load()
    assert (found.context, found.namespace, found.server) == ("first", "one", "http://first:1")
    found = await Credentials.load("second")
    assert (found.context, found.namespace, found.server) == ("second", "two", "http://second:1")


async def test_a_file_without_a_current_context_serves_who_names_one(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", write(tmp_path, "only", current=False, namespace="team"))
    assert (await Credentials.load("only")).namespace == "team"
    with pytest.raises(ValueError, match="there is no current-context"):
        await Credentials.load()


async def test_an_empty_file_among_others_is_passed_over(tmp_path, monkeypatch):
    (tmp_path / "empty").touch()
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/empty:{write(tmp_path, 'other')}")
    assert (await Credentials.load()).context == "other"


async def test_who_impersonates_is_the_other_one_in_every_request(tmp_path, monkeypatch):
    seen = []

    async def answer(request):
        seen.append([(name, value) for name, value in request.headers.items() if name.startswith("Impersonate-")])
        return web.json_response({})

    user = {"token": "abc", "as": "jane", "as-groups": ["devs", "ops"], "as-user-extra": {"reason": ["audit"]}}
    async with talking(tmp_path, answer, monkeypatch, user) as api:
        await api.request("GET", "/version")
        await api.request("POST", "/version", body={})
    jane = [("Impersonate-User", "jane"), ("Impersonate-Group", "devs"), ("Impersonate-Group", "ops")]
    assert seen == [[*jane, ("Impersonate-Extra-reason", "audit")]] * 2


@pytest.mark.parametrize("command", ["/bin/false", "no-such-plugin", "/bin/echo"])
async def test_no_request_is_anonymous_because_a_plugin_failed(tmp_path, monkeypatch, command):
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": command, "installHint": "get it from X"}
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, "http://127.0.0.1:1", {"exec": plugin})))
    with pytest.raises(ValueError, match=f"the plugin '{command}' gave no credentials; get it from X"):
        await Credentials.load()


@pytest.mark.parametrize(
    ("server", "spared", "expected"),
    [
        ("https://api.example:6443", "", "http://proxy:3128"),
        ("https://api.example:6443", "other,.example", None),
        ("https://10.0.0.1:6443", "10.0.0.0/8", None),
        ("https://10.0.0.1:6443", "api.example", "http://proxy:3128"),
        ("https://127.0.0.1:38943", "", None),
        ("https://localhost:38943", "", None),
    ],
)
def test_a_proxy_of_the_environment(monkeypatch, server, spared, expected):
    for name in ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", spared)
    assert proxy_for(server) == expected


async def test_a_cluster_on_this_machine_is_reached_past_a_proxy(tmp_path, monkeypatch):
    async def answer(_request):
        return web.json_response({"you": "are here"})

    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with serving(answer) as url:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, url)))
        async with connected() as api:
            assert b"here" in await api.request("GET", "/version")
