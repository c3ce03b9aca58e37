"""Read a TrainingJob as an API server returns it: decode and check it. No object makes this raise.

The API server checks schema and rules when an object is written; this is for objects that got in by another version of
the CRD, by a restored backup, or past them.

A rule is between fields, and holds for a *scope*: the spec (""), a section (`checkpoint.interval`) or each item of a
list (`env[]`). Sections that are absent break no rule. The API server checks the same rules in CEL (`cel.py`).
Constraints of one field alone (type, range, pattern) are part of the models.
"""

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from torchyard.api import values
from torchyard.api.names import CODE_ARRIVED, OF_TRIALS
from torchyard.api.reasons import Reason
from torchyard.api.resource import ObjectMeta, TrainingJob, plain, read_job, read_status
from torchyard.api.spec import OPERATOR, TrainingJobSpec
from torchyard.api.status import TrainingJobStatus
from torchyard.api.validation.problems import shown
from torchyard.api.validation.rules import Rule
from torchyard.api.validation.rules_code import CODE
from torchyard.api.validation.rules_inputs import INPUTS
from torchyard.api.validation.rules_pods import DURATIONS, PLACEMENT, RELIABILITY, SIZE
from torchyard.api.validation.rules_workload import PROGRAM, TRAINING
from torchyard.version import __version__

Fault = tuple[str, str, str]  # path, what is wrong, how to fix it

RULES: tuple[Rule, ...] = (*SIZE, *PROGRAM, *CODE, *PLACEMENT, *INPUTS, *TRAINING, *RELIABILITY, *DURATIONS)

MAX_PROBLEM = 300
MAX_ANNOTATION, MAX_FINALIZERS = 32 * 1024, 8
_UNKNOWN = re.compile(r"unknown field `(?P<name>[^`]*)`(?: - at `\$(?P<at>[^`]*)`)?")


