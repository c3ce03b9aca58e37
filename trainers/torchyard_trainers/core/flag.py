"""A process-wide flag, set for the duration of a `with` block."""

from collections.abc import Iterator
from contextlib import contextmanager


class Flag:
    """A flag that is off at first."""

    def __init__(self) -> None:
        self.on = False

    @contextmanager
    def set(self, *, on: bool = True) -> Iterator[None]:
        """Set the flag inside a `with` block and restore it at the end."""
        before, self.on = self.on, on
        try:
            yield
        finally:
            self.on = before
