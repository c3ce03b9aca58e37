"""Pods as a real API server (1.36) tells them, with what a test changes about them."""

import copy
import json
from typing import Any

import msgspec

from torchyard.kubernetes.cache.pod_record import read
from torchyard.kubernetes.objects import KubePod

ON_NODE = {"nodeName": "gpu-7"}
TRAINER = {
    "name": "trainer",
    "image": "ghcr.io/me/train:1.0",
    "resources": {
        "requests": {"memory": "2Gi", "nvidia.com/gpu": "8"},
        "limits": {"memory": "2Gi", "nvidia.com/gpu": "8"},
    },
    "terminationMessagePath": "/dev/termination-log",
}
AGENT = {"name": "agent", "image": "ghcr.io/torchyard/operator:0.1.0"}
UNPLACED = (
    "no new claims to deallocate, preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling."
)


def pod(**changes: Any) -> dict[str, Any]:
    """A pod that was just created. `status`, `spec`, `metadata` add to it."""
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "cvrp-0-1",
            "namespace": "team",
            "uid": "6c1d1a63-6f0c-4f53-9a5e-0a3f1c1c0001",
            "resourceVersion": "812",
            "generation": 1,
            "creationTimestamp": "2026-11-21T10:00:00Z",
            "labels": {"app.kubernetes.io/managed-by": "torchyard", "torchyard.dev/job": "cvrp"},
            "annotations": {"torchyard.dev/intake-ca": "-----BEGIN CERTIFICATE-----\n"},
            "ownerReferences": [
                {
                    "apiVersion": "torchyard.dev/v1alpha1",
                    "kind": "TrainingJob",
                    "name": "cvrp",
                    "uid": "job-uid",
                    "controller": True,
                    "blockOwnerDeletion": False,
                }
            ],
            "managedFields": [{"manager": "torchyard", "operation": "Update", "fieldsV1": {"f:metadata": {}}}],
        },
        "spec": {
            "initContainers": [AGENT],
            "containers": [TRAINER],
            "restartPolicy": "Never",
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "volumes": [{"name": "checkpoints", "persistentVolumeClaim": {"claimName": "runs"}}],
        },
        "status": {"phase": "Pending", "qosClass": "Guaranteed"},
    }
    for section, change in changes.items():
        document[section] |= copy.deepcopy(change)
    return document


def text(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()


def unplaced(message: str, reason: str = "Unschedulable") -> dict[str, Any]:
    """The scheduler's word on a pod."""
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-11-21T10:00:00Z",
    }
    return {"phase": "Pending", "conditions": [condition]}


def placed(*containers: dict[str, Any], init: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    """A pod on a node."""
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-21T10:00:01Z"}
    found = {"phase": "Pending", "conditions": [scheduled], "hostIP": "10.0.0.7", "podIP": "10.244.1.5"}
    if containers:
        found["containerStatuses"] = list(containers)
    if init is not None:
        found["initContainerStatuses"] = [init]
    return found | status


def container(state: str, name: str = "trainer", **fields: Any) -> dict[str, Any]:
    """The status of one container: waiting, running or terminated."""
    return {
        "name": name,
        "image": (AGENT if name == "agent" else TRAINER)["image"],
        "imageID": "",
        "ready": state == "running",
        "restartCount": 0,
        "state": {state: fields},
    }


def ended(code: int, reason: str = "Error", message: str = "", **status: Any) -> dict[str, Any]:
    """A pod whose trainer ended."""
    fields = {
        "exitCode": code,
        "reason": reason,
        "message": message,
        "startedAt": "2026-11-21T10:00:05Z",
        "finishedAt": "2026-11-21T10:05:00Z",
    }
    return placed(container("terminated", **fields), **{"phase": "Failed" if code else "Succeeded", **status})


def seen(document):
    """The facts that are read from a pod."""
    return read(msgspec.json.decode(text(document), type=KubePod))
