"""The pod of one index of a gang: its two containers, what they may do, and the small files that they start with.

One container brings the agent into any image, the other trains. The pod satisfies the `restricted` Pod Security
Standard and has a read-only root file system.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from torchyard.api import launch
from torchyard.api.launch import is_agentless
from torchyard.api.resource import TrainingJob
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_placement import Volume
from torchyard.api.status import Images
from torchyard.api.validation.changes import configuration
from torchyard.api.values import amount
from torchyard.kubernetes.manifests import environment, names, placement
from torchyard.kubernetes.manifests.names import Site
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
        "volumes": pod_volumes(spec, site),
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
    """Return the owner reference by which an object is deleted with its job."""
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
        "volumeMounts": installer_mounts(),
        "securityContext": container_security(),
        "terminationMessagePath": names.TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def trainer(job: TrainingJob, action: CreatePod, site: Site) -> Manifest:
    """Return the container that trains: the agent first, if there is one, the workers below it."""
    spec, plain = job.spec, is_agentless(job.spec)
    command = launch.worker_command(spec, f"{names.CONFIG}/{SCRIPT_FILE}" if spec.script is not None else None)
    agent = ["python3", names.AGENT_INSTALLED, "--listen", names.AGENT_LISTEN, "--"]
    container: Manifest = {
        "name": names.TRAINER,
        "image": (action.images or images(job, site)).trainer,
        "command": [*([] if plain else agent), *map(environment.verbatim, command)],
        "env": environment.of_plain(job, action) if plain else environment.of_trainer(job, action, site),
        "resources": _resources(spec, site, gpus=spec.gpus_per_node),
        "volumeMounts": trainer_mounts(spec),
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
    """Return a numeric user that is not root, whatever the image says; None: the cluster chooses it."""
    context: Manifest = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if run_as is not None:
        context |= {"runAsUser": run_as, "runAsGroup": run_as}
        if claims(spec):
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


Entry = dict[str, Any]

_BIN, _CONFIG, _RUN, _INTAKE, _SHM, _TMP, _CHECKPOINTS, _VARIABLES = (
    f"torchyard-{name}" for name in ("bin", "config", "run", "intake", "shm", "tmp", "checkpoints", "variables")
)

_RUN_LIMIT = "256Mi"  # reports of kilobytes, and what NCCL's flight recorder and faulthandler write about a hang


def pod_volumes(spec: TrainingJobSpec, site: Site) -> list[Entry]:
    """Ours, then the user's."""
    shm: Entry = {"medium": "Memory"}
    # What lies in it counts towards the memory of the containers; without a limit there it may fill that of the node.
    if limit := spec.resources.shm or spec.resources.memory or site.shm:
        shm["sizeLimit"] = str(limit)
    installed: list[Entry] = [{"name": name, "emptyDir": {}} for name in (_BIN, _CONFIG)]
    agents: list[Entry] = [
        {"name": _RUN, "emptyDir": {"medium": "Memory", "sizeLimit": _RUN_LIMIT}},
        {"name": _INTAKE, "projected": {"sources": _intake(site)}},
        *_variables(spec),
    ]
    plain = is_agentless(spec)
    return [
        *([] if plain and spec.script is None else installed),
        *([] if plain else agents),
        {"name": _SHM, "emptyDir": shm},
        {"name": _TMP, "emptyDir": {}},
        {"name": _CHECKPOINTS, **_checkpoints(spec)},
        *({"name": volume.name, **_source(volume)} for volume in spec.volumes),
    ]


def installer_mounts() -> list[Entry]:
    """Return the volume mounts of the installer."""
    return [_mount(_BIN, names.BIN), _mount(_CONFIG, names.CONFIG)]


def trainer_mounts(spec: TrainingJobSpec) -> list[Entry]:
    """Return the volume mounts of the trainer."""
    installed = [_mount(_BIN, names.BIN, read_only=True), _mount(_CONFIG, names.CONFIG, read_only=True)]
    agents = [
        _mount(_RUN, names.RUN),
        _mount(_INTAKE, names.INTAKE, read_only=True),
        *(
            _mount(each["name"], f"{names.VARIABLES}/{position}", read_only=True)
            for position, each in enumerate(_variables(spec))
        ),
    ]
    plain = is_agentless(spec)
    return [
        *([] if plain and spec.script is None else installed),
        *([] if plain else agents),
        _mount(_SHM, names.SHM),
        _mount(_TMP, names.TMP),
        _mount(_CHECKPOINTS, names.CHECKPOINTS),
        *(
            _mount(volume.name, volume.mount_path, read_only=volume.read_only or volume.claim is None)
            for volume in spec.volumes
        ),
    ]


def _variables(spec: TrainingJobSpec) -> list[Entry]:
    """Return the sources of `envFrom` as volumes: their files name the variables that the agent compares.

    A source that does not exist is what the kubelet says about the variables, not about a volume.
    """
    return [
        {"name": f"{_VARIABLES}-{position}", "configMap": {"name": source.config_map, "optional": True}}
        if source.config_map is not None
        else {"name": f"{_VARIABLES}-{position}", "secret": {"secretName": source.secret, "optional": True}}
        for position, source in enumerate(spec.env_from)
    ]


def claims(spec: TrainingJobSpec) -> bool:
    """Return whether a claim is mounted, whose files may belong to another user."""
    kept = spec.checkpoint.volume
    return (kept is not None and kept.claim is not None) or any(volume.claim is not None for volume in spec.volumes)


def _intake(site: Site) -> list[Entry]:
    """Return the volume of the token, which identifies the pod, and of the CA, an annotation: no Secret is needed."""
    ca = f"metadata.annotations['{names.INTAKE_CA}']"
    token = {"audience": site.audience, "expirationSeconds": site.token_seconds, "path": "token"}
    return [
        {"serviceAccountToken": token},
        {"downwardAPI": {"items": [{"path": "ca.crt", "fieldRef": {"fieldPath": ca}}]}},
    ]


def _checkpoints(spec: TrainingJobSpec) -> Entry:
    kept = spec.checkpoint.volume
    if kept is not None and kept.claim is not None:
        return {"persistentVolumeClaim": {"claimName": kept.claim}}
    if kept is not None and kept.ephemeral is not None:
        return {"emptyDir": {"sizeLimit": str(kept.ephemeral)}}
    return {"emptyDir": {}}


def _source(volume: Volume) -> Entry:
    if volume.claim is not None:
        claim: Entry = {"claimName": volume.claim}
        return {"persistentVolumeClaim": claim | ({"readOnly": True} if volume.read_only else {})}
    if volume.config_map is not None:
        return {"configMap": {"name": volume.config_map}}
    return {"secret": {"secretName": volume.secret}}


def _mount(name: str, path: str, *, read_only: bool = False) -> Entry:
    return {"name": name, "mountPath": path} | ({"readOnly": True} if read_only else {})
