"""Findings of `torchyard doctor`, and its check whether pods can reach the operator: a connection to the intake."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from torchyard.client.remote.session import Remote
from torchyard.kubernetes.client.errors import Gone, NotFound, Rejected
from torchyard.kubernetes.manifests.names import NON_ROOT
from torchyard.kubernetes.manifests.pod import container_security


class Finding(NamedTuple):
    """The result of one check."""

    verdict: Literal["ok", "note", "wrong"]
    what: str
    fix: str = ""


class Leader(NamedTuple):
    """The operator that leads."""

    namespace: str
    pod: str
    account: str
    image: str
    pull_policy: str
    intake: str
    namespaces: tuple[str, ...]
    """The namespaces that it manages; none: all."""


Document = dict[str, Any]
LABELS = {"app.kubernetes.io/managed-by": "torchyard-doctor"}  # a NetworkPolicy of the chart admits pods with it
POD_SECONDS = 90.0
SLOW_LOOKUP_SECONDS = 2.0

# Runs in a pod as a training pod would: resolves the name of the intake, and is rejected without a token.
_PROBE = """
import json, socket, ssl, sys, time, urllib.error, urllib.parse, urllib.request
url, found = sys.argv[1], {}
def timed(name, work):
    begun = time.monotonic()
    try: work(); found[name] = [time.monotonic() - begun, ""]
    except Exception as error: found[name] = [time.monotonic() - begun, f"{type(error).__name__}: {error}"]
def call():
    trust = ssl.create_default_context(); trust.check_hostname = False; trust.verify_mode = ssl.CERT_NONE
    request = urllib.request.Request(url + "/v1/sync", data=b"{}", method="POST")
    try: status = urllib.request.urlopen(request, timeout=10, context=trust).status
    except urllib.error.HTTPError as error: status = error.code
    if status not in (401, 403): raise ValueError(f"answered {status} to a caller without a token")
def back():
    try: socket.gethostbyaddr(socket.gethostbyname(socket.gethostname()))
    except socket.herror: pass
timed("name", lambda: socket.getaddrinfo(urllib.parse.urlsplit(url).hostname, 443))
timed("call", call)
timed("back", back)
open("/dev/termination-log", "w").write(json.dumps(found))
"""


async def reach(remote: Remote, leader: Leader) -> list[Finding]:
    """Check the intake from a pod in the namespace, for some seconds."""
    name = f"torchyard-doctor-{secrets.token_hex(4)}"
    path = f"/api/v1/namespaces/{remote.namespace}/pods"
    try:
        await remote.api.request("POST", path, body=_probe(name, leader))
    except (Rejected, NotFound) as error:
        return [Finding("note", f"no pod could be started in {remote.where} to check the intake from: {error}")]
    try:
        status = await _ended(remote, f"{path}/{name}")
    finally:
        with contextlib.suppress(NotFound, Gone):  # another client deleted it
            await remote.api.request("DELETE", f"{path}/{name}", body={"gracePeriodSeconds": 0})
    return _seen(status, leader)


async def _ended(remote: Remote, path: str) -> Document:
    deadline = time.monotonic() + POD_SECONDS
    while True:
        status: Document = msgspec.json.decode(await remote.api.request("GET", path)).get("status", {})
        if status.get("phase") in {"Succeeded", "Failed"} or time.monotonic() > deadline:
            return status
        await asyncio.sleep(0.5)


def _seen(status: Mapping[str, Any], leader: Leader) -> list[Finding]:
    """Return what the pod found out (pure)."""
    states = [each.get("state", {}) for each in status.get("containerStatuses") or ()]
    ended = next((state["terminated"] for state in states if "terminated" in state), None)
    if ended is None:
        why = next((state["waiting"].get("reason", "") for state in states if "waiting" in state), "")
        why = why or next(
            (each.get("message", "") for each in status.get("conditions") or () if each.get("message")), ""
        )
        return [Finding("note", f"the pod that checks the intake did not run in {POD_SECONDS:.0f} s", why)]
    try:
        found: dict[str, tuple[float, str]] = msgspec.json.decode(
            ended.get("message", ""), type=dict[str, tuple[float, str]]
        )
    except msgspec.DecodeError:
        return [Finding("wrong", "the pod that checks the intake failed", ended.get("message", "")[:300])]
    seconds, fault = found["name"]
    if fault:
        return [Finding("wrong", f"pods do not find {leader.intake} by name ({fault})", "look at the cluster's DNS")]
    findings = []
    seconds, fault = found["call"]
    if fault:
        fix = "look for a NetworkPolicy, or a service mesh, between pods and the operator"
        findings.append(Finding("wrong", f"pods do not reach {leader.intake} ({fault})", fix))
    else:
        findings.append(Finding("ok", f"pods reach {leader.intake} in {seconds * 1000:.0f} ms"))
    seconds, _ = found["back"]
    if seconds > SLOW_LOOKUP_SECONDS:
        what = f"a pod waits {seconds:.0f} s for the name of its own address"
        findings.append(Finding("wrong", what, "repair reverse DNS: every start of a round waits as long"))
    return findings


def _probe(name: str, leader: Leader) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": LABELS},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "activeDeadlineSeconds": int(POD_SECONDS),
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": NON_ROOT,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "doctor",
                    "image": leader.image,
                    "imagePullPolicy": leader.pull_policy,
                    "command": ["python3", "-c", _PROBE.replace("$", "$$"), leader.intake],
                    "resources": {
                        "requests": {"cpu": "50m", "memory": "64Mi"},
                        "limits": {"cpu": "500m", "memory": "128Mi"},
                    },
                    "securityContext": container_security(),
                }
            ],
        },
    }
