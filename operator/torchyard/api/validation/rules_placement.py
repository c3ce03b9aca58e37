"""Rules of volumes, taints, GPUs, and what pods are labelled with."""

import re
from collections.abc import Mapping
from typing import Any

from torchyard.api.forms import LABEL_KEY_PATTERN
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_placement import Toleration, Volume
from torchyard.api.validation.rule import Rule, one_source

OUR_VOLUMES = "torchyard-"
DETOURS = r"//|/[.]([.]|/|$)"
OUR_PATHS = r"^/+(tmp|dev/shm|torchyard(/.*)?)?/*$"


# What the operator finds its pods by, what it sets itself, and what switches protections of a pod off.
RESERVED_KEYS = (
    "torchyard.dev/",
    "app.kubernetes.io/managed-by",
    "kubectl.kubernetes.io/",
    "container.apparmor.security.beta.kubernetes.io/",
    "seccomp.security.alpha.kubernetes.io/",
    "container.seccomp.security.alpha.kubernetes.io/",
)


def _labelling(field: str) -> tuple[Rule, Rule]:
    """Return the rules of a map of labels or annotations."""

    def keys(spec: TrainingJobSpec) -> Mapping[str, Any]:
        return spec.pod_labels if field == "podLabels" else spec.pod_annotations

    reserved = " || ".join(f"name.startsWith({prefix!r})" for prefix in RESERVED_KEYS)
    return (
        Rule(
            scope="",
            field=field,
            what="a key of it is reserved",
            fix=f"leave out keys that begin with {', '.join(RESERVED_KEYS)}",
            holds=lambda spec: not any(name.startswith(RESERVED_KEYS) for name in keys(spec)),
            cel=f"!self.exists(name, {reserved})",
            on_field=True,
        ),
        Rule(
            scope="",
            field=field,
            what="a key of it is not a label key",
            fix="write keys like example.com/team",
            holds=lambda spec: all(re.search(LABEL_KEY_PATTERN, name) and len(name) <= 253 for name in keys(spec)),
            cel=None,
        ),
    )


def _is_free_path(volume: Volume) -> bool:
    return re.search(OUR_PATHS, volume.mount_path) is None and re.search(DETOURS, volume.mount_path) is None


def _mounts_differ(spec: TrainingJobSpec) -> bool:
    paths = [volume.mount_path for volume in spec.volumes]
    return len(paths) == len(set(paths))


def _value_has_a_use(toleration: Toleration) -> bool:
    return toleration.operator != "Exists" or not toleration.value


def _names_a_taint(toleration: Toleration) -> bool:
    return bool(toleration.key) or toleration.operator == "Exists"


PLACEMENT: tuple[Rule, ...] = (
    *_labelling("podLabels"),
    *_labelling("podAnnotations"),
    Rule(
        scope="volumes[]",
        field="",
        what="it needs one source",
        fix="give exactly one of claim, configMap and secret",
        holds=one_source,
        cel="(has(self.claim) ? 1 : 0) + (has(self.configMap) ? 1 : 0) + (has(self.secret) ? 1 : 0) == 1",
    ),
    Rule(
        scope="volumes[]",
        field="name",
        what="{value} is a name of our own volumes",
        fix=f"choose one that does not begin with {OUR_VOLUMES}",
        holds=lambda volume: not volume.name.startswith(OUR_VOLUMES),
        cel=f"!self.startsWith({OUR_VOLUMES!r})",
        on_field=True,
    ),
    Rule(
        scope="volumes[]",
        field="mountPath",
        what="{value} is taken or leaves its folder",
        fix="choose another one; /, /tmp, /dev/shm and /torchyard are taken, // and parts . and .. are not allowed",
        holds=_is_free_path,
        cel=f"!self.matches({OUR_PATHS!r}) && !self.matches({DETOURS!r})",
        on_field=True,
    ),
    Rule(
        scope="",
        field="volumes",
        what="two have the same mountPath",
        fix="mount each in a folder of its own",
        holds=_mounts_differ,
        cel="self.all(one, self.exists_one(other, other.mountPath == one.mountPath))",
        on_field=True,
    ),
    Rule(
        scope="scheduling.tolerations[]",
        field="value",
        what="operator Exists compares no value",
        fix="leave value out, or use operator Equal",
        holds=_value_has_a_use,
        cel="self.operator != 'Exists' || self.value == ''",
        reads=("operator",),
    ),
    Rule(
        scope="scheduling.tolerations[]",
        field="key",
        what="it is missing",
        fix="give the key of the taint, or operator Exists for every taint",
        holds=_names_a_taint,
        cel="self.operator == 'Exists' || self.key != ''",
        reads=("operator",),
    ),
    Rule(
        scope="scheduling.tolerations[]",
        field="tolerationSeconds",
        what="only taints of effect NoExecute send pods away",
        fix="leave it out, or use effect: NoExecute",
        holds=lambda toleration: toleration.toleration_seconds is None or toleration.effect == "NoExecute",
        cel="!has(self.tolerationSeconds) || self.effect == 'NoExecute'",
        reads=("effect",),
    ),
    Rule(
        scope="",
        field="gpu",
        what="no GPU is asked for",
        fix="set gpusPerNode, or leave gpu out",
        holds=lambda spec: spec.gpu is None or spec.gpus_per_node > 0,
        cel="!has(self.gpu) || self.gpusPerNode > 0",
        reads=("gpusPerNode",),
    ),
    Rule(
        scope="",
        field="gpusPerNode",
        what="device cpu needs no GPU",
        fix="set gpusPerNode to 0, or device to auto or cuda",
        holds=lambda spec: spec.device != "cpu" or spec.gpus_per_node == 0,
        cel="self.device != 'cpu' || self.gpusPerNode == 0",
        reads=("device",),
    ),
)
