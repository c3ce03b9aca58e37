"""Turn signals and the calls of threads into one readable descriptor for the loop of the agent."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from typing import Any, Iterable, List, Sequence


class EventLoop:
    """A pipe that signals and threads write to. Create it in the main thread."""

    def __init__(self, signals: Iterable[int]) -> None:
        """Collect `signals`; the end of a child only wakes the loop."""
        self._caught: List[int] = []
        self._read, self._write = os.pipe()
        for descriptor in (self._read, self._write):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in signals:
            signal.signal(number, lambda caught, _frame: self._caught.append(caught))
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def wake(self) -> None:
        """End the current or next `wait`; may be called from any thread."""
        with contextlib.suppress(BlockingIOError):  # a full pipe wakes as well
            os.write(self._write, b"\0")

    def wait(self, others: Sequence[Any], seconds: float) -> List[Any]:
        """Sleep until woken, one of `others` is readable, or `seconds` have passed; return which are readable."""
        readable, _, _ = select.select([self._read, *others], [], [], seconds)
        if self._read in readable:
            readable.remove(self._read)
            os.read(self._read, 4096)
        return readable

    def signals(self) -> List[int]:
        """Return the signals caught since the last call, in order."""
        caught: List[int] = []
        while self._caught:
            caught.append(self._caught.pop(0))
        return caught
