"""The type of a rule between fields of the spec."""

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
