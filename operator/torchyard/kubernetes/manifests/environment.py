"""The environment of the containers of a pod: variables, small files that come as variables, and volumes.

Of variables, what a bare image lacks comes first, then our defaults, the user's own, and the contract's last.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from torchyard.api import inputs, launch
from torchyard.api.launch import MASTER_PORT, checkpoint_claim, is_agentless, local_procs, requested_procs
from torchyard.api.resource import TrainingJob
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_placement import Volume
from torchyard.api.values import amount
from torchyard.kubernetes.manifests import code_volumes, names
from torchyard.kubernetes.manifests.names import Site
from torchyard.reconcile.actions import CreatePod

Entry = dict[str, Any]


def of_trainer(job: TrainingJob, action: CreatePod, site: Site, claimed_gpus: int = 0) -> list[Entry]:
    """Return every variable of the trainer's container, one entry a name.

    What only the agent and its workers read comes in two of them, which the agent unpacks: entries of a container are
    half of what creating a pod costs the API server (docs/decisions/0020-agent-environment-in-two-variables.md).
    """
    spec = job.spec
    own = launch.own_env(spec)
    settings = _without(own, _caches()) | launch.agent_env(spec) | _contract(job, action, site)
    settings |= _claimed(spec, claimed_gpus)
    defaults = _without(own, launch.DEFAULT_ENV | _threads(spec, claimed_gpus))
    packed = {"TORCHYARD_ENV": json.dumps(settings), "TORCHYARD_ENV_DEFAULTS": json.dumps(defaults)}
    return [
        *listed(_home() | _gpus(spec) | own | _no_gpus(spec) | packed),
        {"name": "TORCHYARD_POD_ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]


def of_plain(job: TrainingJob, action: CreatePod, claimed_gpus: int = 0) -> list[Entry]:
    """Return every variable of a container without an agent: torchrun reads its options from `PET_<OPTION>`."""
    spec = job.spec
    name = job.metadata.name
    rendezvous = {
        "PET_NNODES": str(spec.nodes),
        "PET_NPROC_PER_NODE": str(_procs(spec, claimed_gpus)),
        "PET_NODE_RANK": str(action.index),
        "PET_MASTER_ADDR": f"{names.gang_host(name, 0)}.{names.gang_service(name)}",
        "PET_MASTER_PORT": str(MASTER_PORT),
    }
    ours = {"TORCHYARD_JOB": name, "TORCHYARD_CHECKPOINT_DIR": f"{names.CHECKPOINTS}/{name}"}
    defaults = _home() | _gpus(spec) | _caches() | launch.DEFAULT_ENV | _threads(spec, claimed_gpus)
    return listed(defaults | launch.own_env(spec) | rendezvous | ours | _no_gpus(spec))


def of_program(spec: TrainingJobSpec) -> dict[str, str]:
    """Return the variables of the spec that the container has from it."""
    return _without(_no_gpus(spec), launch.own_env(spec))


def checkpoints_of(job: str) -> str:
    """Checkpoint folder of a job: all that mount one claim see each other's."""
    return f"{names.CHECKPOINTS}/{job}"


def listed(env: Mapping[str, str]) -> list[Entry]:
    """Variables as a container lists them, each passed on verbatim."""
    return [{"name": name, "value": verbatim(value)} for name, value in env.items()]


def verbatim(text: str) -> str:
    """Return a text that the kubelet, which expands `$(NAME)`, gives to the process as it is."""
    return text.replace("$", "$$")


def _home() -> dict[str, str]:
    """Return what a uid lacks that is unknown to the image, run read-only; also for shells of `kubectl exec`."""
    return {
        "HOME": names.TMP,
        "USER": "torchyard",  # getpass.getuser(), behind torch.compile's cache, raises for a uid without a name
    }


def _caches() -> dict[str, str]:
    """Return folders for compiler caches; those of an image are read-only."""
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


def _threads(spec: TrainingJobSpec, claimed_gpus: int) -> dict[str, str]:
    """Left alone, each process would start a thread for every core of the node and be throttled."""
    procs = _procs(spec, claimed_gpus)
    if spec.resources.cpu is None or procs == "auto":
        return {}
    return {"OMP_NUM_THREADS": str(max(1, int(amount(spec.resources.cpu) / procs)))}


