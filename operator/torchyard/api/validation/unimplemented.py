"""What the resource already names but this version does not do. Set to anything else, it is rejected, never ignored.

One table for `validate` and for the CEL rules of the CRD; a row leaves when its behaviour arrives.
"""

from msgspec import Struct

# Field -> the values that exist in this version; no values: the field must be left at its default.
NOT_YET: dict[str, tuple[str, ...]] = {
    "elastic": (),
    "health.straggler": (),
    "scheduling.queue": (),
    "scheduling.gang": ("auto", "none"),
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
