"""Why a pod waits, goes or ended: the words of schedulers, kubelets and registries, and the sentence a user reads."""

import json

import msgspec
import pytest
from pod_json import UNPLACED, container, ended, placed, pod, text, unplaced

from torchyard.api.catalogue import CATALOGUE, say
from torchyard.cluster.kube.facts import read
from torchyard.cluster.kube.objects import KubePod
from torchyard.cluster.kube.why import waiting

ON_NODE = {"nodeName": "gpu-7"}


def seen(document):
    return read(msgspec.json.decode(text(document), type=KubePod))


def nodes(faults: str) -> str:
    return f"0/4 nodes are available: {faults}. {UNPLACED}"


def pulling(message: str, reason: str = "ErrImagePull"):
    return pod(spec=ON_NODE, status=placed(container("waiting", reason=reason, message=message)))


CONFIG = "CreateContainerConfigError"
WAITING = {
    "GPUs are short": (
        pod(status=unplaced(nodes("2 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint(s)"))),
        "InsufficientGPU",
        "2 of 4 nodes: Insufficient nvidia.com/gpu",
    ),
    "everything is short, GPUs matter most": (
        pod(
            status=unplaced(
                nodes("2 Insufficient cpu, 2 Insufficient memory, 2 Insufficient nvidia.com/gpu, 2 node(s) had taints")
            )
        ),
        "InsufficientGPU",
        "2 of 4 nodes: Insufficient nvidia.com/gpu",
    ),
    "CPU is short": (
        pod(status=unplaced(nodes("2 Insufficient cpu, 2 node(s) had untolerated taint(s)"))),
        "InsufficientCPU",
        "2 of 4 nodes: Insufficient cpu",
    ),
    "memory is short, as schedulers before 1.36 say it": (
        pod(
            status=unplaced(
                "0/3 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, "
                "2 Insufficient memory. preemption: 0/3 nodes are available: 1 Preemption is not helpful for "
                "scheduling, 2 No preemption victims found for incoming pod."
            )
        ),
        "InsufficientMemory",
        "2 of 3 nodes: Insufficient memory",
    ),
    "another resource is short": (
        pod(status=unplaced(nodes("4 Insufficient rdma/hca"))),
        "InsufficientResource",
        "4 of 4 nodes: Insufficient rdma/hca",
    ),
    "no node has the labels": (
        pod(status=unplaced(nodes("3 node(s) didn't match Pod's node affinity/selector, 1 node(s) had taints"))),
        "NoMatchingNode",
        "3 of 4 nodes: node(s) didn't match Pod's node affinity/selector",
    ),
    "a taint that the scheduler names": (
        pod(
            status=unplaced(
                "0/2 nodes are available: 1 node(s) had untolerated taint {node-role.kubernetes.io/control-plane: }, "
                "1 node(s) had untolerated taint {team: vision}. preemption: 0/2 nodes are available: 2 Preemption is "
                "not helpful for scheduling."
            )
        ),
        "Untolerated",
        "team: vision",
    ),
    "nodes are cordoned": (
        pod(status=unplaced(nodes("2 node(s) were unschedulable"))),
        "NodesCordoned",
        "2 of 4 nodes: node(s) were unschedulable",
    ),
    "there are no nodes": (
        pod(status=unplaced("no nodes available to schedule pods")),
        "Unschedulable",
        "no nodes available to schedule pods",
    ),
    "the claim does not exist": (
        pod(status=unplaced('0/4 nodes are available: persistentvolumeclaim "runs" not found. not found')),
        "MissingClaim",
        "runs",
    ),
    "the claim is not bound": (
        pod(status=unplaced("0/4 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found")),
        "VolumeNotBound",
        "runs",
    ),
    "no volume fits the claim": (
        pod(status=unplaced(nodes("2 node(s) didn't find available persistent volumes to bind, 2 node(s) had taints"))),
        "VolumeNotBound",
        "runs",
    ),
    "a gang scheduler holds it": (
        pod(status=unplaced("Scheduling is blocked due to non-empty scheduling gates", "SchedulingGated")),
        "SchedulingGated",
        "",
    ),
    "the image is not there": (
        pulling(
            'rpc error: code = NotFound desc = failed to pull and unpack image "ghcr.io/me/train:1.0": failed to '
            'resolve reference "ghcr.io/me/train:1.0": ghcr.io/me/train:1.0: not found'
        ),
        "ImagePullFailed",
        "not found: ghcr.io/me/train:1.0",
    ),
    "the registry wants a password": (
        pulling(
            'failed to pull and unpack image "ghcr.io/me/train:1.0": failed to authorize: failed to fetch anonymous '
            "token: unexpected status from GET request to https://ghcr.io/token: 401 Unauthorized"
        ),
        "ImagePullFailed",
        "unauthorized: ghcr.io/me/train:1.0",
    ),
    "the registry says neither": (
        pulling(
            'Back-off pulling image "me/train": ErrImagePull: pull access denied, repository does not exist or may '
            "require authorization: server message: insufficient_scope: authorization failed",
            "ImagePullBackOff",
        ),
        "ImagePullFailed",
        "not found or unauthorized: ghcr.io/me/train:1.0",
    ),
    "the registry is tired of us": (
        pulling("toomanyrequests: You have reached your pull rate limit. 429 Too Many Requests"),
        "ImagePullFailed",
        "rate limited: ghcr.io/me/train:1.0",
    ),
    "the registry does not answer": (
        pulling("failed to do request: Head https://ghcr.io/v2/: dial tcp: lookup ghcr.io: no such host"),
        "ImagePullFailed",
        "registry unreachable: ghcr.io/me/train:1.0",
    ),
    "the image's name is none": (
        pulling("couldn't parse image name", "InvalidImageName"),
        "ImagePullFailed",
        "invalid name: ghcr.io/me/train:1.0",
    ),
    "the agent's image cannot be pulled": (
        pod(
            spec=ON_NODE,
            status=placed(
                container("waiting", reason="PodInitializing"),
                init=container("waiting", "agent", reason="ImagePullBackOff", message="x: not found"),
            ),
        ),
        "ImagePullFailed",
        "not found: ghcr.io/torchyard/operator:0.1.0",
    ),
    "the secret does not exist": (
        pulling('secret "token" not found', CONFIG),
        "MissingSecret",
        "token",
    ),
    "the config map does not exist": (
        pulling('configmap "settings" not found', CONFIG),
        "MissingConfigMap",
        "settings",
    ),
    "the secret lacks a key": (
        pulling("couldn't find key password in Secret team/token", CONFIG),
        "ContainerNotConfigured",
        "Secret token has no key password",
    ),
    "the image wants to be root": (
        pulling("container has runAsNonRoot and image will run as root", CONFIG),
        "ContainerNotConfigured",
        "trainer: container has runAsNonRoot and image will run as root",
    ),
    "it is being set up": (
        pod(spec=ON_NODE, status=placed(container("waiting", reason="ContainerCreating"))),
        "",
        "",
    ),
    "nobody has looked at it yet": (pod(), "", ""),
}


