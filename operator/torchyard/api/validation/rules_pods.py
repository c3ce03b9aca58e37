"""Rules of pods and rounds: sizes of texts, volumes, taints, GPUs, labels, checkpoints, restarts, metrics, times.

The sizes make what a job costs the operator's memory a small, known amount: Python keeps a text in one byte a character
if all of them are ASCII, and in up to four if one is not.
"""

import re
from collections.abc import Iterable, Mapping
from re import _parser as parser  # type: ignore[attr-defined]  # the public way to it is deprecated
from typing import Any

from torchyard.api import values
from torchyard.api.names import MAX_NODES
from torchyard.api.spec import MAX_SCRIPT_BYTES, MAX_TEXTS, TrainingJobSpec
from torchyard.api.spec_placement import Elastic, Toleration, Volume
from torchyard.api.spec_reliability import Backoff, CheckpointInterval, Restart
from torchyard.api.spec_workload import Trainer
from torchyard.api.validation.rules import Rule, one_source
from torchyard.api.values import LABEL_KEY_PATTERN

PER_TEXT = 64
MAX_LABEL_KEY = 253 + 1 + 63
# Of the paths of 32 volumes, whose names and sources are 16 KiB more.
MAX_MOUNT_PATHS = 40 * 1024
_FIX = (
    f"use at most {MAX_TEXTS // 1024} KiB in total, where text that is not ASCII counts fourfold; "
    "a file or ConfigMap can hold more"
)


def weight(texts: Iterable[str]) -> int:
    """Return about how many bytes of memory these texts take."""
    return sum((len(text) if text.isascii() else 4 * len(text)) + PER_TEXT for text in texts)


def _weight(text: str) -> str:
    return f"(size(bytes({text})) == size({text}) ? size({text}) : 4 * size({text}))"


def _size_rule(field: str) -> Rule:
    return Rule(
        scope="",
        field=field,
        what="the total length is too large",
        fix=_FIX,
        holds=lambda spec: weight(getattr(spec, field)) <= MAX_TEXTS,
        cel=f"self.map(each, {_weight('each')} + {PER_TEXT}).sum() <= {MAX_TEXTS}",
        on_field=True,
    )


def _params_fit(trainer: Trainer) -> bool:
    return len(trainer.params.json) <= values.MAX_BYTES


SIZE: tuple[Rule, ...] = (
    _size_rule("command"),
    _size_rule("args"),
    Rule(
        scope="",
        field="env",
        what="the total length is too large",
        fix=_FIX,
        holds=lambda spec: weight(part for each in spec.env for part in (each.name, each.value)) <= MAX_TEXTS,
        cel=f"self.map(each, size(each.name) + {2 * PER_TEXT} + "
        f"(has(each.value) ? {_weight('each.value')} : 0)).sum() <= {MAX_TEXTS}",
        on_field=True,
    ),
    Rule(
        scope="",
        field="podAnnotations",
        what="the total length is too large",
        fix=_FIX,
        holds=lambda spec: (
            sum(len(key) + PER_TEXT + weight([value]) for key, value in spec.pod_annotations.items()) <= MAX_TEXTS
        ),
        cel=f"self.map(key, size(key) + {2 * PER_TEXT} + {_weight('self[key]')}).sum() <= {MAX_TEXTS}",
        on_field=True,
    ),
    Rule(
        scope="",
        field="volumes",
        what="the total length of mountPaths is too large",
        fix=f"use at most {MAX_MOUNT_PATHS // 1024} KiB in total, where paths that are not ASCII count fourfold",
        holds=lambda spec: weight(each.mount_path for each in spec.volumes) <= MAX_MOUNT_PATHS,
        cel=f"self.map(each, {_weight('each.mountPath')} + {PER_TEXT}).sum() <= {MAX_MOUNT_PATHS}",
        on_field=True,
    ),
    Rule(
        scope="",
        field="script",
        what="too long",
        fix=f"use at most {MAX_SCRIPT_BYTES // 1024} KiB; a file in the image may be longer",
        holds=lambda spec: spec.script is None or len(spec.script.encode(errors="replace")) <= MAX_SCRIPT_BYTES,
        # Not of the field alone: its value, all of the script, would stand before these words.
        cel=f"!has(self.script) || size(bytes(self.script)) <= {MAX_SCRIPT_BYTES}",
    ),
    Rule(
        scope="scheduling",
        field="nodeSelector",
        what="a label key is too long",
        fix=f"use at most {MAX_LABEL_KEY} characters",
        holds=lambda scheduling: all(len(key) <= MAX_LABEL_KEY for key in scheduling.node_selector),
        cel=f"self.all(key, size(key) <= {MAX_LABEL_KEY})",
        on_field=True,
    ),
    Rule(
        scope="trainer",
        field="params",
        what=f"more than {values.MAX_BYTES // 1024} KiB as JSON",
        fix="put large data into a file on a volume",
        holds=_params_fit,
        cel=None,  # CEL cannot read what has no schema; that limits each level, and the operator the whole
    ),
)


