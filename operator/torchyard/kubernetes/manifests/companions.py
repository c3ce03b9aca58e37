"""Manifests beside the pods of a job.

A NetworkPolicy, because the pods of a job trust every client of their ports. For a job without an agent, a headless
Service, which gives each index a name before its pod has an address.
"""

from typing import Any

from torchyard.api.launch import MASTER_PORT
from torchyard.api.resource import TrainingJob
from torchyard.kubernetes.manifests import names
from torchyard.kubernetes.manifests.pod import owner

Manifest = dict[str, Any]


def network_policy(job: TrainingJob, peers: tuple[dict[str, Any], ...]) -> Manifest:
    """Return the policy that lets only the pods of this job and the site's `peers` connect to its pods.

    The operator needs no access: agents connect to it, and `kubectl exec` goes through the node.
    """
    members = {"matchLabels": {names.JOB_UID: job.metadata.uid}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": names.gang_policy(job.metadata.uid),
            "namespace": job.metadata.namespace,
            "labels": {names.MANAGED_BY: names.MANAGER, names.JOB: job.metadata.name},
            "ownerReferences": [owner(job)],
        },
        "spec": {
            "podSelector": members,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": members}, *peers]}],
        },
    }


def service(job: TrainingJob) -> Manifest:
    """Return the Service by which members resolve `<job>-0.<its name>`, also before they are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": names.gang_service(job.metadata.name),
            "namespace": job.metadata.namespace,
            "labels": {names.MANAGED_BY: names.MANAGER, names.JOB: job.metadata.name},
            "ownerReferences": [owner(job)],
        },
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {names.JOB_UID: job.metadata.uid},
            "ports": [
                {"name": "rendezvous", "port": MASTER_PORT, "protocol": "TCP", "targetPort": MASTER_PORT},
            ],
        },
    }
