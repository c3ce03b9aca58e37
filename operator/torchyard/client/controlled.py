"""The runs and sweeps on this machine that this process controls, until they are over or the process ends."""

import asyncio
import atexit
import contextlib
import functools
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as TimedOutError
from typing import Any, Generic, TypeVar

from torchyard.api.resource import TrainingJob
from torchyard.client.errors import FAILED, TorchYardError
from torchyard.client.portal import PORTAL
from torchyard.local.controller import run_job
from torchyard.local.run import RunFolder
from torchyard.local.shared_templates import UNUSED_SECONDS
from torchyard.local.sweep_controller import run_sweep
from torchyard.local.sweeps import control_sweep, sweeps_folder
from torchyard.local.templates import Templates
from torchyard.sweeps.decide import Finish
from torchyard.sweeps.resource import TrainingSweep
from torchyard.sweeps.sampler import SamplerError
from torchyard.sweeps.sampling import MissingLibraryError

T = TypeVar("T")

EXIT_SECONDS = 90.0
"""Waited at the end of the process for runs to save and stop; the grace period of a job is 60 s by default."""


class Controlled(Generic[T]):
    """One run or sweep under the control of this process, on the loop of the API.

    Args:
        key: its folder.
        work: controls it; gets what asks to save and stop.

    Attributes:
        process: id of the process that controls it.
    """

    def __init__(self, key: str, work: Callable[[asyncio.Event], Coroutine[Any, Any, T]]) -> None:
        self.process = os.getpid()
        self._key = key
        self._stop = asyncio.Event()
        self._future: Future[T] = PORTAL.submit(self._until_over(work))

    async def until_over(self) -> T:
        """Wait until the run or sweep is over; return its folder.

        Raises:
            TorchYardError: another process controls it, or it cannot be controlled here.
        """
        return await asyncio.shield(asyncio.wrap_future(self._future))

    def stop(self) -> None:
        """Save and stop."""
        PORTAL.loop.call_soon_threadsafe(self._stop.set)

    async def stopped(self) -> None:
        """Save and stop, and wait for that, which takes at most the grace period; errors are not raised."""
        self.stop()
        with contextlib.suppress(TorchYardError):
            await self.until_over()

    def wait(self, seconds: float) -> None:
        """Wait at most this many seconds; errors are not raised."""
        with contextlib.suppress(TimedOutError, CancelledError, TorchYardError):
            self._future.result(seconds)

    async def _until_over(self, work: Callable[[asyncio.Event], Coroutine[Any, Any, T]]) -> T:
        try:
            return await work(self._stop)
        except (ValueError, SamplerError, MissingLibraryError) as error:
            raise self._failed(TorchYardError(str(error).rstrip("."))) from error
        except OSError as error:
            what = f"{self._key} can no longer be controlled: {error}"
            fix = "correct that, then start it again: it continues"
            raise self._failed(TorchYardError(what, fix, FAILED)) from error
        finally:
            _CONTROLLED.pop(self._key, None)

    def _failed(self, error: TorchYardError) -> TorchYardError:
        _FAILED[self._key] = error
        return error


_CONTROLLED: dict[str, Controlled[Any]] = {}
_FAILED: dict[str, TorchYardError] = {}
"""Why the last control of a run or sweep from this process ended early."""


def control(folder: RunFolder) -> Controlled[TrainingJob]:
    """Control a run from this process; return the existing control if there is one."""

    async def until_over(stop: asyncio.Event) -> TrainingJob:
        return await run_job(folder, stop=stop, templates=_templates())

    return _controlled(str(folder.path), until_over)


@functools.cache
def _templates() -> Templates:
    """Return the templates of all runs: the second one like an earlier one need not import torch any more."""
    return Templates(unused=UNUSED_SECONDS)


def controlled_here(folder: RunFolder) -> Controlled[TrainingJob] | None:
    """Return the control of a run if this process has it."""
    return _CONTROLLED.get(str(folder.path))


def failed_here(folder: RunFolder) -> TorchYardError | None:
    """Return the error that ended this process's control of a run; None if there was none."""
    return _FAILED.get(str(folder.path))


def control_sweep_here(sweep: TrainingSweep) -> Controlled[Finish | None]:
    """Control a sweep from this process."""

    async def until_over(stop: asyncio.Event) -> Finish | None:
        with control_sweep(sweep.metadata.name):
            return await run_sweep(sweep, stop=stop)

    return _controlled(_key_of(sweep.metadata.name), until_over)


def sweep_controlled_here(name: str) -> Controlled[Finish | None] | None:
    """Return the control of a sweep if this process has it."""
    return _CONTROLLED.get(_key_of(name))


def _key_of(sweep: str) -> str:
    return str(sweeps_folder() / sweep)


def _controlled(key: str, work: Callable[[asyncio.Event], Coroutine[Any, Any, T]]) -> Controlled[T]:
    known = _CONTROLLED.get(key)
    if known is None:
        _FAILED.pop(key, None)
        known = _CONTROLLED[key] = Controlled(key, work)
    return known


def _stop_all() -> None:
    """Save and stop all runs and sweeps that are still running when the process ends, not when a fork of it does."""
    left = [each for each in _CONTROLLED.values() if each.process == os.getpid()]
    for each in left:
        each.stop()
    for each in left:
        each.wait(EXIT_SECONDS)


atexit.register(_stop_all)
