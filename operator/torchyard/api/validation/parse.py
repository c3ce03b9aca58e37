"""A TrainingJob as an API server hands it over: typed, or what is wrong with it. No object makes this raise.

The schema and the rules of the CRD are checked by the server when an object is written; this is for objects that got in
by another version of the CRD, by a restored backup, or past them.
"""

import contextlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from torchyard.api import values
from torchyard.api.reasons import Reason
from torchyard.api.resource import ObjectMeta, TrainingJob, read_job, read_status
from torchyard.api.status import TrainingJobStatus
from torchyard.api.validation.rule_engine import broken_rules
from torchyard.version import __version__

MAX_PROBLEM = 300
_UNKNOWN = re.compile(r"unknown field `(?P<name>[^`]*)`(?: - at `\$(?P<at>[^`]*)`)?")


class InvalidJob(Struct, frozen=True, kw_only=True):
    """An object that cannot be run as it is."""

    metadata: ObjectMeta
    status: TrainingJobStatus
    """As it is there; the default if it cannot be read."""
    problem: str
    """Field, value and fix, in one sentence."""
    reason: Reason = Reason.INVALID_SPEC

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
        before: what was made of this object the last time: a spec of the same generation is not read again.
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
        return _invalid(metadata, _status(document), _problem(error), reason)
    fault = next(broken_rules(job.spec), None)
    if fault is not None:
        path, what, fix = fault
        return _invalid(metadata, job.status, f"{path}: {what}: {fix}" if fix else f"{path}: {what}")
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
    """Return what we need of the metadata, without owners, labels and annotations of the wrong form; None: no name."""
    raw = document.get("metadata")
    if not isinstance(raw, Mapping) or not isinstance(raw.get("name"), str):
        return None
    odd = ("ownerReferences", "labels", "annotations", "deletionTimestamp")
    for dropped in (odd[:count] for count in range(len(odd) + 1)):
        kept = {name: value for name, value in raw.items() if name not in dropped and value is not None}
        try:
            return msgspec.convert(kept, ObjectMeta, dec_hook=values.decode)
        except msgspec.ValidationError:
            continue
    return None


def _status(document: Mapping[str, Any]) -> TrainingJobStatus:
    try:
        return read_status(document.get("status") or {})
    except (ValueError, RecursionError):
        return TrainingJobStatus()


def _invalid(
    metadata: ObjectMeta, status: TrainingJobStatus, problem: str, reason: Reason = Reason.INVALID_SPEC
) -> InvalidJob:
    return InvalidJob(metadata=metadata, status=status, problem=problem[:MAX_PROBLEM], reason=reason)
