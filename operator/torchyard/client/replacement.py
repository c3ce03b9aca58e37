"""How a job that exists becomes another one under its name: with its next round, by a suspend, or not at all (pure)."""

from typing import Any, NamedTuple

from torchyard.api.resource import TrainingJob, resolved, value_at
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.validation.changes import FIXED, FREE, forbidden_changes
from torchyard.client.errors import TorchYardError
from torchyard.reconcile.code import same_pod
from torchyard.reconcile.gang import configuration


class Replacement(NamedTuple):
    """What has to happen.

    Attributes:
        fields: that differ, relative to `spec`.
        spec: a merge patch of the spec.
        fixed: those fields that change only while the job is suspended.
        new_pods: why running pods cannot run the next round; empty: they can, once they have its code.
    """

    fields: list[str]
    spec: dict[str, Any]
    fixed: list[str]
    new_pods: str


def replacement(old: TrainingJob, new: TrainingJob, flags: str = "") -> Replacement:
    """Return what turns the stored job `old` into `new`; whether it is suspended stays as it is.

    Args:
        old: as it is stored.
        new: as it was submitted.
        flags: what commands that are proposed repeat.

    Raises:
        TorchYardError: a field differs that never changes, since it makes another training.
    """
    before, after = resolved(old.spec), resolved(new.spec)
    fields = [
        field
        for field in (*(each.field for each in FIXED), *FREE)
        if field != "suspend" and value_at(before, field) != value_at(after, field)
    ]
    forbidden = forbidden_changes(old.spec, new.spec)
    if never := [f"spec.{each.field}" for each in forbidden if not each.unless_suspended]:
        name = old.metadata.name
        fix = f"give the new one another --name, or `torchyard rm {name}{flags}` first"
        raise TorchYardError(f"{name} is another training: {', '.join(never)} differs and can never change", fix)
    patch: dict[str, Any] = {}
    for field in fields:
        _put(patch, field.split("."), value_at(after, field))
    return Replacement(fields, patch, [each.field for each in forbidden], _new_pods(old.spec, new.spec))


def _new_pods(old: TrainingJobSpec, new: TrainingJobSpec) -> str:
    """Return why running pods cannot follow; what they have installed cannot be exchanged under a gang."""
    if any(spec.code is not None and spec.code.requirements is not None for spec in (old, new)):
        return "the requirements of its code are installed when a pod starts"
    same = same_pod(configuration(old), configuration(new))
    return "" if same else "its variables or its workers for each pod changed"


def _put(patch: dict[str, Any], path: list[str], value: Any) -> None:
    *sections, name = path
    for section in sections:
        patch = patch.setdefault(section, {})
    patch[name] = value
