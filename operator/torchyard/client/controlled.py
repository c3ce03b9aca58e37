"""Runs of this machine that this process controls: in the background, until they are over or the process ends."""

import asyncio
import atexit
import contextlib
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as TimedOutError

from torchyard.api.resource import TrainingJob
from torchyard.client.errors import FAILED, TorchYardError
from torchyard.client.portal import PORTAL
from torchyard.cluster.local.folder import RunFolder
from torchyard.laptop import run_job

EXIT_SECONDS = 90.0
"""Waited at the end of the process for runs to save and stop; the grace period of a job is 60 s by default."""


class Control:
    """One run under the control of this process."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._stop = asyncio.Event()
        self._kill = asyncio.Event()
        self._future: Future[TrainingJob] = PORTAL.submit(self._until_over())

    async def until_over(self) -> TrainingJob:
        """Wait until the run is over; return the job as it was left.

        Raises:
            TorchYardError: another process controls the run, or it cannot be controlled here.
        """
        return await asyncio.shield(asyncio.wrap_future(self._future))

    def stop(self) -> None:
        """Save and stop."""
        PORTAL.loop.call_soon_threadsafe(self._stop.set)

    def kill(self) -> None:
        """End every process of the run now."""
        PORTAL.loop.call_soon_threadsafe(self._kill.set)

    def wait(self, seconds: float) -> None:
        """Wait so long at most, whatever the end."""
        with contextlib.suppress(TimedOutError, CancelledError, TorchYardError):
            self._future.result(seconds)

    async def _until_over(self) -> TrainingJob:
        try:
            return await run_job(self.folder, stop=self._stop, kill=self._kill)
        except ValueError as error:
            raise TorchYardError(str(error).rstrip(".")) from error
        except OSError as error:
            what = f"the run {self.folder.name!r} cannot be controlled any more: {error}"
            fix = f"correct that, then `torchyard resume {self.folder.name}` goes on"
            raise TorchYardError(what, fix, FAILED) from error
        finally:
            _CONTROLLED.pop(str(self.folder.path), None)


_CONTROLLED: dict[str, Control] = {}


def control(folder: RunFolder) -> Control:
    """Control a run from this process; one that is controlled from here already is returned again."""
    known = _CONTROLLED.get(str(folder.path))
    if known is None:
        if not _CONTROLLED:
            atexit.unregister(_stop_all)
            atexit.register(_stop_all)
        known = _CONTROLLED[str(folder.path)] = Control(folder)
    return known


def controlled_here(folder: RunFolder) -> Control | None:
    """Return the control of a run, if it is this process that has it."""
    return _CONTROLLED.get(str(folder.path))


def _stop_all() -> None:
    """Save and stop what is still running when the process ends."""
    left = list(_CONTROLLED.values())
    for each in left:
        each.stop()
    for each in left:
        each.wait(EXIT_SECONDS)