WITH_QUEUES = ("auto", "kueue", "volcano", "kai")
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
            what="a key is reserved",
            fix=f"remove keys that begin with {', '.join(RESERVED_KEYS)}",
            holds=lambda spec: not any(name.startswith(RESERVED_KEYS) for name in keys(spec)),
            cel=f"!self.exists(name, {reserved})",
            on_field=True,
        ),
        Rule(
            scope="",
            field=field,
            what="a key is not a valid label key",
            fix="write keys like example.com/team",
            holds=lambda spec: all(len(name) <= 253 and re.search(LABEL_KEY_PATTERN, name) for name in keys(spec)),
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
        what="exactly one source is required",
        fix="set exactly one of claim, configMap and secret",
        holds=one_source,
        cel="(has(self.claim) ? 1 : 0) + (has(self.configMap) ? 1 : 0) + (has(self.secret) ? 1 : 0) == 1",
    ),
    Rule(
        scope="volumes[]",
        field="name",
        what="{value} is reserved for volumes of TorchYard",
        fix=f"choose a name that does not begin with {OUR_VOLUMES}",
        holds=lambda volume: not volume.name.startswith(OUR_VOLUMES),
        cel=f"!self.startsWith({OUR_VOLUMES!r})",
        on_field=True,
    ),
    Rule(
        scope="volumes[]",
        field="mountPath",
        what="{value} is reserved or not a plain path",
        fix="choose another one; /, /tmp, /dev/shm and /torchyard are reserved, and //, . and .. are not allowed",
        holds=_is_free_path,
        cel=f"!self.matches({OUR_PATHS!r}) && !self.matches({DETOURS!r})",
        on_field=True,
    ),
    Rule(
        scope="",
        field="volumes",
        what="two volumes have the same mountPath",
        fix="mount each at a different path",
        holds=_mounts_differ,
        cel="self.all(one, self.exists_one(other, other.mountPath == one.mountPath))",
        on_field=True,
    ),
    Rule(
        scope="scheduling",
        field="queue",
        what="this gang scheduler has no queues",
        fix="leave it out, or use gang: auto, kueue, volcano or kai",
        holds=lambda scheduling: scheduling.queue is None or scheduling.gang in WITH_QUEUES,
        cel=f"!has(self.queue) || self.gang in [{', '.join(map(repr, WITH_QUEUES))}]",
        reads=("gang",),
    ),
    Rule(
        scope="scheduling",
        field="gang",
        what="Kueue admits jobs through a queue",
        fix="set scheduling.queue to a LocalQueue of the namespace",
        holds=lambda scheduling: scheduling.gang != "kueue" or scheduling.queue is not None,
        cel="self.gang != 'kueue' || has(self.queue)",
        reads=("queue",),
    ),
    Rule(
        scope="scheduling",
        field="workloadPriorityClass",
        what="only Kueue has priorities of workloads",
        fix="leave it out, or use gang: kueue",
        holds=lambda scheduling: scheduling.workload_priority_class is None or scheduling.gang == "kueue",
        cel="!has(self.workloadPriorityClass) || self.gang == 'kueue'",
        reads=("gang",),
    ),
    Rule(
        scope="scheduling.tolerations[]",
        field="value",
        what="operator Exists does not compare a value",
        fix="leave value out, or use operator Equal",
        holds=_value_has_a_use,
        cel="self.operator != 'Exists' || self.value == ''",
        reads=("operator",),
    ),
    Rule(
        scope="scheduling.tolerations[]",
        field="key",
        what="it is missing",
        fix="set the key of the taint, or operator Exists for every taint",
        holds=_names_a_taint,
        cel="self.operator == 'Exists' || self.key != ''",
        reads=("operator",),
    ),
    Rule(
        scope="scheduling.tolerations[]",
        field="tolerationSeconds",
        what="only taints with effect NoExecute evict pods",
        fix="leave it out, or use effect: NoExecute",
        holds=lambda toleration: toleration.toleration_seconds is None or toleration.effect == "NoExecute",
        cel="!has(self.tolerationSeconds) || self.effect == 'NoExecute'",
        reads=("effect",),
    ),
    Rule(
        scope="",
        field="gpu",
        what="no GPU is requested",
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


NAMED_GROUP = r"\(\?P<[A-Za-z_][A-Za-z0-9_]*>"


def _within(elastic: Elastic) -> bool:
    return elastic.min_nodes <= elastic.max_nodes


def _one_unit(interval: CheckpointInterval) -> bool:
    return (interval.steps is None) != (interval.seconds is None)


def _restarts_are_allowed(restart: Restart) -> bool:
    return restart.policy != "Never" or not restart.max_restarts


def _grows(backoff: Backoff) -> bool:
    return backoff.initial <= backoff.max


def _is_sound(pattern: str) -> bool:
    """Return whether Python can parse a pattern.

    Compiling a pattern can take seconds: 60 case-insensitive classes of all of Unicode do.
    """
    try:
        return bool(parser.parse(pattern).state.groupdict)
    except (re.error, OverflowError, RecursionError):
        return False


def _positive(scope: str, field: str, attribute: str, *, optional: bool = False, auto: bool = False) -> Rule:
    def holds(section: Any) -> bool:
        value = getattr(section, attribute)
        return value is None or value > 0

    cel = "duration(self) > duration('0s')"
    return Rule(
        scope=scope,
        field=field,
        what="{value} is not longer than zero",
        fix="use a longer duration" + (", or leave it out" if optional else ""),
        holds=holds,
        cel=f"self == 'auto' || {cel}" if auto else cel,
        on_field=True,
    )


RELIABILITY: tuple[Rule, ...] = (
    Rule(
        scope="elastic",
        field="minNodes",
        what="{value} is more than maxNodes",
        fix="make minNodes at most maxNodes",
        holds=_within,
        cel="self.minNodes <= self.maxNodes",
        reads=("maxNodes",),
    ),
    Rule(
        scope="",
        field="nodes",
        what="{value} is not between elastic.minNodes and elastic.maxNodes",
        fix="change nodes, or the bounds",
        holds=lambda spec: spec.elastic is None or spec.elastic.min_nodes <= spec.nodes <= spec.elastic.max_nodes,
        cel="!has(self.elastic) || (self.elastic.minNodes <= self.nodes && self.nodes <= self.elastic.maxNodes)",
        reads=("elastic",),
    ),
    Rule(
        scope="",
        field="elastic",
        what="only the agent can start the workers of a gang again with another size",
        fix="use launcher.kind: agent, or remove elastic",
        holds=lambda spec: spec.elastic is None or spec.launcher.kind == "agent",
        cel="!has(self.elastic) || self.launcher.kind == 'agent'",
        reads=("launcher",),
    ),
    Rule(
        scope="",
        field="elastic",
        what="strategy single requires exactly one process",
        fix="use parallelism.strategy auto, ddp, fsdp or hsdp, or remove elastic",
        holds=lambda spec: spec.elastic is None or spec.parallelism.strategy != "single" or spec.elastic.max_nodes == 1,
        cel="!has(self.elastic) || self.parallelism.strategy != 'single' || self.elastic.maxNodes == 1",
        reads=("parallelism.strategy",),
    ),
    Rule(
        scope="",
        field="spares",
        what="a pod without an agent cannot wait for its turn",
        fix="use launcher.kind: agent, or set spares to 0",
        holds=lambda spec: spec.spares == 0 or spec.launcher.kind == "agent",
        cel="self.spares == 0 || self.launcher.kind == 'agent'",
        reads=("launcher",),
    ),
    Rule(
        scope="",
        field="spares",
        what=f"nodes and spares together are more than {MAX_NODES} pods",
        fix="use fewer",
        holds=lambda spec: (spec.nodes if spec.elastic is None else spec.elastic.max_nodes) + spec.spares <= MAX_NODES,
        cel=f"(has(self.elastic) ? self.elastic.maxNodes : self.nodes) + self.spares <= {MAX_NODES}",
        reads=("nodes", "elastic"),
    ),
    Rule(
        scope="",
        field="health.replaceStraggler",
        what="only a spare can take the place of a slow pod, and only where slow ranks are looked for",
        fix="set spares to 1 or more and leave health.straggler at true, or leave it out",
        holds=lambda spec: not spec.health.replace_straggler or (spec.spares > 0 and spec.health.straggler),
        cel="!self.health.replaceStraggler || (self.spares > 0 && self.health.straggler)",
        reads=("spares", "health"),
    ),
    Rule(
        scope="checkpoint.interval",
        field="",
        what="exactly one unit is required",
        fix="set exactly one of steps and seconds, or leave interval out",
        holds=_one_unit,
        cel="has(self.steps) != has(self.seconds)",
    ),
    Rule(
        scope="checkpoint.volume",
        field="",
        what="exactly one source is required",
        fix="set exactly one of claim and ephemeral, or leave volume out",
        holds=one_source,
        cel="has(self.claim) != has(self.ephemeral)",
    ),
    Rule(
        scope="restart",
        field="maxRestarts",
        what="policy Never allows no restarts",
        fix="leave it out, or use policy OnFailure",
        holds=_restarts_are_allowed,
        cel="self.policy != 'Never' || !has(self.maxRestarts) || self.maxRestarts == 0",
        reads=("policy",),
    ),
    Rule(
        scope="restart.backoff",
        field="initial",
        what="{value} is longer than max",
        fix="make it at most max",
        holds=_grows,
        cel="duration(self.initial) <= duration(self.max)",
        reads=("max",),
    ),
    Rule(
        scope="metrics.patterns[]",
        field="",
        what="{value} has no named group",
        fix="write one like loss=(?P<loss>[0-9.]+)",
        holds=lambda pattern: re.search(NAMED_GROUP, pattern) is not None,
        cel=f"self.matches('{NAMED_GROUP}')".replace("\\", "\\\\"),
    ),
    Rule(
        scope="metrics.patterns[]",
        field="",
        what="{value} is not a regular expression with a named group",
        fix="write one like loss=(?P<loss>[0-9.]+)",
        holds=lambda pattern: re.search(NAMED_GROUP, pattern) is None or _is_sound(pattern),
        cel=None,
    ),
)

# A first delay of zero is a delay, a TTL of zero is "at once"; of every other duration zero would mean nothing.
DURATIONS: tuple[Rule, ...] = (
    _positive("restart.backoff", "max", "max"),
    _positive("health", "startTimeout", "start_timeout"),
    _positive("health", "stall", "stall", auto=True),
    _positive("health", "pendingTimeout", "pending_timeout", optional=True),
    _positive("debug", "keepFailedPod", "keep_failed_pod", optional=True),
    _positive("scheduling", "gangTimeout", "gang_timeout"),
    _positive("metrics", "interval", "interval"),
    _positive("", "activeDeadline", "active_deadline", optional=True),
    _positive("", "gracePeriod", "grace_period"),
)
