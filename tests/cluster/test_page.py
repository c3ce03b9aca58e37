"""The page as a pod runs it, against the real API server: two users of different rights, and a token that ended."""

import asyncio
import base64
import json
import os
import sys
from pathlib import Path

import aiohttp
import pytest
import yaml
from tests.support.cluster.operators import PATIENCE, until
from tests.ui.conftest import needs_libraries

from torchyard_agent.workers.ports import ReservedPort

pytestmark = needs_libraries
HOST = "torchyard-page.example"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


class Page:
    """`python3 -m torchyard.ui.served`, without a kubeconfig: it has no credentials but those of its requests."""

    def __init__(self, port):
        self.url = f"https://127.0.0.1:{port}"

    async def ask(self, path, token, **headers):
        sent = {"Host": HOST, **({"Authorization": f"Bearer {token}"} if token else {}), **headers}
        async with aiohttp.ClientSession() as session, session.get(self.url + path, headers=sent, ssl=False) as answer:
            return answer.status, await answer.text()

    async def answers(self):
        try:
            return (await self.ask("/healthz", ""))[0] == 200
        except aiohttp.ClientError:
            return False


@pytest.fixture
async def page(api, namespace, certificates, tmp_path):
    cluster = yaml.safe_load(await asyncio.to_thread(Path(os.environ["KUBECONFIG"]).read_text))["clusters"][0][
        "cluster"
    ]
    authority = tmp_path / "cluster.crt"
    authority.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    held = ReservedPort()
    port = held.number()
    held.lend()
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    words = ("-m", "torchyard.ui.served", "--host", HOST, "--namespace", namespace, "--port", str(port))
    files = ("--tls-dir", str(certificates), "--server", cluster["server"], "--server-ca", str(authority))
    process = await asyncio.create_subprocess_exec(sys.executable, *words, *files, env=environ)
    served = Page(port)
    try:
        await until(served.answers, why=lambda: f"the page ended with {process.returncode}, or does not listen")
        yield served
    finally:
        process.terminate()
        assert await asyncio.wait_for(process.wait(), PATIENCE) == 0


@pytest.fixture
async def tokens(api, namespace):
    """Tokens of three accounts: ada may read jobs, but not their events, bob nothing, and eve was deleted."""
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    made = {}
    for name in ("ada", "bob", "eve"):
        await api.request("POST", accounts, body={"metadata": {"name": name}})
        answer = await api.request("POST", f"{accounts}/{name}/token", body={"spec": {"expirationSeconds": 600}})
        made[name] = json.loads(answer)["status"]["token"]
    rules = [
        {"apiGroups": ["torchyard.dev"], "resources": ["trainingjobs"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]},
    ]
    named = {"metadata": {"name": "readers"}}
    await api.request("POST", f"{RBAC}/namespaces/{namespace}/roles", body={**named, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "ada", "namespace": namespace}
    role = {"apiGroup": RBAC.split("/")[2], "kind": "Role", "name": "readers"}
    body = {**named, "subjects": [subject], "roleRef": role}
    await api.request("POST", f"{RBAC}/namespaces/{namespace}/rolebindings", body=body)
    await api.request("DELETE", f"{accounts}/eve", body={})
    return made


async def test_one_user_sees_the_job_another_does_not_and_an_ended_token_is_rejected(api, namespace, page, tokens):
    job = {"apiVersion": "torchyard.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "cvrp"},
           "spec": {"command": ["echo", "hidden"], "suspend": True}}  # fmt: skip
    await api.request("POST", f"/apis/torchyard.dev/v1alpha1/namespaces/{namespace}/trainingjobs", body=job)
    topics = (f"jobs|{namespace}", f"job|{namespace}|{namespace}/cvrp")

    async def seen(name):
        return [await page.ask(f"/api/topic?topic={topic}", tokens.get(name, name)) for topic in topics]

    async def ada_reads():  # rights take a moment to be known to the API server
        return [status for status, _ in await seen("ada")] == [200, 200]

    await until(ada_reads)
    listed, shown = [text for _, text in await seen("ada")]
    assert '"cvrp"' in listed
    assert "hidden" in shown
    for name, status in (("bob", 403), ("eve", 401), ("x.y.z", 401), ("", 401)):
        for answer, text in await seen(name):
            assert answer == status
            assert "hidden" not in text
    assert json.loads((await page.ask("/api/places", tokens["ada"]))[1])["places"] == [namespace]
    assert json.loads((await page.ask("/api/places", tokens["bob"]))[1])["places"] == []
    assert (await page.ask(f"/api/topic?topic={topics[0]}", tokens["ada"], Host="evil.example"))[0] == 403
    assert (await page.ask("/", tokens["ada"]))[0] == 200
