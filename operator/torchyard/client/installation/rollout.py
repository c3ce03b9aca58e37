"""Wait until the operator that was installed leads, and find out what prevents it."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import msgspec

from torchyard.api.reasons import Reason
from torchyard.api.values import plural
from torchyard.client.errors import FAILED, TorchYardError
from torchyard.kubernetes.client.api import Api
from torchyard.kubernetes.client.errors import NotFound, Rejected
from torchyard.kubernetes.diagnostics import container_waiting
from torchyard.kubernetes.objects import KubePod
from torchyard.reconcile.ports import Unavailable

Document = dict[str, Any]
LEADER = "torchyard.dev/leader"
PATIENCE_SECONDS = 30.0
"""A problem that lasts this long is final: an image that is pulled again, or a container that starts again."""
LOOK_SECONDS = 1.0
_MAX_TEXT = 300
_EVENTS = ("FailedMount", "FailedCreatePodSandBox")


class Progress(NamedTuple):
    """How far a rollout is."""

    done: bool
    state: str
    """In words, for a progress line."""
    problem: str = ""
    """What prevents it, with its evidence; empty: nothing is wrong yet."""
    fix: str = ""


async def rollout(api: Api, namespace: str, name: str, seconds: float) -> AsyncIterator[Progress]:
    """Yield the progress of a Deployment at each change of it, last when the operator leads.

    Args:
        api: the API server.
        namespace: of the operator.
        name: of its Deployment.
        seconds: how long to wait.

    Raises:
        TorchYardError: it does not lead in time, or a problem lasts.
    """
    deadline = time.monotonic() + seconds
    seen, since = Progress(done=False, state=""), time.monotonic()
    while True:
        try:
            progress = await look(api, namespace, name)
        except Unavailable as error:  # the API server is asked again
            progress = Progress(done=False, state=f"the API server does not answer: {error}")
        now = time.monotonic()
        if not (progress.problem and seen.problem):  # its words change while the kubelet tries again
            since = now
        if progress != seen:
            yield progress
        if progress.done:
            return
        seen = progress
        if (progress.problem and now - since >= PATIENCE_SECONDS) or now >= deadline:
            waited = "" if progress.problem else f" after {seconds:g} s"
            what = f"the operator in namespace {namespace} does not lead{waited}: {progress.problem or progress.state}"
            raise TorchYardError(what, progress.fix or f"`kubectl -n {namespace} get pods,events` shows more", FAILED)
        await asyncio.sleep(LOOK_SECONDS)


async def look(api: Api, namespace: str, name: str) -> Progress:
    """Return the progress of a Deployment now.

    Raises:
        Unavailable: the API server does not answer.
        Rejected: it may not be read.
    """
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}"
    try:
        deployment = _document(await api.request("GET", path))
    except NotFound:
        return Progress(done=False, state="", problem=f"there is no Deployment {name}", fix="install it again")
    labels = deployment["spec"]["selector"]["matchLabels"]
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    answer = await api.request("GET", f"/api/v1/namespaces/{namespace}/pods", params={"labelSelector": selector})
    pods: list[Document] = msgspec.json.decode(answer).get("items") or []
    progress = progress_of(deployment, pods)
    if progress.done or progress.problem:
        return progress
    return await _with_events(api, namespace, pods, progress)


def progress_of(deployment: Document, pods: list[Document]) -> Progress:
    """Return the progress of a Deployment, by its status and its pods."""
    wanted = deployment["spec"].get("replicas", 1)
    status = deployment.get("status", {})
    current = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    updated, available = status.get("updatedReplicas", 0), status.get("availableReplicas", 0)
    leading = [pod for pod in pods if pod["metadata"].get("labels", {}).get(LEADER) == "true" and _is_ready(pod)]
    replaced = current and updated >= wanted and status.get("replicas", 0) == updated
    if replaced and available >= wanted and leading:
        return Progress(done=True, state=f"operator {leading[0]['metadata']['name']} leads")
    state = f"{min(available, updated)} of {plural(wanted, 'pod')} ready" + ("" if leading else ", none leads")
    for condition in status.get("conditions") or ():
        if (condition["type"], condition["status"]) == ("ReplicaFailure", "True"):
            problem = f"its pods are not created: {condition.get('message', '')[:_MAX_TEXT]}"
            return Progress(False, state, problem, "correct the policy, quota or right that the message names")
    for pod in pods:
        if not _is_ready(pod) and not pod["metadata"].get("deletionTimestamp"):
            problem, fix = _fault(pod)
            if problem:
                return Progress(False, state, problem, fix)
    return Progress(done=False, state=state)


def _fault(pod: Document) -> tuple[str, str]:
    """Return what prevents a pod from being ready, and the fix; both empty: nothing yet."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    status = pod.get("status", {})
    ended = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    for container in ended:
        states = (container.get("state", {}), container.get("lastState", {}))
        for end in (state["terminated"] for state in states if "terminated" in state):
            if end.get("exitCode", 0):
                said = " ".join((end.get("message") or end.get("reason") or "").split())[-_MAX_TEXT:]
                what = f"container {container['name']} of pod {name} ended with exit code {end['exitCode']}: {said}"
                return what, f"`kubectl -n {namespace} logs {name} -c {container['name']} --previous` shows its output"
    code, evidence = container_waiting.reason(msgspec.convert(pod, KubePod, strict=False))
    if not code:
        return "", ""
    reason = Reason.of(code)
    if reason is None:
        return f"pod {name}: {code} {evidence}", ""
    sentence, fix = _OF_OPERATOR.get(reason, (reason.sentence, ""))
    return f"pod {name}: {sentence}" + (f" ({evidence})" if evidence else ""), fix


# What the reasons of jobs say about the fields of a job.
_OF_OPERATOR = {
    Reason.IMAGE_PULL_FAILED: (
        "the image of the operator cannot be pulled",
        "name one that the nodes can pull with --image; a private one needs --set imagePullSecrets[0].name=SECRET",
    ),
    Reason.MISSING_SECRET: ("a Secret of the operator does not exist", "run `torchyard install` again"),
}


async def _with_events(api: Api, namespace: str, pods: list[Document], progress: Progress) -> Progress:
    """Add a problem that only the events of pending pods name, such as a volume that cannot be mounted."""
    for pod in pods:
        if _is_ready(pod) or pod.get("status", {}).get("phase") not in {None, "Pending"}:
            continue
        params = {"fieldSelector": f"involvedObject.uid={pod['metadata']['uid']}"}
        try:
            answer = await api.request("GET", f"/api/v1/namespaces/{namespace}/events", params=params)
        except Rejected:
            return progress
        events: list[Document] = msgspec.json.decode(answer).get("items") or []
        for newest in sorted(events, key=lambda each: each.get("lastTimestamp") or "")[-1:]:
            if newest.get("reason") in _EVENTS:
                said = re.sub(r"\s+", " ", newest.get("message", ""))[:_MAX_TEXT]
                return progress._replace(problem=f"pod {pod['metadata']['name']}: {newest['reason']}: {said}")
    return progress


def _is_ready(pod: Document) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)


def _document(answer: bytes) -> Document:
    document: Document = msgspec.json.decode(answer)
    return document
