"""The checks of `torchyard doctor`, one finding after the other."""

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from torchyard.api.crd import crd
from torchyard.api.formatting import addressed
from torchyard.api.profiles.resource import PLURAL as PROFILES
from torchyard.api.resource import GROUP, PLURAL, VERSION
from torchyard.api.values import plural
from torchyard.cli.commands.intake_probe import Finding, Leader, reach
from torchyard.client.remote import jobs
from torchyard.client.remote.session import Remote
from torchyard.kubernetes.client.errors import NotFound, Rejected
from torchyard.kubernetes.manifests.names import GPU
from torchyard.kubernetes.manifests.pod import GPU_PRODUCT
from torchyard.sweeps.resource import PLURAL as SWEEPS

Document = dict[str, Any]
LEADER = "torchyard.dev/leader"
MAX_HELD = 3
NO_RIGHT = "your rights do not suffice"

# (verb, group, resource): rights that users need in a namespace to submit jobs, and that the operator needs everywhere.
USERS = (
    *((verb, GROUP, PLURAL) for verb in ("create", "get", "list", "patch", "delete")),
    ("list", "", "pods"),
    ("get", "", "pods/log"),
    ("list", "", "events"),
)
OPERATORS = (
    *((verb, GROUP, PLURAL) for verb in ("get", "list", "watch")),
    *((verb, GROUP, PLURAL) for verb in ("create", "patch")),  # trials of sweeps
    ("update", GROUP, f"{PLURAL}/status"),
    *((verb, GROUP, SWEEPS) for verb in ("list", "watch")),
    ("update", GROUP, f"{SWEEPS}/status"),
    *((verb, GROUP, PROFILES) for verb in ("list", "watch")),
    *((verb, "", "pods") for verb in ("create", "delete", "list", "watch")),
    ("create", "", "events"),
    ("list", "", "nodes"),
    ("create", "authentication.k8s.io", "tokenreviews"),
)


async def examine(remote: Remote, *, pod: bool) -> AsyncIterator[Finding]:
    """Run all checks; a failed one does not prevent the next.

    Raises:
        Unavailable: the API server does not answer.
    """
    begun = time.monotonic()
    version = _document(await remote.api.request("GET", "/version")).get("gitVersion", "")
    milliseconds = (time.monotonic() - begun) * 1000
    yield Finding("ok", f"API server {version} of {remote.context} answers in {milliseconds:.0f} ms")
    async for finding in _resource(remote):
        yield finding
    leaders: list[Leader] = []
    async for each in _operators(remote):
        if isinstance(each, Finding):
            yield each
        else:
            leaders.append(each)
    ours = [leader for leader in leaders if not leader.namespaces or remote.namespace in leader.namespaces]
    if leaders and not ours:
        kept = ", ".join(sorted({name for leader in leaders for name in leader.namespaces}))
        what = f"operators manage namespace {kept}, none after {remote.namespace}"
        yield Finding("wrong", what, "use one of those with -n, or add this one to watchNamespaces of the chart")
    if len(ours) > 1:
        what = f"{len(ours)} operators manage namespace {remote.namespace}"
        yield Finding("wrong", what, "keep one of them, or divide the namespaces with watchNamespaces of the chart")
    yield await _rights(remote, "you", USERS, None, remote.namespace)
    trusted = False
    for leader in ours[:1]:
        user = f"system:serviceaccount:{leader.namespace}:{leader.account}"
        rights = await _rights(remote, "the operator", OPERATORS, user, remote.namespace)
        # Users may create a Lease in their own namespace, but not the rights of the operator.
        trusted = rights.verdict == "ok"
        yield rights
    async for finding in _gpus(remote):
        yield finding
    async for finding in _rejected(remote):
        yield finding
    if pod and ours and not trusted:
        yield Finding("note", "the intake was not checked: the image of an operator without its rights is not run")
    for leader in ours[:1] if pod and trusted else ():
        for finding in await reach(remote, leader):
            yield finding


