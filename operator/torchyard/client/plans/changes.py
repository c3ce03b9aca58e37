"""What a job file changes in the job of its name that exists, and whether that restarts it. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct

from torchyard.api.resource import TrainingJob, resolved, value_at
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.validation.changes import FIXED, FREE, forbidden_changes

MAX_DEPTH = 8

Effect = Literal["at once", "suspend first", "not possible"]
"""When a change applies: to the running job, only while it is suspended, or only as another job."""


class Change(Struct, frozen=True, kw_only=True, rename="camel"):
    """A field that differs. A value of None: the field is not set."""

    field: str
    before: Any
    after: Any
    effect: Effect


class Existing(Struct, frozen=True, kw_only=True, rename="camel"):
    """The job of this name, and what the file would change.

    Attributes:
        state: of the job.
        restarts: whether the changes end its round: it is suspended, changed, and continues from its checkpoint.
        checkpoint_step: where it would continue; None: it has no checkpoint.
        changes: field by field.
    """

    state: str
    restarts: bool
    checkpoint_step: int | None
    changes: list[Change]

    @property
    def possible(self) -> bool:
        """Whether all changes are allowed."""
        return all(each.effect != "not possible" for each in self.changes)


def existing(job: TrainingJob, before: TrainingJob | None) -> Existing | None:
    """Return what `job` changes in `before`; None: there is no job of this name."""
    if before is None:
        return None
    changes = [*_changes(before.spec, job.spec)]
    saved = before.status.checkpoint
    stops = any(each.effect == "suspend first" for each in changes)
    return Existing(
        state=str(before.status.state),
        restarts=stops and not before.status.state.at_rest,
        checkpoint_step=saved.step if saved is not None else None,
        changes=changes,
    )


def _changes(old: TrainingJobSpec, new: TrainingJobSpec) -> Iterator[Change]:
    before, after = resolved(old), resolved(new)
    forbidden = {each.field: each for each in forbidden_changes(old, new)}
    for field in (*(each.field for each in FIXED), *FREE):
        left, right = value_at(before, field), value_at(after, field)
        if left == right:
            continue
        rule = forbidden.get(field)
        effect: Effect = "at once"
        if rule is not None:
            effect = "suspend first" if rule.unless_suspended else "not possible"
        for path, was, is_ in _leaves(field, left, right, MAX_DEPTH):
            yield Change(field=f"spec.{path}", before=was, after=is_, effect=effect)


def _leaves(path: str, left: Any, right: Any, depth: int) -> Iterator[tuple[str, Any, Any]]:
    """Yield the values below a field that differ, with their paths."""
    if depth and isinstance(left, Mapping) and isinstance(right, Mapping):
        for name in [*left, *(each for each in right if each not in left)]:
            if left.get(name) != right.get(name):
                yield from _leaves(f"{path}.{name}", left.get(name), right.get(name), depth - 1)
    else:
        yield path, left, right