def _claimed(spec: TrainingJobSpec, gpus: int) -> dict[str, str]:
    """Return what claims of devices change in the settings of the agent, which counts GPUs itself if it must."""
    if not spec.resources.claims:
        return {}
    expected = {"TORCHYARD_GPUS": str(spec.gpus_per_node + gpus)} if gpus else {}
    return {"TORCHYARD_PROCS": str(_procs(spec, gpus)), **expected}


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
    if checkpoint_claim(spec) is not None:
        # A claim outlives jobs: whether a job continues from files of a former one of its name (agent: ownership.py).
        resumed = (spec.checkpoint.resume_from or "").partition("/")[0] == job.metadata.name
        restored = job.status.checkpoint is not None  # from a backup, status and all, with another uid
        env["TORCHYARD_FORMER_JOB"] = "go-on" if resumed or restored else "start-over"
    # Mounted config maps and secrets, which can be edited while the job exists (agent: content.py).
    mounted = [volume.mount_path for volume in spec.volumes if volume.claim is None]
    env["TORCHYARD_CONTENT_FOLDERS"] = ":".join([names.CONFIG, *mounted])
    if spec.env_from:
        folders = (f"{names.VARIABLES}/{position}" for position in range(len(spec.env_from)))
        env["TORCHYARD_VARIABLE_FOLDERS"] = ":".join(folders)
    if spec.code is not None:
        env |= {"TORCHYARD_CODE_ROOT": names.CODE, "TORCHYARD_CODE_MOUNT": names.CODE_PARTS}
        packages = f"{inputs.SHARED}/.requirements" if spec.input_cache is not None else names.PACKAGES
        env |= code_volumes.source(spec) | inputs.requirements(spec, packages)
    if spec.working_dir is not None:
        env["TORCHYARD_WORKING_DIR"] = spec.working_dir
    if not spec.inputs:
        return env
    cache = inputs.SHARED if spec.input_cache is not None else inputs.PRIVATE
    return env | inputs.variables(spec, inputs.folder_in_pod) | inputs.settings(job, cache, names.INPUTS)


def _without(taken: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in taken}


def _procs(spec: TrainingJobSpec, claimed_gpus: int = 0) -> int | Literal["auto"]:
    """Return the workers of a pod; auto: as many as it has GPUs, whose number is not known."""
    if not spec.resources.claims or requested_procs(spec) != "auto":
        return local_procs(spec)
    return spec.gpus_per_node + claimed_gpus if claimed_gpus else "auto"


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


_CONFIG, _RUN, _INTAKE, _SHM, _TMP, _CHECKPOINTS, _VARIABLES, _INPUTS, _INPUT_CACHE = (
    f"torchyard-{name}"
    for name in (
        *("config", "run", "intake", "shm", "tmp", "checkpoints", "variables"),
        *("inputs", "input-cache"),
    )
)
_RUN_LIMIT = "256Mi"  # reports of kilobytes, and what NCCL's flight recorder and faulthandler write about a hang


def mounts_agent(spec: TrainingJobSpec, site: Site) -> bool:
    """Return whether the pod mounts the image of the agent, which then writes its files itself."""
    return site.agent_volume and not is_agentless(spec)


def volumes(spec: TrainingJobSpec, site: Site, agent_image: str = "") -> list[Entry]:
    """Return the volumes of the pod: ours, then the user's."""
    shm: Entry = {"medium": "Memory"}
    # What lies in it counts towards the memory of the containers; without a limit there it may fill that of the node.
    if limit := first_above_zero(spec.resources.shm, spec.resources.memory, site.shm):
        shm["sizeLimit"] = str(limit)
    plain = is_agentless(spec)
    mounted: Entry = {"image": {"reference": agent_image, "pullPolicy": "IfNotPresent"}}
    agent = mounted if mounts_agent(spec, site) else {"emptyDir": {}}
    installed: list[Entry] = [{"name": names.AGENT_VOLUME, **agent}, {"name": _CONFIG, "emptyDir": {}}]
    agents: list[Entry] = [
        {"name": _RUN, "emptyDir": {"medium": "Memory", "sizeLimit": _RUN_LIMIT}},
        {"name": _INTAKE, "projected": {"sources": _intake(site)}},
        *_variables(spec),
    ]
    return [
        *([] if plain and spec.script is None else installed),
        *([] if plain else agents),
        {"name": _SHM, "emptyDir": shm},
        {"name": _TMP, "emptyDir": {}},
        {"name": _CHECKPOINTS, **_checkpoints(spec)},
        *(code_volumes.volumes(spec.code) if spec.code is not None else ()),
        *(_input_volumes(spec) if spec.inputs or spec.input_cache is not None else ()),
        *({"name": volume.name, **_source(volume)} for volume in spec.volumes),
    ]


