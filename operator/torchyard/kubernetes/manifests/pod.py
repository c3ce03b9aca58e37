"""The pod of one index of a gang: its two containers, what they may do, and the small files that they start with.

One container brings the agent into any image, the other trains. The pod satisfies the `restricted` Pod Security
Standard and has a read-only root file system.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from torchyard.api import launch
from torchyard.api.resource import TrainingJob
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.status import Images
from torchyard.api.torchrun import is_agentless
from torchyard.api.validation.changes import configuration
from torchyard.api.values import amount
from torchyard.kubernetes.manifests import environment, names, placement, volumes
from torchyard.kubernetes.manifests.site import Site
from torchyard.reconcile.actions import CreatePod

Manifest = dict[str, Any]


def pod(job: TrainingJob, action: CreatePod, site: Site, provenance: str = "") -> Manifest:
    """Return the pod that a gang's member runs in; the same arguments give the same document.

    It asks for nothing that the `restricted` Pod Security Standard forbids.
    """
    spec = job.spec
    plain = is_agentless(spec)
    document: Manifest = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": max(1, round(spec.grace_period)),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(spec, site.run_as),
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


CONFIG_FILE = "config.json"
SCRIPT_FILE = "script.py"
_LITTLE_DISK = "1Gi"


def images(job: TrainingJob, site: Site) -> Images:
    """Return the images that a new gang of this job gets; that of the agent only if something is installed."""
    agent = site.agent_image if needs_installer(job.spec) else ""
    return Images(trainer=job.spec.image or site.trainer_image, agent=agent)


def needs_installer(spec: TrainingJobSpec) -> bool:
    """Return whether something is installed into the pods: an agent, or at least a script."""
    return not is_agentless(spec) or spec.script is not None


def installer(job: TrainingJob, action: CreatePod, site: Site) -> Manifest:
    """Copies the agent's zipapp out of its image and writes config and inline script: no ConfigMap, any image."""
    written = {CONFIG_FILE: msgspec.json.encode(launch.trainer_config(job, environment.checkpoints_of)).decode()}
    if job.spec.script is not None:
        written[SCRIPT_FILE] = job.spec.script
    return {
        "name": names.AGENT,
        "image": (action.images or images(job, site)).agent,
        "command": ["python3", names.AGENT_ZIPAPP, "install", "--to", names.ROOT],
        "env": environment.listed(file_variables(written)),
        # Before the trainer, not beside it: the same request costs nothing, and a quota or a Guaranteed class holds.
        "resources": _resources(job.spec, site, gpus=0),
        "volumeMounts": volumes.of_installer(),
        "securityContext": container_security(),
        "terminationMessagePath": names.TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def trainer(job: TrainingJob, action: CreatePod, site: Site) -> Manifest:
    """The container that trains: the agent first, if there is one, the workers below it."""
    spec, plain = job.spec, is_agentless(job.spec)
    command = launch.worker_command(spec, f"{names.CONFIG}/{SCRIPT_FILE}" if spec.script is not None else None)
    agent = ["python3", names.AGENT_INSTALLED, "--listen", names.AGENT_LISTEN, "--"]
    container: Manifest = {
        "name": names.TRAINER,
        "image": (action.images or images(job, site)).trainer,
        "command": [*([] if plain else agent), *map(environment.verbatim, command)],
        "env": environment.of_plain(job, action) if plain else environment.of_trainer(job, action, site),
        "resources": _resources(spec, site, gpus=spec.gpus_per_node),
        "volumeMounts": volumes.of_trainer(spec),
        "securityContext": container_security(),
        "terminationMessagePath": names.TERMINATION_LOG,
        # The agent writes its own; where it could not even start, the kubelet takes what was printed.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if plain and spec.working_dir is not None:
        container["workingDir"] = spec.working_dir
    if spec.env_from:
        container["envFrom"] = [
            {"configMapRef": {"name": source.config_map}}
            if source.config_map is not None
            else {"secretRef": {"name": source.secret}}
            for source in spec.env_from
        ]
    return container


def _resources(spec: TrainingJobSpec, site: Site, gpus: int) -> dict[str, dict[str, str]]:
    """Requests equal limits: a pod that trains is neither squeezed nor evicted for what it did not ask for.

    Of disk a pod that names none requests little, since most need little, and has the limit of the site.
    """
    asked = {"cpu": spec.resources.cpu, "memory": spec.resources.memory, names.GPU: gpus or None}
    amounts = {name: str(quantity) for name, quantity in asked.items() if quantity is not None}
    requests, limits = dict(amounts), dict(amounts)
    if limit := spec.resources.disk or site.disk:
        limits[names.DISK] = _with_checkpoints(limit, spec)
        requests[names.DISK] = _with_checkpoints(spec.resources.disk or _LITTLE_DISK, spec)
    return {"requests": requests, "limits": limits} if limits else {}


def _with_checkpoints(disk: int | str, spec: TrainingJobSpec) -> str:
    """Add the ephemeral checkpoint volume, which the kubelet counts against the limit of the pod."""
    kept = spec.checkpoint.volume
    if kept is None or kept.ephemeral is None:
        return str(disk)
    return str(int(amount(disk) + amount(kept.ephemeral)))


def pod_security(spec: TrainingJobSpec, run_as: int | None) -> Manifest:
    """A numeric user that is not root, whatever the image says; None: the cluster chooses it."""
    context: Manifest = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if run_as is not None:
        context |= {"runAsUser": run_as, "runAsGroup": run_as}
        if volumes.claims(spec):
            # Checking only the top folder keeps a claim with a million checkpoint files from delaying every start.
            context |= {"fsGroup": run_as, "fsGroupChangePolicy": "OnRootMismatch"}
    return context


def container_security() -> Manifest:
    """No privilege, and no way to one."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


PART_BYTES = 100 * 1024
"""Linux refuses a variable of more than 128 KiB."""


def file_variables(files: Mapping[str, str]) -> dict[str, str]:
    """Variables from which `torchyard-agent.pyz install` writes these files (docs/protocol.md).

    TORCHYARD_FILES holds names and numbers of parts, TORCHYARD_FILE_<f>_<p> part `p` of file `f`, both from 0.
    """
    parts = {name: list(_parts(text)) for name, text in files.items()}
    env = {"TORCHYARD_FILES": json.dumps({name: len(pieces) for name, pieces in parts.items()})}
    for number, pieces in enumerate(parts.values()):
        env |= {f"TORCHYARD_FILE_{number}_{part}": piece for part, piece in enumerate(pieces)}
    return env


def _parts(text: str) -> Iterator[str]:
    """Cut at most PART_BYTES of UTF-8 at a time, never through a character."""
    data = text.encode()
    start = 0
    while start < len(data):
        end = min(start + PART_BYTES, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end -= 1
        yield data[start:end].decode()
        start = end
