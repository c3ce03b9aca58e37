"""Why a pod waits: the words of schedulers, kubelets and registries, and the sentence a user reads."""

import pytest
from tests.support.kubernetes.pod_json import ON_NODE, UNPLACED, container, placed, pod, seen, unplaced

from torchyard.api.reasons import Reason, say
from torchyard.kubernetes.diagnostics import container_waiting


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
    "no node is close enough": (
        pod(status=unplaced(nodes("2 node(s) didn't match pod affinity rules, 2 node(s) had untolerated taint(s)"))),
        "TopologyNotMet",
        "2 of 4 nodes: node(s) didn't match pod affinity rules",
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
    "nodes are cordoned, and one has a taint that the scheduler does not name": (
        pod(status=unplaced(nodes("1 node(s) had untolerated taint(s), 2 node(s) were unschedulable"))),
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
    "the volume of the claim is on one node, and that is full": (
        pod(
            status=unplaced(
                nodes("1 Insufficient nvidia.com/gpu, 1 node(s) didn't match PersistentVolume's node affinity")
            )
        ),
        "VolumeElsewhere",
        "runs",
    ),
    "another pod holds a claim for a single pod": (
        pod(
            status=unplaced(
                nodes("4 node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode")
            )
        ),
        "VolumeInUse",
        "runs",
    ),
    "the node has all the volumes it can take": (
        pod(status=unplaced(nodes("2 node(s) exceed max volume count, 2 node(s) had untolerated taint(s)"))),
        "InsufficientResource",
        "2 of 4 nodes: node(s) exceed max volume count",
    ),
    "no node has devices for the claims": (
        pod(status=unplaced(nodes("3 cannot allocate all claims, 1 node(s) had untolerated taint(s)"))),
        "InsufficientDevices",
        "3 of 4 nodes: cannot allocate all claims",
    ),
    "the device class does not exist": (
        pod(status=unplaced(nodes("request gpus: device class gpu.example.com does not exist"))),
        "MissingDeviceClass",
        "gpu.example.com",
    ),
    "the claims are not there": (
        pod(
            spec={
                "resourceClaims": [
                    {"name": "gpus", "resourceClaimTemplateName": "h100"},
                    {"name": "nics", "resourceClaimTemplateName": "rdma"},
                ]
            },
            status={"resourceClaimStatuses": [{"name": "nics", "resourceClaimName": "cvrp-0-1-nics-x"}]},
        ),
        "WaitingForClaims",
        "templates h100",
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
    "the registry wants a password at once": (
        pulling(
            'failed to resolve reference "ghcr.io/me/train:1.0": pull access denied, repository does not exist or may '
            "require authorization: authorization failed: no basic auth credentials"
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
        "AgentImagePullFailed",
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
    "the runtime cannot create its container": (
        pulling("context deadline exceeded", "CreateContainerError"),
        "ContainerCannotStart",
        "CreateContainerError: context deadline exceeded",
    ),
    "the runtime cannot start it": (
        pulling("", "RunContainerError"),
        "ContainerCannotStart",
        "RunContainerError",
    ),
    "CRI-O looks for the program when it creates the container": (
        pulling("container create failed: executable file `python3` not found in $PATH", "CreateContainerError"),
        "PythonNotFound",
        "CreateContainerError: container create failed: executable file `python3` not found in $PATH",
    ),
    "it is being set up": (
        pod(spec=ON_NODE, status=placed(container("waiting", reason="ContainerCreating"))),
        "",
        "",
    ),
    "no component has looked at it yet": (pod(), "", ""),
}


@pytest.mark.parametrize("name", WAITING)
def test_a_waiting_pod_names_the_cause(name):
    document, reason, evidence = WAITING[name]
    facts = seen(document)
    assert (facts.pod.phase, facts.pod.reason, facts.pod.message) == ("Pending", reason, evidence)
    assert not reason or say(reason, evidence).startswith(Reason(reason).sentence)


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
    "a device": (
        "FailedPrepareDynamicResources",
        "Failed to prepare dynamic resources: prepare dynamic resources: NodePrepareResources failed for claim x",
        ("DevicesNotPrepared", "prepare dynamic resources: NodePrepareResources failed for claim x"),
    ),
    "nothing of interest": ("Pulling", "Pulling image", ("", "")),
}


@pytest.mark.parametrize("name", MOUNTS)
def test_what_the_kubelet_misses_is_named(name):
    kind, message, expected = MOUNTS[name]
    assert container_waiting.event(kind, message) == expected


def test_an_event_that_anyone_may_have_written_is_one_line_of_text():
    message = "\x1b[2J\x1b]0;owned\x07x\x9b31m\u202e\n\ty"
    assert container_waiting.event("FailedMount", message) == ("VolumeNotMounted", "x31m y")


def test_a_pod_whose_node_is_not_ready_is_marked_so_by_the_control_plane():
    ready = {"type": "Ready", "status": "False"}
    running = container("running", startedAt="2026-11-21T10:00:05Z")
    for containers, marked in (("True", True), ("False", False)):
        conditions = [ready, {"type": "ContainersReady", "status": containers}]
        status = placed(running, phase="Running", conditions=conditions)
        assert seen(pod(spec=ON_NODE, status=status)).marked is marked