@pytest.mark.parametrize("name", WAITING)
def test_a_pod_that_waits_says_why(name):
    document, reason, evidence = WAITING[name]
    facts = seen(document)
    assert (facts.pod.phase, facts.pod.reason, facts.pod.message) == ("Pending", reason, evidence)
    assert not reason or say(reason, evidence).startswith(CATALOGUE[reason].cause)


def told(code, **failure):
    return json.dumps({"code": code, "round": 3, "failure": failure or None})


DISRUPTED = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": "2026-11-21T10:04:00Z"}


def taken(reason, message, **status):
    return ended(143, conditions=[{**DISRUPTED, "reason": reason, "message": message}], **status)


ENDED = {
    "done": (ended(0, "Completed", told(0)), "", "", 0),
    "a worker's exception, from the agent's last words": (
        ended(1, "Error", told(1, exception="ValueError", message="x is not y", rank=3)),
        "",
        "ValueError: x is not y",
        1,
    ),
    "out of memory": (ended(137, "OOMKilled"), "OOMKilled", "limit 2Gi", 137),
    "killed": (ended(137), "", "", 137),
    "no python3 in the image": (
        ended(
            128, "StartError", 'failed to create containerd task: exec: "python3": executable file not found in $PATH'
        ),
        "ContainerCannotStart",
        'failed to create containerd task: exec: "python3": executable file not found in $PATH',
        128,
    ),
    "the agent crashed": (
        ended(1, "Error", "Traceback (most recent call last):\n  File ...\nMemoryError\n"),
        "AgentCrashed",
        "MemoryError",
        1,
    ),
    "evicted by the kubelet": (
        {
            "phase": "Failed",
            "reason": "Evicted",
            "message": "The node was low on resource: memory. Threshold quantity: 100Mi, available: 20Mi.",
        },
        "Evicted",
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 20Mi.",
        None,
    ),
    "drained": (
        taken("EvictionByEvictionAPI", "Eviction API: evicting"),
        "Evicted",
        "Eviction API: evicting",
        143,
    ),
    "preempted": (
        taken("PreemptionByScheduler", "default-scheduler: preempting to accommodate a higher priority pod"),
        "PreemptedByPriority",
        "default-scheduler: preempting to accommodate a higher priority pod",
        143,
    ),
    "its node is gone": (
        {
            "phase": "Failed",
            "conditions": [{**DISRUPTED, "reason": "DeletionByPodGC", "message": "PodGC: node not found"}],
        },
        "NodeLost",
        "PodGC: node not found",
        None,
    ),
    "the node shuts down": (
        {
            "phase": "Failed",
            "reason": "Terminated",
            "message": "Pod was terminated in response to imminent node shutdown.",
        },
        "Evicted",
        "Pod was terminated in response to imminent node shutdown.",
        None,
    ),
    "the node would not have it": (
        {"phase": "Failed", "reason": "OutOfnvidia.com/gpu", "message": "Node didn't have enough resource"},
        "NodeRefused",
        "Node didn't have enough resource",
        None,
    ),
    "the agent could not be installed": (
        placed(
            container("waiting", reason="PodInitializing"),
            init=container("terminated", "agent", exitCode=1, reason="Error", message="no space left on device\n"),
            phase="Failed",
        ),
        "AgentNotInstalled",
        "no space left on device",
        None,
    ),
    "nobody knows": (
        ended(137, "ContainerStatusUnknown", "The container could not be located when the pod was terminated"),
        "PodLost",
        "",
        None,
    ),
}


