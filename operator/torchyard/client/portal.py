"""One event loop in a separate thread, on which everything asynchronous runs for synchronous callers.

A notebook has a running loop in its main thread, where `asyncio.run` is an error; and a run that is controlled from a
Python program must go on while that program does something else.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Portal:
    """A thread with an event loop; it begins with the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop; a process that was forked begins one of its own."""
        with self._lock:
            if self._loop is None or self._process != os.getpid():
                self._loop, self._process = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="torchyard", daemon=True).start()
            return self._loop

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Start a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and return its result; Ctrl-C cancels it.

        Raises:
            RuntimeError: it is called on the loop itself, which would wait for ever.
        """
        if threading.current_thread().name == "torchyard":
            work.close()
            raise RuntimeError("a synchronous call of torchyard inside one of its callbacks; use torchyard.aio there")
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
        """Iterate over an asynchronous iterator; leaving the `for` loop closes it."""
        iterator = items()

        async def following() -> T:
            return await anext(iterator)

        async def close() -> None:
            await iterator.aclose()  # type: ignore[attr-defined]

        try:
            while True:
                try:
                    item = self.call(following())
                except StopAsyncIteration:
                    return
                yield item
        finally:
            self.call(close())


PORTAL = Portal()
