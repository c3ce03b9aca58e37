"""Why a job does not train, said on the job: by a real scheduler, real kubelets and a real API server."""

import asyncio
import contextlib
import json

import pytest
from tests.support.cluster.jobs import SLEEPS, Jobs, python
from tests.support.cluster.operators import until
from tests.support.cluster.registry import start_registry

from torchyard.kubernetes.client.errors import NotFound, Rejected

HELLO = python("print('hello')")
ONE = {"command": HELLO, "nodes": 1}
HUGE = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}
# A pod that restricted Pod Security lets in.
SAFE = {
    "containers": [
        {
            "name": "x",
            "image": "registry.k8s.io/pause:3.10",
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        }
    ]
}


@pytest.fixture
def jobs(api, namespace, operator) -> Jobs:
    return Jobs(api, namespace)


async def test_pods_that_cannot_start_name_cause_and_fix(jobs):
    await jobs.make("persistentvolumeclaims", "unbound", spec=HUGE)
    control_plane = {"node-role.kubernetes.io/control-plane": ""}
    expected = {
        "gpu": ({"nodes": 2, "gpusPerNode": 64}, "ClusterTooSmall", "it needs 128 GPUs (2 pods x 64 GPUs)"),
        "cpu": ({"resources": {"cpu": "4000"}}, "ClusterTooSmall", "it needs 4,000 CPU in one pod"),
        "memory": ({"resources": {"memory": "900Ti"}}, "ClusterTooSmall", "it needs 921,600.0 GiB in one pod"),
        "selector": (
            {"scheduling": {"nodeSelector": {"zone": "nowhere"}}},
            "NoMatchingNode",
            "no node has zone=nowhere",
        ),
        "product": (
            {"gpusPerNode": 1, "gpu": {"products": ["NVIDIA-Z9000"]}},
            "NoMatchingNode",
            "no node has nvidia.com/gpu.product=NVIDIA-Z9000",
        ),
        "taint": ({"scheduling": {"nodeSelector": control_plane}}, "Untolerated", "control-plane"),
        "claim": ({"checkpoint": {"volume": {"claim": "none"}}}, "MissingClaim", "none"),
        "unbound": ({"checkpoint": {"volume": {"claim": "unbound"}}}, "VolumeNotBound", "unbound"),
        "secret": ({"envFrom": [{"secret": "token"}]}, "MissingSecret", "token"),
        "mounted-secret": (
            {"volumes": [{"name": "x", "mountPath": "/x", "secret": "keys"}]},
            "MissingSecret",
            "keys",
        ),
        "mounted-config": (
            {"volumes": [{"name": "x", "mountPath": "/x", "configMap": "settings"}]},
            "MissingConfigMap",
            "settings",
        ),
        "image": ({"image": "127.0.0.1:1/nothing/here:1"}, "ImagePullFailed", "127.0.0.1:1/nothing/here:1"),
        "account": ({"serviceAccountName": "nobody"}, "MissingServiceAccount", "nobody"),
        "priority": ({"scheduling": {"priorityClass": "highest"}}, "MissingPriorityClass", "highest"),
    }
    for name, (spec, _, _) in expected.items():
        await jobs.submit(name, **{**ONE, **spec})

    async def says(name: str) -> None:
        _, reason, evidence = expected[name]
        status = await jobs.until(name, lambda now: now.get("reason") == reason and evidence in now["message"])
        assert status["state"] == "Pending"

    async with asyncio.TaskGroup() as group:
        for name in expected:
            group.create_task(says(name))


async def test_an_image_that_is_denied_is_distinguished_from_one_that_is_not_there(jobs, privileged_namespace):
    registry = await start_registry(Jobs(jobs.api, privileged_namespace))
    expected = {
        "password": "unauthorized",
        "token": "unauthorized",
        "forbidden": "unauthorized",
        "missing": "not found",
        "busy": "rate limited",
    }
    there = {"nodeSelector": {"kubernetes.io/hostname": registry.node}}
    for name in expected:
        await jobs.submit(name, **ONE, image=registry.image(name), scheduling=there)
    for name, why in expected.items():
        sentence = f"{why}: {registry.image(name)}"
        status = await jobs.until(name, lambda now, words=sentence: words in now.get("message", ""))
        assert (status["state"], status["reason"]) == ("Pending", "ImagePullFailed")