async def _rejected(remote: Remote) -> AsyncIterator[Finding]:
    """Yield the jobs of the namespace whose pods the API server does not create: nothing else looks wrong then."""
    try:
        documents = await jobs.get_all(remote, everywhere=False)
    except (NotFound, Rejected):
        return  # already reported
    held = [
        (job, admitted)
        for job in map(jobs.typed, documents)
        if job.status.state.active
        for admitted in job.status.conditions
        if (admitted.type, admitted.status) == ("Admitted", "False")
    ]
    for job, admitted in held[:MAX_HELD]:
        name = job.metadata.name
        what = addressed(admitted.message, name, remote.flags)
        yield Finding("wrong", f"no pod of job {name} is created: {what}", f"`torchyard explain {name}{remote.flags}`")
    if len(held) > MAX_HELD:
        yield Finding("wrong", f"likewise {plural(len(held) - MAX_HELD, 'other job')} of {remote.namespace}")


async def _resource(remote: Remote) -> AsyncIterator[Finding]:
    fix = "`torchyard install` installs it, `torchyard crd | kubectl apply --server-side -f -` the resource alone"
    try:
        served = _document(await remote.api.request("GET", f"/apis/{GROUP}/{VERSION}"))
    except NotFound:
        yield Finding("wrong", "the TrainingJob CRD is not installed", fix)
        return
    names = {resource["name"] for resource in served["resources"]}
    if not {PLURAL, f"{PLURAL}/status"} <= names:
        yield Finding("wrong", f"the API server serves {', '.join(sorted(names))} of {GROUP} only", fix)
        return
    ours = crd()
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{ours['metadata']['name']}"
    try:
        theirs = _document(await remote.api.request("GET", path))
    except Rejected:
        yield Finding("ok", f"the TrainingJob CRD is installed; its version could not be read: {NO_RIGHT}")
        return
    if theirs["spec"]["versions"] == ours["spec"]["versions"]:
        yield Finding("ok", "the TrainingJob CRD is installed, in the version of this command line")
    else:
        yield Finding(
            "note", "the TrainingJob CRD is installed, in another version than that of this command line", "upgrade one"
        )


async def _operators(remote: Remote) -> AsyncIterator[Finding | Leader]:
    try:
        pods = await _pods(remote, f"{LEADER}=true")
        if not pods:
            others = await _pods(remote, "app.kubernetes.io/name=torchyard,app.kubernetes.io/component=operator")
            names = ", ".join(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in others[:5])
            if names:
                yield Finding("wrong", f"no operator leads, though there are {names}", "read their `kubectl logs`")
            else:
                yield Finding("wrong", "no operator runs", "`torchyard install` installs one")
            return
    except Rejected:
        yield Finding("note", f"the operator could not be checked: {NO_RIGHT}")
        return
    for pod in pods:
        leader = _leader(pod)
        name = f"{leader.namespace}/{leader.pod}"
        try:
            holder = await _holder(remote, pod, leader)
        except Rejected:
            yield Finding("note", f"whether {name} leads is not known, its Lease could not be read: {NO_RIGHT}")
            continue
        if holder != leader.pod:
            what = f"pod {name} has the label of a leader and does not hold the Lease of an operator"
            yield Finding("wrong", what, "find out who created it; TorchYard leaves it alone")
            continue
        conditions = pod.get("status", {}).get("conditions") or []
        if any(each["type"] == "Ready" and each["status"] == "True" for each in conditions):
            yield Finding("ok", f"operator {name} leads ({leader.image})")
        else:
            fix = f"`kubectl -n {leader.namespace} logs {leader.pod}`"
            yield Finding("wrong", f"operator {name} is marked as the leader but is not ready", fix)
        yield leader


