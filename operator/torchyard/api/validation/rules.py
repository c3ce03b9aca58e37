"""The type of a rule between fields of the spec, and the table of what this version does not implement.

What is not implemented is rejected, never ignored; a row leaves the table when it is implemented.
"""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from torchyard.api.spec_placement import Volume
from torchyard.api.spec_reliability import CheckpointVolume
from torchyard.api.spec_workload import EnvFrom


class Rule(Struct, frozen=True, kw_only=True):
    """A rule of one scope.

    `field`: relative to the scope, where the fault is shown. `reads`: further fields it depends on; a rule is not
    judged while one of them is faulty itself. `what` may hold `{value}`, the value of `field`. `cel`: None where CEL
    has no way. Its `self` is the scope or, `on_field`, the field alone, and nothing is judged where that is absent.
    """

    scope: str
    field: str
    what: str
    fix: str
    holds: Callable[[Any], bool]
    cel: str | None
    on_field: bool = False
    reads: tuple[str, ...] = ()


def one_source(source: CheckpointVolume | EnvFrom | Volume) -> bool:
    """Return whether exactly one of the places that its content may come from is given."""
    given = (getattr(source, name, None) is not None for name in ("claim", "ephemeral", "config_map", "secret"))
    return sum(given) == 1


# Field -> the values that exist in this version; no values: the field must be left at its default.
NOT_YET: dict[str, tuple[str, ...]] = {
    "health.straggler": (),
}


class Gap(Struct, frozen=True):
    """A field, relative to `spec`, of which this version does only a part."""

    field: str
    values: tuple[str, ...]

    @property
    def fix(self) -> str:
        """What to write instead."""
        if not self.values:
            return "leave it out"
        words = self.values[0] if len(self.values) == 1 else f"{', '.join(self.values[:-1])} or {self.values[-1]}"
        return f"use {words}"


WHAT = "not implemented in this version"
GAPS = tuple(Gap(field, values) for field, values in NOT_YET.items())
