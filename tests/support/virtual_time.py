"""An event loop whose time passes only when there is nothing left to do: hours in milliseconds, exactly."""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any


class _Skipping(selectors.DefaultSelector):
    """Instead of waiting, moves the loop's clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout=None):
        assert timeout is not None, "everything waits and nothing is due: a deadlock"
        self.now += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.now if hasattr(self, "_skipping") else 0.0


def virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on a loop of its own, in virtual time."""

    @functools.wraps(test)
    def run(*args: Any, **fixtures: Any) -> None:
        in_virtual_time(lambda: test(*args, **fixtures))

    return run


def in_virtual_time(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine function to its end in virtual time and return its result."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())
