"""Fields that only one backend uses, a cluster or this machine. The other reports them: nothing is ignored silently."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec.structs import replace

from torchyard.api.resource import TrainingJob, resolved
from torchyard.api.spec import TrainingJobSpec

Backend = Literal["cluster", "local"]

# A file made for one backend works on the other unchanged, so these are no faults.
ONLY: dict[str, Backend] = {
    "profile": "cluster",
    "image": "cluster",
    "launcher.kind": "cluster",
    "envFrom": "cluster",
    "gpu.products": "cluster",
    "gpu.minMemory": "cluster",
    "gpu.minComputeCapability": "cluster",
    "gpu.ids": "local",
    "resources": "cluster",
    "checkpoint.volume": "cluster",
    "scheduling": "cluster",
    "managedBy": "cluster",
    "podLabels": "cluster",
    "podAnnotations": "cluster",
    "serviceAccountName": "cluster",
    "imagePullSecrets": "cluster",
    "volumes": "cluster",
    "inputCache": "cluster",
    "suspend": "cluster",
}
_UNSET: tuple[Any, ...] = (None, [], {})


def ignored(spec: TrainingJobSpec, backend: Backend) -> tuple[str, ...]:
    """Return the fields, relative to `spec`, that are set and that this backend has no use for."""
    asked, default = resolved(spec), resolved(TrainingJobSpec())
    return tuple(
        field
        for field, only in ONLY.items()
        if only != backend and (value := _get(asked, field)) not in _UNSET and value != _get(default, field)
    )


def on_this_machine(job: TrainingJob) -> TrainingJob:
    """Return the job as this machine runs it: every gang here has an agent, and a run that is started runs."""
    launcher = replace(job.spec.launcher, kind="agent")
    return replace(job, spec=replace(job.spec, launcher=launcher, suspend=False, managed_by=None))


def _get(document: Mapping[str, Any] | None, field: str) -> Any:
    value: Any = document
    for name in field.split("."):
        value = value[name] if isinstance(value, Mapping) else None
    return value
