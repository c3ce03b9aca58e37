"""The pod of one index of a gang: its two containers, their privileges, and the nodes that it may run on.

One container brings the agent into any image, the other trains. The pod satisfies the `restricted` Pod Security
Standard and has a read-only root file system.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from torchyard.api import inputs, launch
from torchyard.api.launch import is_agentless
from torchyard.api.resource import TrainingJob
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_placement import Gpu, Topology
from torchyard.api.status import Images
from torchyard.api.values import amount
from torchyard.kubernetes.manifests import environment, names
from torchyard.kubernetes.manifests.names import Site
from torchyard.reconcile.actions import CreatePod
from torchyard.reconcile.code import Program, program_of
from torchyard.reconcile.gang import configuration
from torchyard.schedulers.protocol import PodChanges

Manifest = dict[str, Any]


def pod(job: TrainingJob, action: CreatePod, site: Site, provenance: str = "", *, claimed_gpus: int = 0) -> Manifest:
    """Return the pod that a gang's member runs in; the same arguments give the same document.

    It asks for nothing that the `restricted` Pod Security Standard forbids.

    Args:
        job: of the gang.
        action: that creates the pod.
        site: settings of the installation.
        provenance: signature of the operator.
        claimed_gpus: GPUs in the claims of the pod; 0: none, or not known.
    """
    spec = job.spec
    plain = is_agentless(spec)
    document: Manifest = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": max(1, round(spec.grace_period)),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(spec, site.run_as),
        "tolerations": tolerations(spec, site),
        **({"initContainers": [installer(job, action, site)]} if needs_installer(spec, site) else {}),
        "containers": [trainer(job, action, site, claimed_gpus)],
        "volumes": environment.volumes(spec, site, (action.images or images(job, site)).agent),
    }
    chosen: Manifest = {
        "hostname": names.gang_host(job.metadata.name, action.index) if plain else "",
        "subdomain": names.gang_service(job.metadata.name) if plain else "",
        "serviceAccountName": spec.service_account_name,
        "imagePullSecrets": [{"name": name} for name in spec.image_pull_secrets],
        "resourceClaims": _claims(spec),
        "affinity": affinity(job, action.avoid),
        "priorityClassName": spec.scheduling.priority_class,
        "nodeSelector": dict(spec.scheduling.node_selector),
    }
    changes = action.changes or PodChanges()
    chosen["nodeSelector"] |= changes.node_selector
    document["tolerations"] += changes.tolerations
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(job, action, site, provenance),
        "spec": document | {field: value for field, value in chosen.items() if value} | changes.spec,
    }


def template(job: TrainingJob, site: Site) -> Manifest:
    """Return what gang schedulers read of the pods, as a pod template: no program, environment, file or secret.

    It requests disk only if the job does: a queue without quota for a resource never admits a Workload that requests
    it, and few queues have quota for disk.
    """
    spec = job.spec
    resources = _with_claims(spec, site)
    if not environment.first_above_zero(spec.resources.disk):
        amounts = {each: _without(resources[each], names.DISK) for each in ("requests", "limits") if each in resources}
        resources = resources | amounts
    container = {"name": names.TRAINER, "resources": resources}
    chosen: Manifest = {
        "resourceClaims": _claims(spec),
        "tolerations": tolerations(spec, site),
        "affinity": affinity(job),
        "priorityClassName": spec.scheduling.priority_class,
        "nodeSelector": dict(spec.scheduling.node_selector),
    }
    fields = {field: value for field, value in chosen.items() if value}
    labels: Manifest = {"metadata": {"labels": dict(spec.pod_labels)}} if spec.pod_labels else {}
    return labels | {"spec": {"restartPolicy": "Never", "containers": [container], **fields}}


def _without(amounts: dict[str, str], resource: str) -> dict[str, str]:
    return {name: quantity for name, quantity in amounts.items() if name != resource}


def _metadata(job: TrainingJob, action: CreatePod, site: Site, provenance: str) -> Manifest:
    changes = action.changes or PodChanges()
    annotations = {
        **job.spec.pod_annotations,
        **changes.annotations,
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
            **changes.labels,
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
    agent = site.agent_image if not is_agentless(job.spec) or needs_installer(job.spec, site) else ""
    return Images(trainer=job.spec.image or site.trainer_image, agent=agent)


def needs_installer(spec: TrainingJobSpec, site: Site) -> bool:
    """Return whether an init container installs something into the pods: an agent, or at least a script."""
    return spec.script is not None if is_agentless(spec) else not site.agent_volume


def installer(job: TrainingJob, action: CreatePod, site: Site) -> Manifest:
    """Copies the agent's zipapp out of its image and writes config and inline script: no ConfigMap, any image."""
    job = inputs.with_folders(job, inputs.folder_in_pod) if job.spec.inputs else job
    return {
        "name": names.AGENT,
        "image": (action.images or images(job, site)).agent,
        "command": ["python3", names.AGENT_ZIPAPP, "install", "--to", names.ROOT],
        "env": environment.listed(environment.file_variables(_files(job))),
        # Before the trainer, not beside it: the same request costs nothing, and a quota or a Guaranteed class holds.
        "resources": _resources(job.spec, site, gpus=0),
        "volumeMounts": environment.installer_mounts(),
        "securityContext": container_security(),
        "terminationMessagePath": names.TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _files(job: TrainingJob) -> dict[str, str]:
    """Return the files of the pod by name, of a job with the folders of its inputs: config and inline script."""
    config = msgspec.json.encode(launch.trainer_config(job, environment.checkpoints_of)).decode()
    return {CONFIG_FILE: config} | ({SCRIPT_FILE: job.spec.script} if job.spec.script is not None else {})


def trainer(job: TrainingJob, action: CreatePod, site: Site, claimed_gpus: int = 0) -> Manifest:
    """Return the container that trains: the agent first, if there is one, the workers below it."""
    job = inputs.with_folders(job, inputs.folder_in_pod) if job.spec.inputs else job
    spec, plain = job.spec, is_agentless(job.spec)
    agent = ["python3", names.AGENT_INSTALLED, "--listen", names.AGENT_LISTEN, "--"]
    env = (
        environment.of_plain(job, action, claimed_gpus)
        if plain
        else environment.of_trainer(job, action, site, claimed_gpus)
    )
    if environment.mounts_agent(spec, site):
        files = environment.file_variables(_files(job)) | {"TORCHYARD_FILES_TO": names.CONFIG}
        env = [*env, *environment.listed(files)]
    container: Manifest = {
        "name": names.TRAINER,
        "image": (action.images or images(job, site)).trainer,
        "command": [*([] if plain else agent), *map(environment.verbatim, _command(spec))],
        "env": env,
        "resources": _with_claims(spec, site),
        "volumeMounts": environment.trainer_mounts(spec, site),
        "securityContext": container_security(),
        "terminationMessagePath": names.TERMINATION_LOG,
        # The agent writes its own message; if it could not start, the kubelet takes the end of the log.
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


def program(job: TrainingJob) -> Program | None:
    """Return what the workers of a round run, where code travels with the job."""
    filled = inputs.with_folders(job, inputs.folder_in_pod) if job.spec.inputs else job
    return program_of(job.spec, _command(filled.spec), environment.of_program(filled.spec))


def _command(spec: TrainingJobSpec) -> list[str]:
    return launch.worker_command(spec, f"{names.CONFIG}/{SCRIPT_FILE}" if spec.script is not None else None)


def _resources(spec: TrainingJobSpec, site: Site, gpus: int) -> dict[str, dict[str, str]]:
    """Requests equal limits: a pod that trains is neither throttled nor evicted for resources that it did not request.

    A pod that requests no disk gets a small request, since most need little, and the limit of the installation.
    """
    asked = {"cpu": spec.resources.cpu, "memory": spec.resources.memory, names.GPU: gpus or None}
    amounts = {name: str(quantity) for name, quantity in asked.items() if quantity is not None}
    requests, limits = dict(amounts), dict(amounts)
    disk = environment.first_above_zero(spec.resources.disk)
    if limit := disk or site.disk:
        limits[names.DISK] = _with_checkpoints(limit, spec)
        requests[names.DISK] = _with_checkpoints(disk or _LITTLE_DISK, spec)
    return {"requests": requests, "limits": limits} if limits else {}


def _with_claims(spec: TrainingJobSpec, site: Site) -> Manifest:
    """Return what the trainer's container requests, with its claims."""
    claims: Manifest = {"claims": [{"name": each.name} for each in spec.resources.claims]}
    return _resources(spec, site, gpus=spec.gpus_per_node) | (claims if spec.resources.claims else {})


def _claims(spec: TrainingJobSpec) -> list[Manifest]:
    return [{"name": each.name, "resourceClaimTemplateName": each.template} for each in spec.resources.claims]


def _with_checkpoints(disk: int | str, spec: TrainingJobSpec) -> str:
    """Add the ephemeral checkpoint volume, which the kubelet counts against the limit of the pod."""
    kept = spec.checkpoint.volume
    if kept is None or kept.ephemeral is None:
        return str(disk)
    return str(int(amount(disk) + amount(kept.ephemeral)))


def pod_security(spec: TrainingJobSpec, run_as: int | None) -> Manifest:
    """Return a numeric user other than root, instead of that of the image; None: the cluster chooses it."""
    context: Manifest = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if run_as is not None:
        context |= {"runAsUser": run_as, "runAsGroup": run_as}
        if claims(spec):
            # Checking only the top folder keeps a claim with a million checkpoint files from delaying every start.
            context |= {"fsGroup": run_as, "fsGroupChangePolicy": "OnRootMismatch"}
    return context


def claims(spec: TrainingJobSpec) -> bool:
    """Return whether a claim is mounted, whose files may belong to another user."""
    kept = spec.checkpoint.volume
    on_claims = kept is not None and kept.claim is not None
    on_claims |= spec.input_cache is not None or any(inputs.claim_of(each) is not None for each in spec.inputs)
    return on_claims or any(volume.claim is not None for volume in spec.volumes)


def container_security() -> Manifest:
    """No privileges, and no escalation."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


# The labels of NVIDIA's GPU feature discovery.
GPU_PRODUCT = "nvidia.com/gpu.product"
GPU_MEMORY = "nvidia.com/gpu.memory"  # MiB
GPU_MAJOR = "nvidia.com/gpu.compute.major"
GPU_MINOR = "nvidia.com/gpu.compute.minor"
_MIB = 1024 * 1024
_NODE_LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_STRONGEST = 100


def affinity(job: TrainingJob, avoid: Iterable[str] = ()) -> Manifest:
    """Return node affinity for `gpu` and against the nodes to avoid, and pod affinity for `scheduling.topology`.

    Empty if none of them applies. A node to avoid is still used if no other one has capacity.
    """
    found: Manifest = {}
    on_nodes: Manifest = {}
    terms = _gpu_terms(job.spec.gpu) if job.spec.gpu is not None else []
    if terms:
        required = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
        on_nodes["requiredDuringSchedulingIgnoredDuringExecution"] = required
    others = [_is_not(node) for node in avoid]
    if others:
        # One term: of several, a node that is to be avoided would match all but its own, and lose next to nothing.
        preferred = {"weight": _STRONGEST, "preference": {"matchFields": others}}
        on_nodes["preferredDuringSchedulingIgnoredDuringExecution"] = [preferred]
    if on_nodes:
        found["nodeAffinity"] = on_nodes
    topology = job.spec.scheduling.topology
    if topology is not None and (closeness := _closeness(topology, job.metadata.uid)):
        found["podAffinity"] = closeness
    return found


def tolerations(spec: TrainingJobSpec, site: Site) -> list[Manifest]:
    """Return how long a pod tolerates a lost node, and the tolerations of the job.

    Of several tolerations of a taint, Kubernetes uses the first. One that matches every taint would keep pods on a lost
    node forever, so only a toleration that names the taint replaces ours.
    """
    named = {each.key for each in spec.scheduling.tolerations if each.effect in {"", "NoExecute"}}
    found = [
        {"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": site.lost_node_seconds}
        for taint in _NODE_LOST
        if taint not in named
    ]
    return found + asked(spec)


def asked(spec: TrainingJobSpec) -> list[Manifest]:
    """Return the user's tolerations, and the one GPU nodes ask for."""
    found: list[Manifest] = []
    for toleration in spec.scheduling.tolerations:
        fields = {
            "key": toleration.key,
            "operator": toleration.operator,
            "value": toleration.value,
            "effect": toleration.effect,
        }
        seconds = toleration.toleration_seconds
        limit: Manifest = {"tolerationSeconds": seconds} if seconds is not None else {}
        found.append({name: value for name, value in fields.items() if value} | limit)
    if spec.gpus_per_node:
        found.append({"key": names.GPU, "operator": "Exists", "effect": "NoSchedule"})
    return found


def _gpu_terms(gpu: Gpu) -> list[list[Manifest]]:
    """Alternatives, each a list of demands that must all hold; none if nothing is demanded."""
    demands: list[Manifest] = []
    if gpu.products:
        demands.append({"key": GPU_PRODUCT, "operator": "In", "values": list(gpu.products)})
    if gpu.min_memory is not None and (least := -(-int(amount(gpu.min_memory)) // _MIB)) > 0:
        demands.append(_more_than(GPU_MEMORY, least - 1))
    if gpu.min_compute_capability is None:
        return [demands] if demands else []
    major, minor = map(int, gpu.min_compute_capability.split("."))
    if minor == 0:
        return [[*demands, _more_than(GPU_MAJOR, max(major, 1) - 1)]]
    same = {"key": GPU_MAJOR, "operator": "In", "values": [str(major)]}
    return [[*demands, _more_than(GPU_MAJOR, major)], [*demands, same, _more_than(GPU_MINOR, minor - 1)]]


def _is_not(node: str) -> Manifest:
    return {"key": "metadata.name", "operator": "NotIn", "values": [node]}


def _more_than(label: str, number: int) -> Manifest:
    return {"key": label, "operator": "Gt", "values": [str(number)]}


def _closeness(topology: Topology, job_uid: str) -> Manifest:
    def near(label: str) -> Manifest:
        return {"topologyKey": label, "labelSelector": {"matchLabels": {names.JOB_UID: job_uid}}}

    found: Manifest = {}
    if topology.required is not None:
        found["requiredDuringSchedulingIgnoredDuringExecution"] = [near(topology.required)]
    if topology.preferred is not None:
        preferred = {"weight": _STRONGEST, "podAffinityTerm": near(topology.preferred)}
        found["preferredDuringSchedulingIgnoredDuringExecution"] = [preferred]
    return found
