"""The CustomResourceDefinition of TrainingProfile, generated from the models."""

from copy import deepcopy
from typing import Any

from torchyard.api.crd import Column, as_yaml, definition
from torchyard.api.profiles.resource import KIND, MAX_PROFILE_NAME, PLURAL, spec_schema
from torchyard.api.resource import GROUP, VERSION
from torchyard.api.schema import Schema
from torchyard.api.values import SUBDOMAIN_PATTERN

_COLUMNS: tuple[Column, ...] = (
    ("Nodes", ".spec.limits.nodes", "integer", 0, "Most pods of a job."),
    ("GPUs", ".spec.limits.gpus", "integer", 0, "Most GPUs of a job."),
    ("Queue", ".spec.defaults.scheduling.queue", "string", 0, "Queue of jobs that name none."),
    ("Description", ".spec.description", "string", 0, "What the profile is for."),
    ("Age", ".metadata.creationTimestamp", "date", 0, "Time since creation."),
)


def profile_crd_yaml() -> str:
    """Return the CRD as YAML, byte for byte the same for the same models."""
    return as_yaml(profile_crd())


def profile_crd() -> dict[str, Any]:
    """Return the CRD as JSON values."""
    return definition(kind=KIND, plural=PLURAL, short="tp", columns=_COLUMNS, schema=_object(), scope="Cluster")


def _object() -> Schema:
    spec = deepcopy(spec_schema())
    spec.pop("default", None)
    name = {
        "type": "string",
        "description": "Name of the profile, as jobs have it in spec.profile.",
        "maxLength": MAX_PROFILE_NAME,
        "pattern": SUBDOMAIN_PATTERN,
    }
    return {
        "type": "object",
        "description": "A profile: what the platform team sets and allows for the jobs that name it.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"{GROUP}/{VERSION}"},
            "kind": {"type": "string", "description": KIND},
            "metadata": {"type": "object", "properties": {"name": name}},
            "spec": spec,
        },
    }