@pytest.mark.parametrize("name", ENDED)
def test_a_pod_that_ended_says_how(name):
    status, reason, evidence, code = ENDED[name]
    found = seen(pod(spec=ON_NODE, status=status)).pod
    assert not found.alive
    assert (found.reason, found.message, found.exit_code) == (reason, evidence, code)
    assert not reason or reason in CATALOGUE


def test_a_pod_that_is_taken_away_says_by_whom_before_it_is_gone():
    condition = {**DISRUPTED, "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
    going = pod(
        metadata={"deletionTimestamp": "2026-11-21T10:05:00Z"},
        spec=ON_NODE,
        status=placed(container("running", startedAt="2026-11-21T10:00:05Z"), phase="Running", conditions=[condition]),
    )
    found = seen(going).pod
    assert (found.phase, found.deleting, found.reason) == ("Running", True, "Evicted")


def test_a_container_that_somebody_injected_does_not_keep_a_finished_pod_alive():
    status = placed(
        container("terminated", exitCode=0, reason="Completed", finishedAt="2026-11-21T10:05:00Z"),
        container("running", "istio-proxy", startedAt="2026-11-21T10:00:05Z"),
        phase="Running",
    )
    found = seen(pod(spec=ON_NODE, status=status)).pod
    assert (found.phase, found.exit_code) == ("Succeeded", 0)


MOUNTS = {
    "a secret": (
        "FailedMount",
        'MountVolume.SetUp failed for volume "x" : secret "token" not found',
        ("MissingSecret", "token"),
    ),
    "a config map": (
        "FailedMount",
        'MountVolume.SetUp failed for volume "x" : configmap "settings" not found',
        ("MissingConfigMap", "settings"),
    ),
    "a volume": (
        "FailedAttachVolume",
        'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) other-0-0',
        ("VolumeNotMounted", 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) other-0-0'),
    ),
    "a network": (
        "FailedCreatePodSandBox",
        "Failed to create pod sandbox: plugin type=bridge failed (add): no addresses",
        ("PodNotSetUp", "Failed to create pod sandbox: plugin type=bridge failed (add): no addresses"),
    ),
    "nothing of interest": ("Pulling", "Pulling image", ("", "")),
}


@pytest.mark.parametrize("name", MOUNTS)
def test_what_the_kubelet_lacks_is_named(name):
    kind, message, expected = MOUNTS[name]
    assert waiting.event(kind, message) == expected


# Whose a pod is.


def test_index_and_incarnation_come_from_the_name_that_nobody_can_edit():
    document = pod(metadata={"labels": {"torchyard.dev/index": "7", "torchyard.dev/job": "another"}})
    found = seen(document)
    assert (found.job_name, found.job_uid, found.pod.incarnation, found.pod.index) == ("cvrp", "job-uid", 0, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"ownerReferences": []},
        {"ownerReferences": [{"kind": "TrainingJob", "name": "cvrp", "uid": "job-uid"}]},
        {"ownerReferences": [{"kind": "Job", "name": "cvrp", "uid": "job-uid", "controller": True}]},
        {"name": "cvrp"},
        {"name": "cvrp-0"},
        {"name": "cvrp-0-x"},
        {"name": "other-0-1"},
        {"name": "cvrp--1-1"},
    ],
)
def test_a_pod_that_no_job_of_ours_would_have_made_is_none_of_ours(change):
    assert seen(pod(metadata=change)) is None


