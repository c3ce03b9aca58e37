"""One event loop in a separate thread, on which everything asynchronous runs for synchronous callers.

A notebook has a running loop in its main thread, where `asyncio.run` is an error; and a run that is controlled from a
Python program must go on while that program does something else.
"""

import asyncio
import functools
import os
import queue
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
MOST_THREADS = 32


class Workers(ThreadPoolExecutor):
    """Threads for the blocking calls of the loop, which work until the process is gone.

    Those of `concurrent.futures` end before functions of `atexit` are called. Saving and stopping a run, which is done
    there, needs them. `asyncio` accepts only a ThreadPoolExecutor; its methods that use threads are replaced.
    """

    def __init__(self) -> None:
        super().__init__(MOST_THREADS)
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._open = self._begun = 0
        self._begin()  # at the end of the process, none may be begun

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Have a thread call the function."""
        future: Future[T] = Future()
        with self._guard:
            self._open += 1
            if self._open > self._begun and self._begun < MOST_THREADS:
                try:
                    self._begin()
                except RuntimeError:  # the process ends; the call waits for a thread
                    if not self._begun:
                        raise
        self._calls.put((future, functools.partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing: the threads end with the process."""

    def _begin(self) -> None:
        threading.Thread(target=self._work, name="torchyard-call", daemon=True).start()
        self._begun += 1

    def _work(self) -> None:
        while True:
            future, call = self._calls.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 -- it is raised where the result is asked for
                    future.set_exception(error)
            del future, call
            with self._guard:
                self._open -= 1


class Portal:
    """A thread with an event loop; it begins with the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop; a forked process starts a new one."""
        with self._lock:
            if self._loop is None or self._process != os.getpid():
                self._loop, self._process = asyncio.new_event_loop(), os.getpid()
                self._loop.set_default_executor(Workers())
                threading.Thread(target=self._loop.run_forever, name="torchyard", daemon=True).start()
            return self._loop

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Start a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and return its result.

        Ctrl-C cancels it and waits for its end, as a run saves first; a second Ctrl-C returns at once.

        Raises:
            RuntimeError: it is called on the loop itself, which would wait for ever.
        """
        if threading.current_thread().name == "torchyard":
            work.close()
            raise RuntimeError("a synchronous call of torchyard inside one of its callbacks; use torchyard.aio there")
        loop, ended = self.loop, threading.Event()
        created: Future[asyncio.Task[T]] = Future()

        def create() -> None:
            task = loop.create_task(work)
            task.add_done_callback(lambda _: ended.set())
            created.set_result(task)

        loop.call_soon_threadsafe(create)
        try:
            ended.wait()
        except BaseException:
            loop.call_soon_threadsafe(lambda: created.result().cancel())
            ended.wait()
            raise
        return created.result().result()

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
