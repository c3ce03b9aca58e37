"""The pod of one index of a gang."""

from typing import Any

from torchyard.api.changes import configuration
from torchyard.api.durations import seconds
from torchyard.api.resource import TrainingJob
from torchyard.cluster.kube.manifest import names, placement, security, volumes
from torchyard.cluster.kube.manifest.container import installer, needs_installer, trainer
from torchyard.cluster.kube.manifest.site import Site
from torchyard.engine.actions import CreatePod
from torchyard.engine.agentless import is_agentless

Manifest = dict[str, Any]


def pod(job: TrainingJob, action: CreatePod, site: Site, provenance: str = "") -> Manifest:
    """Return the pod that a gang's member runs in; the same arguments give the same document.

    It asks for nothing that the `restricted` Pod Security Standard forbids.
    """
    spec = job.spec
    plain = is_agentless(spec)
    document: Manifest = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": max(1, round(seconds(spec.grace_period))),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": security.of_pod(spec, site.run_as),
        "tolerations": placement.tolerations(spec, site),
        **({"initContainers": [installer(job, action, site)]} if needs_installer(spec) else {}),
        "containers": [trainer(job, action, site)],
        "volumes": volumes.of_pod(spec, site),
    }
    chosen: Manifest = {
        "hostname": names.gang_host(job.metadata.name, action.index) if plain else "",
        "subdomain": names.gang_service(job.metadata.name) if plain else "",
        "serviceAccountName": spec.service_account_name,
        "imagePullSecrets": [{"name": name} for name in spec.image_pull_secrets],
        "schedulingGates": [{"name": name} for name in site.scheduling_gates],
        "affinity": placement.affinity(job, action.avoid),
        "priorityClassName": spec.scheduling.priority_class,
        "nodeSelector": dict(spec.scheduling.node_selector),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(job, action, site, provenance),
        "spec": document | {field: value for field, value in chosen.items() if value},
    }


def _metadata(job: TrainingJob, action: CreatePod, site: Site, provenance: str) -> Manifest:
    annotations = {
        **job.spec.pod_annotations,
        names.DEFAULT_CONTAINER: names.TRAINER,
        names.CONFIGURATION: configuration(job.spec),
    }
    if not is_agentless(job.spec):
        annotations[names.INTAKE_CA] = site.ca_pem
    if provenance:
        annotations[names.PROVENANCE] = provenance
    return {
        "name": action.name,
        "namespace": job.metadata.namespace,
        "labels": {
            **job.spec.pod_labels,
            names.MANAGED_BY: names.MANAGER,
            names.JOB: job.metadata.name,
            names.JOB_UID: job.metadata.uid,
            names.INDEX: str(action.index),
            names.INCARNATION: str(action.incarnation),
        },
        "annotations": annotations,
        "ownerReferences": [owner(job)],
    }


def owner(job: TrainingJob) -> Manifest:
    """What makes an object go with its job."""
    return {
        "apiVersion": job.api_version,
        "kind": job.kind,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        # A job in foreground deletion must not wait for pods on a node that is gone.
        "blockOwnerDeletion": False,
    }
