"""Manifests beside the pods of a job.

A NetworkPolicy: pods trust every client of their ports, so only they reach each other. A headless Service for a job
without an agent: it gives each index a name before there is an address.
"""

from typing import Any

from torchyard.api.launch import MASTER_PORT
from torchyard.api.resource import TrainingJob
from torchyard.kubernetes.manifests import names
from torchyard.kubernetes.manifests.pod import owner

Manifest = dict[str, Any]


def network_policy(job: TrainingJob, peers: tuple[dict[str, Any], ...]) -> Manifest:
    """Return the policy by which only pods of this job, and of the site's `peers`, connect to pods of this job.

    The operator needs no way in: agents connect to it, and `kubectl exec` goes through the node.
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
    """Resolves, for members, `<job>-0.<this name>` while they are not ready yet, which they are once they found it."""
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
