"""Asynchronous saves: the state is copied, then a thread writes and commits the copy while training continues.

Only the copy delays training. One save is in flight at a time; its result is processed at a step on which all ranks
agree, so that an error ends the gang at one step and with one exit code.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch

from torchyard_trainers.core.checkpoints.best import Best
from torchyard_trainers.core.checkpoints.cadence import Cadence
from torchyard_trainers.core.checkpoints.checkpoint import Checkpoints, Saved
from torchyard_trainers.core.config import Checkpoint
from torchyard_trainers.core.report import Reporter


class InFlight(NamedTuple):
    """A save that is being written."""

    outcome: Future[Saved]
    stall: float  # seconds that training waited for it


class Saver:
    """The saves of one round. `checkpoints` must use a separate process group (`World.with_own_group`)."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        settings: Checkpoint,
        cadence: Cadence,
        reporter: Reporter,
        device: torch.device,
    ) -> None:
        """Notify `cadence` and `reporter` of every save; on a GPU, copy through reused pinned memory."""
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        pinned = device.type == "cuda"
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=pinned,
                use_shared_memory=False,
                use_async_staging=False,
                use_non_blocking_copy=pinned,
            )
        )
        # A thread begins on GPU 0, where the writer of DCP, which synchronises, would open a context for every rank.
        on_device = {"initializer": torch.cuda.set_device, "initargs": (device,)} if pinned else {}
        self._thread = ThreadPoolExecutor(1, "save", **on_device)
        self._checkpoints, self._cadence, self._reporter = checkpoints, cadence, reporter
        self._keep_last, self._keep_best = settings.keep_last, settings.keep_best
        self._best = Best(settings.keep_best, checkpoints.scores() if settings.keep_best else ())
        self._in_flight: InFlight | None = None

    def is_best(self, score: float | None) -> bool:
        """Whether a model with this score is kept as one of the best; equal on every rank."""
        return self._best.admits(score)

    def begin(self, step: int, state: dict[str, Any], record: dict[str, Any]) -> None:
        """Copy the state and start writing it; waits for the save before and raises its error."""
        started = time.monotonic()
        self.wait()
        self._cadence.begun(started)
        staged = self._stager.stage(self._checkpoints.shards.gather(state))
        keep, best = self._keep_last, self._keep_best
        outcome = self._thread.submit(self._checkpoints.save, step, staged, record, keep=keep, best=best)
        self._best.add(record["score"])
        self._in_flight = InFlight(outcome, time.monotonic() - started)

    @property
    def ended(self) -> bool:
        """Whether a save has ended on this rank; other ranks may see it a moment later."""
        return self._in_flight is not None and self._in_flight.outcome.done()

    def settle(self) -> bool:
        """Wait for the save in flight; return whether there is a complete checkpoint. Collective."""
        self.wait()
        return self._checkpoints.exist()

    def wait(self) -> None:
        """Wait for the save in flight, if there is one, and process its result. Collective.

        Raises:
            SupersededError, StorageError: as `Checkpoints.save`.
        """
        if self._in_flight is None:
            return
        (outcome, stall), self._in_flight = self._in_flight, None
        waited = time.monotonic()
        saved = outcome.result()
        stall += time.monotonic() - waited
        self._cadence.saved(stall=stall, seconds=saved.seconds)
        if saved.untidy:
            self._reporter.warn(saved.untidy)
        self._reporter.checkpoint(saved.report() | {"stallSeconds": round(stall, 4)})
