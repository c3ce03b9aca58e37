"""What holds for a while, for all code that runs meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager


class Switch:
    """Is `on` or not; off at first."""

    def __init__(self) -> None:
        self.on = False

    @contextmanager
    def held(self, *, on: bool = True) -> Iterator[None]:
        """Be on, or off, meanwhile, and then as before."""
        before, self.on = self.on, on
        try:
            yield
        finally:
            self.on = before
