"""The environment of the trainer: what a bare image lacks, our defaults, the user's own, and the contract's last."""

import json
from collections.abc import Mapping
from typing import Any

from torchyard.api import launch
from torchyard.api.launch import MASTER_PORT, local_procs
from torchyard.api.resource import TrainingJob
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.values import amount
from torchyard.kubernetes.manifests import names
from torchyard.kubernetes.manifests.names import Site
from torchyard.reconcile.actions import CreatePod

Variable = dict[str, Any]


def of_trainer(job: TrainingJob, action: CreatePod, site: Site) -> list[Variable]:
    """Return every variable of the trainer's container, one entry a name.

    What only the agent and its workers read comes in two of them, which the agent unpacks: entries of a container are
    half of what creating a pod costs the API server (docs/decisions/0020-agent-environment-in-two-variables.md).
    """
    spec = job.spec
    own = launch.own_env(spec)
    settings = _without(own, _caches()) | launch.agent_env(spec) | _contract(job, action, site)
    defaults = _without(own, launch.DEFAULT_ENV | _threads(spec))
    packed = {"TORCHYARD_ENV": json.dumps(settings), "TORCHYARD_ENV_DEFAULTS": json.dumps(defaults)}
    return [
        *listed(_home() | _gpus(spec) | own | _no_gpus(spec) | packed),
        {"name": "TORCHYARD_POD_ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]


def of_plain(job: TrainingJob, action: CreatePod) -> list[Variable]:
    """Return every variable of a container without an agent: torchrun reads its options from `PET_<OPTION>`."""
    spec = job.spec
    name = job.metadata.name
    rendezvous = {
        "PET_NNODES": str(spec.nodes),
        "PET_NPROC_PER_NODE": str(_procs(spec)),
        "PET_NODE_RANK": str(action.index),
        "PET_MASTER_ADDR": f"{names.gang_host(name, 0)}.{names.gang_service(name)}",
        "PET_MASTER_PORT": str(MASTER_PORT),
    }
    ours = {"TORCHYARD_JOB": name, "TORCHYARD_CHECKPOINT_DIR": f"{names.CHECKPOINTS}/{name}"}
    defaults = _home() | _gpus(spec) | _caches() | launch.DEFAULT_ENV | _threads(spec)
    return listed(defaults | launch.own_env(spec) | rendezvous | ours | _no_gpus(spec))


def checkpoints_of(job: str) -> str:
    """Checkpoint folder of a job: all that mount one claim see each other's."""
    return f"{names.CHECKPOINTS}/{job}"


def listed(env: Mapping[str, str]) -> list[Variable]:
    """Variables as a container lists them, each passed on verbatim."""
    return [{"name": name, "value": verbatim(value)} for name, value in env.items()]


def verbatim(text: str) -> str:
    """Return a text that the kubelet, which expands `$(NAME)`, gives to the process as it is."""
    return text.replace("$", "$$")


def _home() -> dict[str, str]:
    """Return what a uid unknown to an image that is run read-only lacks, also for who looks in with `kubectl exec`."""
    return {
        "HOME": names.TMP,
        "USER": "torchyard",  # getpass.getuser(), behind torch.compile's cache, raises for a uid without a name
    }


def _caches() -> dict[str, str]:
    """Return where programs may keep what they compile; those of an image lie where nothing can be written."""
    return {
        "XDG_CACHE_HOME": f"{names.TMP}/cache",
        "TORCHINDUCTOR_CACHE_DIR": f"{names.TMP}/cache/inductor",
        "TRITON_CACHE_DIR": f"{names.TMP}/cache/triton",
    }


def _gpus(spec: TrainingJobSpec) -> dict[str, str]:
    return {"NVIDIA_DRIVER_CAPABILITIES": "compute,utility"} if spec.gpus_per_node else {}


def _no_gpus(spec: TrainingJobSpec) -> dict[str, str]:
    """CUDA images ask the NVIDIA runtime for every GPU of the node unless a variable says otherwise."""
    return {} if spec.gpus_per_node else {"NVIDIA_VISIBLE_DEVICES": "void"}


def _threads(spec: TrainingJobSpec) -> dict[str, str]:
    """Left alone, each process would start a thread for every core of the node and be throttled."""
    if spec.resources.cpu is None:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, int(amount(spec.resources.cpu) / _procs(spec))))}


def _contract(job: TrainingJob, action: CreatePod, site: Site) -> dict[str, str]:
    """docs/protocol.md, "Agent command line and environment"."""
    spec = job.spec
    env = {
        "TORCHYARD_JOB": job.metadata.name,
        "TORCHYARD_NAMESPACE": job.metadata.namespace,
        "TORCHYARD_JOB_UID": job.metadata.uid,
        "TORCHYARD_POD_NAME": action.name,
        "TORCHYARD_POD_INDEX": str(action.index),
        "TORCHYARD_OPERATOR_URL": site.operator_url,
        "TORCHYARD_TOKEN_FILE": f"{names.INTAKE}/token",
        "TORCHYARD_CA_FILE": f"{names.INTAKE}/ca.crt",
        "TORCHYARD_RUN_DIR": names.RUN,
        # Not beside the reports: output may be large, and what lies there is memory of the pod.
        "TORCHYARD_LOG_DIR": f"{names.TMP}/torchyard-logs",
        "TORCHYARD_TERMINATION_LOG": names.TERMINATION_LOG,
        "TORCHYARD_CONFIG": f"{names.CONFIG}/config.json",
        "TORCHYARD_CHECKPOINT_DIR": checkpoints_of(job.metadata.name),
        "TORCHYARD_CACHE_DIR": f"{names.TMP}/cache",
        "TORCHYARD_PROCS": str(_procs(spec)),
    }
    if spec.checkpoint.claim is not None:
        # A claim outlives jobs: whether a new one of a name goes on from what a former one left (agent: ownership.py).
        resumed = (spec.checkpoint.resume_from or "").partition("/")[0] == job.metadata.name
        restored = job.status.checkpoint is not None  # from a backup, status and all, with another uid
        env["TORCHYARD_FORMER_JOB"] = "go-on" if resumed or restored else "start-over"
    # Where what is edited beside the job is seen by its pods (agent: content.py).
    mounted = [volume.mount_path for volume in spec.volumes if volume.claim is None]
    env["TORCHYARD_CONTENT_FOLDERS"] = ":".join([names.CONFIG, *mounted])
    if spec.env_from:
        folders = (f"{names.VARIABLES}/{position}" for position in range(len(spec.env_from)))
        env["TORCHYARD_VARIABLE_FOLDERS"] = ":".join(folders)
    if spec.working_dir is not None:
        env["TORCHYARD_WORKING_DIR"] = spec.working_dir
    return env


def _without(taken: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in taken}


def _procs(spec: TrainingJobSpec) -> int:
    return local_procs(spec)
