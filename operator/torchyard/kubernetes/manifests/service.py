"""The headless service of a job without an agent: it gives each index a name before there is an address."""

from typing import Any

from torchyard.api.resource import TrainingJob
from torchyard.api.torchrun import MASTER_PORT
from torchyard.kubernetes.manifests import names
from torchyard.kubernetes.manifests.pod import owner

Manifest = dict[str, Any]


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
