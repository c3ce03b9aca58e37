"""The TrainingJob object: metadata, spec, status."""

from typing import Any

from msgspec import Struct, field

from torchyard.api.spec import TrainingJobSpec
from torchyard.api.status import TrainingJobStatus
from torchyard.api.values import Time

GROUP = "torchyard.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "TrainingJob"
PLURAL = "trainingjobs"


class OwnerReference(Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """An object that owns another one."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class ObjectMeta(Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """The part of Kubernetes object metadata that TorchYard reads."""

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 1
    resource_version: str = ""
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    finalizers: list[str] = field(default_factory=list)
    owner_references: list[OwnerReference] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, Any] = field(default_factory=dict)


class TrainingJob(Struct, frozen=True, rename="camel", kw_only=True):
    """One training job."""

    metadata: ObjectMeta
    spec: TrainingJobSpec
    status: TrainingJobStatus = field(default_factory=TrainingJobStatus)
    api_version: str = API_VERSION
    kind: str = KIND

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name), the key of the work queue."""
        return (self.metadata.namespace, self.metadata.name)