async def test_what_is_missing_may_be_made_later(jobs):
    await jobs.submit("secret", **ONE, envFrom=[{"secret": "token"}])
    await jobs.until("secret", lambda now: now.get("reason") == "MissingSecret")
    await jobs.make("secrets", "token", stringData={"TOKEN": "x"})
    await jobs.submit("account", **ONE, serviceAccountName="trainer")
    await jobs.until("account", lambda now: now.get("reason") == "MissingServiceAccount")
    await jobs.make("serviceaccounts", "trainer")
    for name in ("secret", "account"):
        assert (await jobs.ends(name))["state"] == "Succeeded"


async def test_a_quota_is_waited_for_and_named(jobs):
    await jobs.make("resourcequotas", "team", spec={"hard": {"pods": "1"}})
    await until(lambda: _counted(jobs, "team"))
    await jobs.submit("two", command=HELLO, nodes=2)
    status = await jobs.until("two", lambda now: now.get("reason") == "QuotaExceeded")
    assert "team, pods 1/1" in status["message"]
    assert status["state"] == "Pending"
    await jobs.api.request("DELETE", f"{jobs.core}/resourcequotas/team")
    assert (await jobs.ends("two"))["state"] == "Succeeded"


async def test_a_limit_range_is_named_and_stalls_the_job(jobs):
    limits = {"limits": [{"type": "Container", "max": {"memory": "1Gi"}}]}
    await jobs.make("limitranges", "small", spec=limits)
    await jobs.submit("big", **ONE, resources={"memory": "4Gi"})
    status = await jobs.until("big", lambda now: now.get("reason") == "LimitRangeExceeded")
    assert "maximum memory usage per Container is 1Gi" in status["message"]
    assert [each["status"] for each in status["conditions"] if each["type"] == "Stalled"] == ["True"]