class InvalidJob(Struct, frozen=True, kw_only=True):
    """An object that cannot be run as it is."""

    metadata: ObjectMeta
    status: TrainingJobStatus
    """As it is there; the default if it cannot be read."""
    problem: str
    """Field, value and fix, in one sentence."""
    reason: Reason = Reason.INVALID_SPEC
    is_delegated: bool = False
    """Whether another controller runs the job: its status is not ours."""

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name)."""
        return (self.metadata.namespace, self.metadata.name)


def parse_job(
    document: Mapping[str, Any], before: TrainingJob | InvalidJob | None = None
) -> TrainingJob | InvalidJob | None:
    """Read one object; None: it has not even a name.

    Args:
        document: as decoded from JSON.
        before: the former entry of this object: a spec of the same generation is not read again.
    """
    metadata = metadata_of(document)
    if metadata is None:
        return None
    if isinstance(before, TrainingJob) and _same_spec(before.metadata, metadata):
        with contextlib.suppress(ValueError, RecursionError):
            return msgspec.structs.replace(before, metadata=metadata, status=read_status(document.get("status") or {}))
    try:
        job = read_job({**document, "metadata": {"name": metadata.name}})
    except (ValueError, RecursionError) as error:
        reason = Reason.UNREADABLE_STATUS if "`$.status" in str(error) else Reason.INVALID_SPEC
        return _invalid(document, metadata, _status(document), _problem(error), reason)
    fault = next(broken_rules(job.spec), None)
    if fault is not None:
        path, what, fix = fault
        return _invalid(document, metadata, job.status, f"{path}: {what}: {fix}" if fix else f"{path}: {what}")
    return msgspec.structs.replace(job, metadata=metadata)


def _same_spec(before: ObjectMeta, now: ObjectMeta) -> bool:
    """Return whether the spec is the one that was read.

    A newer CRD adds its defaults on reading; an operator meets that in every upgrade, where the CRD comes first.
    """
    return (before.uid, before.generation) == (now.uid, now.generation)


def _problem(error: Exception) -> str:
    """In words of the resource. The API server drops fields that its CRD lacks: one that we do not know is newer."""
    found = _UNKNOWN.search(str(error))
    if found is None:
        return str(error) or "nested too deeply"
    field = f"{found['at'] or ''}.{found['name']}".lstrip(".")
    return f"{field}: unknown to this operator ({__version__}), which is older than the CRD: upgrade the operator"


def metadata_of(document: Mapping[str, Any]) -> ObjectMeta | None:
    """Return what we need of the metadata, without owners, labels and annotations of the wrong form; None: no name.

    Users write lists and mappings of any size there. Of labels, annotations, owners and finalizers only those are kept
    that something depends on.
    """
    raw = document.get("metadata")
    if not isinstance(raw, Mapping) or not isinstance(raw.get("name"), str):
        return None
    used = {**raw, **{name: choose(raw.get(name)) for name, choose in _USED.items()}}
    odd = ("ownerReferences", "labels", "annotations", "deletionTimestamp")
    for dropped in (odd[:count] for count in range(len(odd) + 1)):
        kept = {name: value for name, value in used.items() if name not in dropped and value is not None}
        try:
            return msgspec.convert(kept, ObjectMeta, dec_hook=values.decode)
        except msgspec.ValidationError:
            continue
    return None


def _of_trials(texts: Any) -> Any:
    """Return the labels or annotations of trials and of code; no others are read."""
    if not isinstance(texts, Mapping):
        return texts
    found = {name: texts[name] for name in (*OF_TRIALS, CODE_ARRIVED) if name in texts}
    return {name: text for name, text in found.items() if len(str(text)) <= MAX_ANNOTATION}


def _controller(owners: Any) -> Any:
    """Return the owner that controls the object; the API server allows one."""
    if not isinstance(owners, list):
        return owners
    return [each for each in owners if not isinstance(each, Mapping) or each.get("controller")][:2]


def _finalizers(listed: Any) -> Any:
    """Return a few, those of Kubernetes itself first, which have no domain."""
    return sorted(map(str, listed), key=lambda name: "/" in name)[:MAX_FINALIZERS] if isinstance(listed, list) else None


_USED: Mapping[str, Callable[[Any], Any]] = {
    "labels": _of_trials,
    "annotations": _of_trials,
    "ownerReferences": _controller,
    "finalizers": _finalizers,
}


def _status(document: Mapping[str, Any]) -> TrainingJobStatus:
    try:
        return read_status(document.get("status") or {})
    except (ValueError, RecursionError):
        return TrainingJobStatus()


def _invalid(
    document: Mapping[str, Any],
    metadata: ObjectMeta,
    status: TrainingJobStatus,
    problem: str,
    reason: Reason = Reason.INVALID_SPEC,
) -> InvalidJob:
    spec = document.get("spec")
    controller = spec.get("managedBy") if isinstance(spec, Mapping) else None
    return InvalidJob(
        metadata=metadata,
        status=status,
        problem=problem[:MAX_PROBLEM],
        reason=reason,
        is_delegated=controller not in (None, OPERATOR),
    )


def broken_rules(spec: TrainingJobSpec, faulty: Collection[str] = ()) -> Iterator[Fault]:
    """Yield every broken rule. What reads a path in `faulty`, known to be wrong already, is not judged."""
    scopes: dict[str, list[tuple[str, Any]]] = {}
    for rule in RULES:
        if rule.scope not in scopes:  # many rules have the same
            scopes[rule.scope] = list(subjects(spec, rule.scope))
        for path, subject in scopes[rule.scope]:
            if not any(_touch(read, known) for known in faulty for read in _reads(rule, path)):
                yield from _broken(rule, path, subject)


def subjects(spec: TrainingJobSpec, scope: str) -> Iterator[tuple[str, Any]]:
    """Yield the values a scope names, with their paths: none where a section is absent, one an item for `name[]`."""
    found: list[tuple[str, Any]] = [("spec", spec)]
    for part in scope.split(".") if scope else ():
        name = part.removesuffix("[]")
        below = [(f"{path}.{name}", _field(value, name)) for path, value in found]
        if part.endswith("[]"):
            below = [(f"{path}[{index}]", item) for path, items in below for index, item in enumerate(items)]
        found = [(path, value) for path, value in below if value is not None]
    yield from found


def _broken(rule: Rule, path: str, subject: Any) -> Iterator[Fault]:
    if rule.holds(subject):
        return
    value = subject
    for name in rule.field.split(".") if rule.field else ():
        value = _field(value, name)
    what = rule.what.replace("{value}", shown(plain(value))) if "{value}" in rule.what else rule.what
    yield (f"{path}.{rule.field}" if rule.field else path), what, rule.fix


def _reads(rule: Rule, path: str) -> list[str]:
    names = rule.reads if not rule.field else (rule.field, *rule.reads)
    return [f"{path}.{name}" for name in names] or [path]


def _touch(one: str, other: str) -> bool:
    """Return whether two paths are the same or one lies within the other."""
    short, long = sorted((one, other), key=len)
    return long.startswith(short) and (len(long) == len(short) or long[len(short)] in ".[")


def _field(model: Struct, wire_name: str) -> Any:
    return getattr(model, model.__struct_fields__[model.__struct_encode_fields__.index(wire_name)])