def first_above_zero(*quantities: int | str | None) -> int | str | None:
    """Return the first quantity that sets a limit; the kubelet takes a limit of zero for none."""
    return next((each for each in quantities if each and amount(each) > 0), None)


def installer_mounts() -> list[Entry]:
    """Return the volume mounts of the installer."""
    return [_mount(names.AGENT_VOLUME, names.BIN), _mount(_CONFIG, names.CONFIG)]


def trainer_mounts(spec: TrainingJobSpec, site: Site) -> list[Entry]:
    """Return the volume mounts of the trainer. Without an installer, its agent writes the config."""
    plain = is_agentless(spec)
    config = _mount(_CONFIG, names.CONFIG, read_only=not mounts_agent(spec, site))
    installed = [_mount(names.AGENT_VOLUME, names.BIN, read_only=True), config]
    agents = [
        _mount(_RUN, names.RUN),
        _mount(_INTAKE, names.INTAKE, read_only=True),
        *(
            _mount(each["name"], f"{names.VARIABLES}/{position}", read_only=True)
            for position, each in enumerate(_variables(spec))
        ),
    ]
    return [
        *([] if plain and spec.script is None else installed),
        *([] if plain else agents),
        _mount(_SHM, names.SHM),
        _mount(_TMP, names.TMP),
        _mount(_CHECKPOINTS, names.CHECKPOINTS),
        *(code_volumes.mounts(spec.code) if spec.code is not None else ()),
        *(_input_mounts(spec) if spec.inputs or spec.input_cache is not None else ()),
        *(
            _mount(volume.name, volume.mount_path, read_only=volume.read_only or volume.claim is None)
            for volume in spec.volumes
        ),
    ]


def _input_volumes(spec: TrainingJobSpec) -> list[Entry]:
    """Return the volume of fetched inputs, the one that they are kept on, and the claims that others lie on."""
    claims = dict.fromkeys(claim[0] for each in spec.inputs if (claim := inputs.claim_of(each)) is not None)
    kept, written = spec.input_cache, _written_claims(spec)
    return [
        *([{"name": _INPUTS, "emptyDir": {}}] if inputs.fetched(spec) else []),
        *([{"name": _INPUT_CACHE, "persistentVolumeClaim": {"claimName": kept.claim}}] if kept is not None else []),
        *(
            {"name": f"{_INPUTS}-{number}", "persistentVolumeClaim": _read_claim(claim, written)}
            for number, claim in enumerate(claims)
        ),
    ]


def _written_claims(spec: TrainingJobSpec) -> set[str | None]:
    """Return the claims that the pod writes to."""
    kept = [spec.input_cache.claim] if spec.input_cache is not None else []
    return {checkpoint_claim(spec), *kept, *(volume.claim for volume in spec.volumes if not volume.read_only)}


def _read_claim(claim: str, written: set[str | None]) -> Entry:
    """Return a claim as a read-only volume; one that the pod also writes to would become read-only as a whole."""
    return {"claimName": claim} | ({} if claim in written else {"readOnly": True})


def _input_mounts(spec: TrainingJobSpec) -> list[Entry]:
    """Return the mounts of inputs: all fetched ones where the agent writes, and each at its path, read-only."""
    claims: dict[str, str] = {}
    at_paths = []
    for each in spec.inputs:
        claim = inputs.claim_of(each)
        volume = _INPUTS if claim is None else claims.setdefault(claim[0], f"{_INPUTS}-{len(claims)}")
        folder = each.name if claim is None else claim[1]
        if claim is not None or each.path is not None:
            mount = _mount(volume, inputs.folder_in_pod(each), read_only=True)
            at_paths.append(mount | ({"subPath": folder} if folder else {}))
    return [
        *([_mount(_INPUTS, names.INPUTS)] if inputs.fetched(spec) else []),
        *([_mount(_INPUT_CACHE, names.INPUT_CACHE)] if spec.input_cache is not None else []),
        *at_paths,
    ]


def _variables(spec: TrainingJobSpec) -> list[Entry]:
    """Return the sources of `envFrom` as volumes: their files name the variables that the agent compares.

    The kubelet reports a missing source for the variables, not for the volume.
    """
    return [
        {"name": f"{_VARIABLES}-{position}", "configMap": {"name": source.config_map, "optional": True}}
        if source.config_map is not None
        else {"name": f"{_VARIABLES}-{position}", "secret": {"secretName": source.secret, "optional": True}}
        for position, source in enumerate(spec.env_from)
    ]


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