async def test_a_limit_range_that_wants_something_said_names_what(jobs):
    limits = {"limits": [{"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}}]}
    await jobs.make("limitranges", "even", spec=limits)
    await jobs.submit("unsaid", **ONE)
    status = await jobs.until("unsaid", lambda now: now.get("reason") == "LimitRangeExceeded")
    assert "cpu max limit to request ratio per Container is 2, but no request is specified" in status["message"]
    assert status["message"].endswith("; set spec.resources")


async def test_an_admission_policy_is_named_and_stalls_the_job(jobs, policy):
    await jobs.submit("job", **ONE)
    status = await jobs.until("job", lambda now: now.get("reason") == "AdmissionDenied")
    assert f"{policy}: pods must carry the label team" in status["message"]
    assert [each["status"] for each in status["conditions"] if each["type"] == "Stalled"] == ["True"]


async def test_a_pod_security_violation_is_named_and_stalls_the_job(jobs, injected):
    await jobs.submit("job", **ONE)
    status = await jobs.until("job", lambda now: now.get("reason") == "PodSecurityViolation")
    assert "restricted" in status["message"]
    assert "hostNetwork=true" in status["message"]
    assert [each["status"] for each in status["conditions"] if each["type"] == "Stalled"] == ["True"]


async def test_a_pod_that_is_not_the_jobs_is_left_alone_and_named(jobs):
    await jobs.make("pods", "mine-0-0", spec=SAFE)
    await jobs.submit("mine", **ONE)
    assert (await jobs.ends("mine"))["state"] == "Succeeded", "with a pod of another name"
    assert "pod mine-0-0 without a controller" in (await jobs.announced("mine", "NameTaken"))[0]
    left = json.loads(await jobs.api.request("GET", f"{jobs.core}/pods/mine-0-0"))
    assert "deletionTimestamp" not in left["metadata"]


async def test_an_image_without_python_fails_the_job_once_three_pods_said_so(jobs):
    await jobs.submit("bare", **ONE, image="registry.k8s.io/pause:3.10")
    status = await jobs.ends("bare")
    assert (status["state"], status["reason"]) == ("Failed", "PythonNotFound"), status["message"]
    assert "3 attempts in a row" in status["message"]
    assert '"python3": executable file not found' in status["message"]
    assert [each["reason"] for each in status["attempts"]] == ["PythonNotFound"] * 3


async def test_a_container_that_its_node_cannot_start_once_is_started_again(jobs, broken_once):
    await jobs.submit("job", **ONE, restart={"maxRestarts": 0})
    status = await jobs.ends("job")
    assert status["state"] == "Succeeded", status["message"]
    first, last = status["attempts"]
    assert (first["reason"], first.get("counted", False), last["reason"]) == (
        "ContainerCannotStart",
        False,
        "Completed",
    )
    assert "not a directory" in first["cause"]["exception"], "the runtime's own words"
    (pod,) = (await jobs.pods("job")).values()
    # A preference: where the other nodes are busy with the pods of other tests, that node is used again.
    (preferred,) = pod["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    field = {"key": "metadata.name", "operator": "NotIn", "values": [first["cause"]["node"]]}
    assert preferred["preference"] == {"matchFields": [field]}


async def test_what_only_the_cluster_knows_to_be_invalid_fails_the_job_with_its_words(jobs):
    await jobs.submit("bad", **ONE, scheduling={"nodeSelector": {"a b/c": "x"}})
    status = await jobs.ends("bad")
    assert (status["state"], status["reason"]) == ("Failed", "PodInvalid"), status["message"]
    assert "spec.nodeSelector" in status["message"]


# Its name is not known to the DNS, as in an outage; one that is known and does not answer comes to the same.
@pytest.mark.parametrize(
    "operator", [{"flags": ("--intake-url", "https://operator.invalid:8443")}], indirect=True, ids=["unknown"]
)
async def test_agents_that_cannot_reach_the_operator_are_named(jobs):
    await jobs.submit("mute", command=SLEEPS, nodes=1)
    status = await jobs.until("mute", lambda now: now.get("reason") == "AgentSilent")
    assert status["state"] == "Starting"
    pod, _ = await jobs.member("mute", 0)
    assert f"do not reach the operator ({pod}); check network policies and DNS" in status["message"]
    assert status.get("round", 0) == 0


@pytest.fixture
async def policy(api, namespace):
    """An admission policy for this namespace alone."""
    check = {"expression": "'team' in object.metadata.labels", "message": "pods must carry the label team"}
    async with _policy(api, namespace, "validating", validations=[check]) as name:
        yield name


@pytest.fixture
async def injected(api, namespace):
    """Every pod of this namespace is given its node's network, as some injectors of side-cars do."""
    patch = {"expression": """[JSONPatch{op: "add", path: "/spec/hostNetwork", value: true}]"""}
    mutation = {"patchType": "JSONPatch", "jsonPatch": patch}
    async with _policy(
        api, namespace, "mutating", mutations=[mutation], reinvocationPolicy="Never", failurePolicy="Fail"
    ) as name:
        yield name


@pytest.fixture
async def broken_once(api, namespace):
    """The first pod of a job cannot be started by its container runtime: its working directory is below a file."""
    patch = """[JSONPatch{op: "add", path: "/spec/containers/0/workingDir", value: "/etc/passwd/below"}]"""
    first = "object.metadata.?labels[?'torchyard.dev/incarnation'].orValue('0') == '0'"
    spec = {
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
        "matchConditions": [{"name": "first", "expression": first}],
        "reinvocationPolicy": "Never",
    }
    async with _policy(api, namespace, "mutating", in_force=_is_patched, **spec) as name:
        yield name


@contextlib.asynccontextmanager
async def _policy(api, namespace, kind, *, in_force=None, **spec):
    """A policy for new pods of this namespace, in force; gone afterwards."""
    path = f"/apis/admissionregistration.k8s.io/v1/{kind}admissionpolic"
    name = f"{namespace}-{kind}"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    only = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    spec |= {"matchConstraints": {"resourceRules": [rule], "namespaceSelector": only}}
    binding = {"policyName": name} | ({"validationActions": ["Deny"]} if kind == "validating" else {})
    try:
        await api.request("POST", f"{path}ies", body={"metadata": {"name": name}, "spec": spec})
    except NotFound:
        pytest.skip(f"this version of Kubernetes has no {kind} admission policies")
    try:
        await api.request("POST", f"{path}ybindings", body={"metadata": {"name": name}, "spec": binding})
        await until(lambda: (in_force or _denies)(api, namespace), why=lambda: f"{name} is not in force")
        yield name
    finally:
        await api.request("DELETE", f"{path}ybindings/{name}")
        await api.request("DELETE", f"{path}ies/{name}")


async def _counted(jobs, quota) -> bool:
    """Before its use is counted once, a quota refuses every pod with other words."""
    found = json.loads(await jobs.api.request("GET", f"{jobs.core}/resourcequotas/{quota}"))
    return "hard" in found.get("status", {})


async def _denies(api, namespace) -> bool:
    """Whether a harmless pod is refused: the API server takes a policy up some time after it was made."""
    body = {"metadata": {"name": "probe", "labels": {"a": "b"}}, "spec": SAFE}
    try:
        await api.request("POST", f"/api/v1/namespaces/{namespace}/pods", params={"dryRun": "All"}, body=body)
    except Rejected:
        return True
    return False


async def _is_patched(api, namespace):
    body = {"metadata": {"name": "probe"}, "spec": SAFE}
    kept = await api.request("POST", f"/api/v1/namespaces/{namespace}/pods", params={"dryRun": "All"}, body=body)
    return "workingDir" in json.loads(kept)["spec"]["containers"][0]
