"""Admission webhooks on this machine, for the pods of one namespace and of one job in it."""

import base64
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import web
from tests.support.cluster.operators import until

from torchyard.kubernetes.client.api import Api
from torchyard.kubernetes.client.errors import Rejected
from torchyard.reconcile.ports import Unavailable

GROUP = "/apis/admissionregistration.k8s.io/v1"
NOBODY = 9  # a port on which nobody listens
# What restricted Pod Security asks of a container.
SAFE = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}

Judge = Callable[[dict[str, Any]], dict[str, Any]]
"""A pod that is to be created -> the fields of the review's response."""


def refuse(message: str) -> Judge:
    """Deny every pod."""
    return lambda _pod: {"allowed": False, "status": {"message": message}}


def change(*patch: dict[str, Any]) -> Judge:
    """Admit every pod, changed."""
    document = base64.b64encode(json.dumps(patch).encode()).decode()
    return lambda _pod: {"allowed": True, "patchType": "JSONPatch", "patch": document}


class Webhook(NamedTuple):
    """One admission webhook.

    Attributes:
        name: as the API server knows it, with two dots.
        job: whose pods it is asked about.
        judge: what it answers; None: it is away.
    """

    name: str
    job: str
    judge: Judge | None


@contextlib.asynccontextmanager
async def webhook(api: Api, namespace: str, one: Webhook, *, tls: Path, address: str) -> AsyncIterator[None]:
    """Keep it in force for the block."""
    async with _serving(one.judge, tls) as port:
        kind = "mutating" if one.judge is not None and "patch" in one.judge({}) else "validating"
        path, name = f"{GROUP}/{kind}webhookconfigurations", f"{namespace}-{one.job}"
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
        url = f"https://{address}:{port}/"
        described = {
            "name": one.name,
            "rules": [rule],
            "clientConfig": {"url": url, "caBundle": base64.b64encode((tls / "ca.crt").read_bytes()).decode()},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "objectSelector": {"matchLabels": {"torchyard.dev/job": one.job}},
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "timeoutSeconds": 5,
        }
        await api.request("POST", path, body={"metadata": {"name": name}, "webhooks": [described]})
        try:
            await until(lambda: _in_force(api, namespace, one), why=lambda: f"{one.name} is not in force")
            yield
        finally:
            await api.request("DELETE", f"{path}/{name}", body={})


@contextlib.asynccontextmanager
async def _serving(judge: Judge | None, tls: Path) -> AsyncIterator[int]:
    """The port that it listens on."""
    if judge is None:
        yield NOBODY
        return

    async def review(request: web.Request) -> web.Response:
        asked = (await request.json())["request"]
        response = {"uid": asked["uid"], **judge(asked["object"])}
        kind = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        return web.json_response({**kind, "response": response})

    app = web.Application(client_max_size=2**24)
    app.router.add_post("/", review)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tls / "tls.crt", tls / "tls.key")
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", 0, ssl_context=context).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def _in_force(api: Api, namespace: str, one: Webhook) -> bool:
    """Whether a harmless pod meets it: the API server takes a webhook up some time after it was made."""
    body = {
        "metadata": {"name": "probe", "labels": {"torchyard.dev/job": one.job}, "annotations": {"a": "b"}},
        "spec": {"containers": [{"name": "trainer", "image": "none", "securityContext": SAFE}]},
    }
    once = Api(api.session, api.credentials)  # which does not ask again
    try:
        kept = await once.request("POST", f"/api/v1/namespaces/{namespace}/pods", params={"dryRun": "All"}, body=body)
    except Rejected as error:
        return one.name in str(error)
    except Unavailable as error:
        return one.judge is None and one.name in str(error)
    return one.judge is not None and len(json.loads(kept)["spec"]["containers"]) > 1
