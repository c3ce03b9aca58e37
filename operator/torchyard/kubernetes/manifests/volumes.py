"""Volumes of a pod and where its containers see them. Ours begin with `torchyard-`."""

from typing import Any

from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_placement import Volume
from torchyard.api.torchrun import is_agentless
from torchyard.kubernetes.manifests import names
from torchyard.kubernetes.manifests.site import Site

Entry = dict[str, Any]

_BIN, _CONFIG, _RUN, _INTAKE, _SHM, _TMP, _CHECKPOINTS, _VARIABLES = (
    f"torchyard-{name}" for name in ("bin", "config", "run", "intake", "shm", "tmp", "checkpoints", "variables")
)

_RUN_LIMIT = "256Mi"  # reports of kilobytes, and what NCCL's flight recorder and faulthandler write about a hang


def of_pod(spec: TrainingJobSpec, site: Site) -> list[Entry]:
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


def of_installer() -> list[Entry]:
    """What the installer fills."""
    return [_mount(_BIN, names.BIN), _mount(_CONFIG, names.CONFIG)]


def of_trainer(spec: TrainingJobSpec) -> list[Entry]:
    """What the trainer sees."""
    installed = [_mount(_BIN, names.BIN, read_only=True), _mount(_CONFIG, names.CONFIG, read_only=True)]
    agents = [
        _mount(_RUN, names.RUN),
        _mount(_INTAKE, names.INTAKE, read_only=True),
        *(
            _mount(each["name"], f"{names.VARIABLES}/{place}", read_only=True)
            for place, each in enumerate(_variables(spec))
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
        {"name": f"{_VARIABLES}-{place}", "configMap": {"name": source.config_map, "optional": True}}
        if source.config_map is not None
        else {"name": f"{_VARIABLES}-{place}", "secret": {"secretName": source.secret, "optional": True}}
        for place, source in enumerate(spec.env_from)
    ]


def claims(spec: TrainingJobSpec) -> bool:
    """Whether a claim is mounted, whose files may belong to another user."""
    kept = spec.checkpoint.volume
    return (kept is not None and kept.claim is not None) or any(volume.claim is not None for volume in spec.volumes)


def _intake(site: Site) -> list[Entry]:
    """The token says which pod is calling; the CA comes as an annotation of the pod: no Secret in any namespace."""
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
