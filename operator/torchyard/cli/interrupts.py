"""Signals to a run or sweep that is controlled from this terminal: Ctrl-C, a shutdown, a closed terminal."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterator

SAME_PRESS_SECONDS = 0.5
"""One Ctrl-C may signal this process twice: as a member of its process group, and again by the leader of that group."""


class Interrupts:
    """The first signal saves and stops; of a later one only Ctrl-C means now.

    Args:
        longest: returns how long saving may take, for people; empty: it is not known.
        on_notice: called with a sentence about what was asked.

    Attributes:
        stop: set once it is to save and stop.
        kill: set once it is to stop now.
        notice: about what was asked last; empty: nothing was.
    """

    def __init__(self, longest: Callable[[], str], on_notice: Callable[[str], None] = lambda _notice: None) -> None:
        self._longest, self._on_notice = longest, on_notice
        self.stop = asyncio.Event()
        self.kill = asyncio.Event()
        self.pressed: float | None = None
        self.notice = ""

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Hear signals in a block. A closed terminal sends them from both shell and kernel, so two do not mean now.

        Below `nohup`, which ignores SIGHUP, a closed terminal changes nothing.
        """
        loop = asyncio.get_running_loop()
        handlers = {signal.SIGINT: self._pressed, signal.SIGTERM: self._asked}
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            handlers[signal.SIGHUP] = self._asked
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    def _asked(self) -> None:
        """Save and stop, however often it is asked."""
        if not self.stop.is_set():
            self.stop.set()
            self._notify("saving and stopping")

    def _pressed(self) -> None:
        """Save and stop at the first Ctrl-C, stop now at the second one."""
        now = time.monotonic()
        if self.pressed is None:
            self.pressed = now
            self.stop.set()
            longest = self._longest()
            most = f" (it takes at most {longest})" if longest else ""
            self._notify(f"saving and stopping; press Ctrl-C again to stop now{most}")
        elif now - self.pressed >= SAME_PRESS_SECONDS and not self.kill.is_set():
            self.kill.set()
            self._notify("stopping now")

    def _notify(self, notice: str) -> None:
        self.notice = notice
        self._on_notice(notice)