async def _holder(remote: Remote, pod: Document, leader: Leader) -> str:
    """Return the holder of the Lease that a pod is configured to take; a label on a pod proves nothing."""
    words = [word.partition("=") for word in pod["spec"]["containers"][0].get("args") or ()]
    given = {flag: value for flag, _, value in words}
    lease = given.get("--lease-name", "torchyard")
    path = f"/apis/coordination.k8s.io/v1/namespaces/{leader.namespace}/leases/{lease}"
    try:
        found = _document(await remote.api.request("GET", path))
    except NotFound:
        return ""
    return str(found.get("spec", {}).get("holderIdentity") or "")


def _leader(pod: Document) -> Leader:
    namespace, container = pod["metadata"]["namespace"], pod["spec"]["containers"][0]
    words = [word.partition("=") for word in container.get("args") or ()]
    urls = [value for flag, _, value in words if flag == "--intake-url"]
    return Leader(
        namespace=namespace,
        pod=pod["metadata"]["name"],
        account=pod["spec"].get("serviceAccountName", "default"),
        image=container["image"],
        pull_policy=container.get("imagePullPolicy", "IfNotPresent"),
        intake=urls[0] if urls else f"https://torchyard-intake.{namespace}.svc:8443",
        namespaces=tuple(value for flag, _, value in words if flag == "--namespace"),
    )


async def _rights(
    remote: Remote, who: str, needed: Sequence[tuple[str, str, str]], user: str | None, namespace: str
) -> Finding:
    kind = "SelfSubjectAccessReview" if user is None else "SubjectAccessReview"

    async def missing(verb: str, group: str, resource: str) -> str | None:
        plain, _, below = resource.partition("/")
        asked: Document = {"verb": verb, "group": group, "resource": plain, "subresource": below}
        if resource not in {"nodes", "tokenreviews"}:
            asked["namespace"] = namespace
        spec = {"resourceAttributes": asked} | ({"user": user} if user is not None else {})
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
        path = f"/apis/authorization.k8s.io/v1/{kind.lower()}s"
        allowed = _document(await remote.api.request("POST", path, body=body))["status"]["allowed"]
        return None if allowed else f"{verb} {resource}"

    try:
        lacking = [right for each in needed if (right := await missing(*each)) is not None]
    except Rejected:
        return Finding("note", f"the rights of {who} could not be read: {NO_RIGHT}")
    if lacking:
        fix = "ask for the ClusterRole edit" if user is None else "upgrade the chart, its roles include them"
        return Finding("wrong", f"{who} may not {', '.join(lacking)} in namespace {namespace}", fix)
    return Finding("ok", f"{who} may do all that is needed in namespace {namespace}")


async def _gpus(remote: Remote) -> AsyncIterator[Finding]:
    try:
        nodes = _document(await remote.api.request("GET", "/api/v1/nodes"))["items"]
    except Rejected:
        yield Finding("note", f"nodes could not be read: {NO_RIGHT}")
        return
    counts = {node["metadata"]["name"]: int(node["status"].get("allocatable", {}).get(GPU, 0)) for node in nodes}
    total = sum(counts.values())
    if not total:
        yield Finding("note", f"none of {plural(len(nodes), 'node')} offers {GPU}: jobs train on CPUs here")
        return
    largest = max(counts.values())
    having = [node for node in nodes if counts[node["metadata"]["name"]]]
    yield Finding(
        "ok", f"{plural(total, 'GPU')} on {len(having)} of {plural(len(nodes), 'node')}, at most {largest} on one"
    )
    unlabelled = [node["metadata"]["name"] for node in having if GPU_PRODUCT not in node["metadata"].get("labels", {})]
    if unlabelled:
        what = f"{', '.join(unlabelled[:5])} {'has' if len(unlabelled) == 1 else 'have'} no label {GPU_PRODUCT}"
        yield Finding("note", what, "spec.gpu finds them once NVIDIA's GPU feature discovery runs")


async def _pods(remote: Remote, selector: str) -> list[Document]:
    found: list[Document] = (
        _document(await remote.api.request("GET", "/api/v1/pods", params={"labelSelector": selector})).get("items")
        or []
    )
    return found


def _document(answer: bytes) -> Document:
    document: Document = msgspec.json.decode(answer)
    return document
