"""The two containers: one that brings the agent into any image, and the one that trains."""

import msgspec

from torchyard.api import launch
from torchyard.api.quantities import amount
from torchyard.api.resource import TrainingJob
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.status import Images
from torchyard.cluster.kube.manifest import environment, files, names, security, volumes
from torchyard.cluster.kube.manifest.site import Site
from torchyard.engine.actions import CreatePod
from torchyard.engine.agentless import is_agentless

Container = dict[str, object]

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


def installer(job: TrainingJob, action: CreatePod, site: Site) -> Container:
    """Copies the agent's zipapp out of its image and writes config and inline script: no ConfigMap, any image."""
    written = {CONFIG_FILE: msgspec.json.encode(launch.trainer_config(job, environment.checkpoints_of)).decode()}
    if job.spec.script is not None:
        written[SCRIPT_FILE] = job.spec.script
    return {
        "name": names.AGENT,
        "image": (action.images or images(job, site)).agent,
        "command": ["python3", names.AGENT_ZIPAPP, "install", "--to", names.ROOT],
        "env": environment.listed(files.environment(written)),
        # Before the trainer, not beside it: the same request costs nothing, and a quota or a Guaranteed class holds.
        "resources": _resources(job.spec, site, gpus=0),
        "volumeMounts": volumes.of_installer(),
        "securityContext": security.of_container(),
        "terminationMessagePath": names.TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def trainer(job: TrainingJob, action: CreatePod, site: Site) -> Container:
    """The container that trains: the agent first, if there is one, the workers below it."""
    spec, plain = job.spec, is_agentless(job.spec)
    command = launch.worker_command(spec, f"{names.CONFIG}/{SCRIPT_FILE}" if spec.script is not None else None)
    agent = ["python3", names.AGENT_INSTALLED, "--listen", names.AGENT_LISTEN, "--"]
    container: Container = {
        "name": names.TRAINER,
        "image": (action.images or images(job, site)).trainer,
        "command": [*([] if plain else agent), *map(environment.verbatim, command)],
        "env": environment.of_plain(job, action) if plain else environment.of_trainer(job, action, site),
        "resources": _resources(spec, site, gpus=spec.gpus_per_node),
        "volumeMounts": volumes.of_trainer(spec),
        "securityContext": security.of_container(),
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