def test_a_pod_whose_node_is_not_ready_is_marked_so_by_the_control_plane():
    ready = {"type": "Ready", "status": "False"}
    running = container("running", startedAt="2026-11-21T10:00:05Z")
    for containers, marked in (("True", True), ("False", False)):
        conditions = [ready, {"type": "ContainersReady", "status": containers}]
        status = placed(running, phase="Running", conditions=conditions)
        assert seen(pod(spec=ON_NODE, status=status)).marked is marked


TORCHRUN = """ValueError: no luck
E1121 12:00:00 1 torch/distributed/elastic/multiprocessing/api.py:1000] failed (exitcode: 1) local_rank: 0 (pid: 8)
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
  exitcode  : 1 (pid: 8)
============================================================
"""


@pytest.mark.parametrize(
    ("code", "log", "reason", "message"),
    [
        (1, TORCHRUN, "WorkerFailed", "ValueError: no luck"),
        (3, "no luck\n----\n", "WorkerFailed", "no luck"),
        (64, "params.steps: must be positive\n", "", "params.steps: must be positive"),
        (137, "", "", ""),
    ],
)
def test_of_a_pod_without_an_agent_the_workers_are_judged_by_code_and_last_words(code, log, reason, message):
    found = seen(pod(spec={**ON_NODE, "subdomain": "ty-cvrp"}, status=ended(code, "Error", log))).pod
    assert (found.reason, found.message, found.exit_code) == (reason, message, code)
