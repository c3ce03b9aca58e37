"""The NetworkPolicy of a job: its pods trust every client of their ports, so only they reach each other."""

from typing import Any

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
