"""The forms that texts of the resource take: quantities, names, paths; and the base of every section."""

import re
from typing import Annotated, Any

from msgspec import Meta, Struct

from torchyard.api.values import DURATION_OR_AUTO_PATTERN, DURATION_PATTERN

QUANTITY_PATTERN = r"^[0-9]{1,15}(\.[0-9]{1,3})?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
ENV_NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
DNS_LABEL_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
SUBDOMAIN_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
LABEL_KEY_PATTERN = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
LABEL_VALUE_PATTERN = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
TAINT_KEY_PATTERN = r"^(([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
MODULE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
# The workloads that come with us, or MODULE:CLASS of a program's own.
BUILT_IN = ("cvrp", "vecrl", "lm", "vla", "vlm")
TRAINER_PATTERN = rf"^({'|'.join(BUILT_IN)}|{MODULE_PATTERN[1:-1]}:[A-Za-z_][A-Za-z0-9_]*)$"
TEXT_PATTERN = r"^[^\x00]*$"  # what can be an argument, a variable or a file name
CHECKPOINT_PATTERN = r"^(/[^\x00]*|[a-z0-9]([-a-z0-9]*[a-z0-9])?(/(best|step-[0-9]{8,18}))?)$"
ABSOLUTE_PATH_PATTERN = r"^/[^:\x00]*$"
COMPUTE_CAPABILITY_PATTERN = r"^[0-9]{1,2}\.[0-9]$"

# `cpu: 4` and `cpu: "4"` are the same to everybody who writes manifests.
Quantity = (
    Annotated[int, Meta(ge=0, le=2**53)] | Annotated[str, Meta(pattern=QUANTITY_PATTERN, min_length=1, max_length=32)]
)
ObjectName = Annotated[str, Meta(pattern=DNS_LABEL_PATTERN, min_length=1, max_length=63)]
# What the cluster allows as name of a ConfigMap, a Secret, a claim, a service account, a class.
Reference = Annotated[str, Meta(pattern=SUBDOMAIN_PATTERN, min_length=1, max_length=253)]
LabelKey = Annotated[str, Meta(pattern=LABEL_KEY_PATTERN, min_length=1, max_length=253)]
EnvName = Annotated[str, Meta(pattern=ENV_NAME_PATTERN, min_length=1, max_length=256)]
AbsolutePath = Annotated[str, Meta(pattern=ABSOLUTE_PATH_PATTERN, max_length=1024)]
ComputeCapability = Annotated[str, Meta(pattern=COMPUTE_CAPABILITY_PATTERN, max_length=4)]
LabelValue = Annotated[str, Meta(pattern=LABEL_VALUE_PATTERN, max_length=63)]
AnnotationValue = Annotated[str, Meta(pattern=TEXT_PATTERN, max_length=8192)]
TaintKey = Annotated[str, Meta(pattern=TAINT_KEY_PATTERN, max_length=253)]
TrainerName = Annotated[str, Meta(pattern=TRAINER_PATTERN, max_length=256)]
Module = Annotated[str, Meta(pattern=MODULE_PATTERN, max_length=256)]
Argument = Annotated[str, Meta(pattern=TEXT_PATTERN, max_length=16384)]

# What the text of a pattern is, and how to write one.
FORMS = {
    DURATION_PATTERN: ("a duration", "write it like 90s, 5m or 1h30m"),
    DURATION_OR_AUTO_PATTERN: ("auto or a duration", "write auto, or it like 90s, 5m or 1h30m"),
    QUANTITY_PATTERN: ("a quantity", "write it like 8, 500m, 16Gi or 64G"),
    ENV_NAME_PATTERN: ("a variable name", "use letters, digits and '_', no digit first"),
    DNS_LABEL_PATTERN: ("a Kubernetes name", "use lower-case letters, digits and '-', no '-' first or last"),
    SUBDOMAIN_PATTERN: (
        "a Kubernetes name",
        "use lower-case letters, digits, '-' and '.', no sign first or last",
    ),
    LABEL_KEY_PATTERN: ("a label key", "write it like topology.kubernetes.io/zone"),
    LABEL_VALUE_PATTERN: ("a label value", "use letters, digits, '-', '_' and '.', letters or digits first and last"),
    TAINT_KEY_PATTERN: ("a taint key", "write it like nvidia.com/gpu"),
    MODULE_PATTERN: ("a Python module", "write it like package.module"),
    TRAINER_PATTERN: ("a trainer", f"use {', '.join(BUILT_IN)}, or MODULE:CLASS for a workload of your own"),
    TEXT_PATTERN: ("text", "remove that character"),
    CHECKPOINT_PATTERN: (
        "a checkpoint",
        "write a job's name, name/best, name/step-00001200, or an absolute path",
    ),
    ABSOLUTE_PATH_PATTERN: ("an absolute path", "start it with '/', without ':'"),
    COMPUTE_CAPABILITY_PATTERN: ("a compute capability", "write it like 8.0"),
}


class Model(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel", kw_only=True):
    """Base of every spec section: frozen, camelCase on the wire, no unknown fields."""


def doc(text: str) -> Meta:
    """Describe a field; the text reaches `kubectl explain`."""
    return Meta(description=text)


def by_key(*keys: str) -> dict[str, Any]:
    """Mark a list whose items are told apart by these fields: merged by them on apply, and unique."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


MAX_NAME = 63
MAX_NODES = 1024
"""The status names every member of the newest round by its uid: 39 bytes each, and 24 of its 64 KiB for all else."""
# `<job>-<incarnation>-<index>` must fit a DNS label: 5 digits of incarnation, 4 of index, 2 hyphens.
MAX_INCARNATION = 99_999
MAX_JOB_NAME = MAX_NAME - 2 - len(str(MAX_INCARNATION)) - len(str(MAX_NODES - 1))


def pod_name(job_name: str, incarnation: int, index: int) -> str:
    """Name of the pod at `index` (0-based) in its `incarnation`; at most 63 characters for names up to MAX_JOB_NAME."""
    return f"{job_name}-{incarnation}-{index}"


def derived_name(program: str) -> str:
    """Derive the name of a job from that of a script, module or function: `My_train` gives `my-train`."""
    name = re.sub(r"[^a-z0-9]+", "-", program.lower()).strip("-")
    name = name if name[:1].isalpha() else f"job-{name}".rstrip("-")
    return name[:MAX_JOB_NAME].rstrip("-")
