"""Ends a hung worker: writes stacks to its log, phase and step to its failure file, and exits with code 70.

A worker is hung if the main thread's counter (`report.py`) does not change for too long. The limit depends on the
longest time of the phase so far, so that a slow run is not mistaken for a hung one.
"""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from torchyard_trainers.core.exits import HungError

TICK_SECONDS = 1.0
# Without any measurement: imports, first steps and restores of large models take minutes, not half an hour.
UNKNOWN_SECONDS = 1800.0
SHORTEST_SECONDS = 600.0
TIMES_THE_SLOWEST = 20.0
# Frames in which ranks wait for each other: in a collective, in the backward pass that reduces gradients, and where a
# step reads its sums from the device.
_MEETING_PLACES = ("torch/distributed/", "torch/autograd/", "torchyard_trainers/core/step.py")


class Patience:
    """The time limit of each phase, from the durations seen so far. Pure."""

    def __init__(self, limit: float | None) -> None:
        """Wait `limit` seconds in any phase, once a step was made; None, and before: by what a phase took before.

        Starting has a separate limit, `spec.health.startTimeout`: it imports, compiles and restores, and what a user
        grants a step says nothing of that.
        """
        self._limit = limit
        self._slowest: dict[str, float] = {}
        self.started = False  # a step was made

    def moved(self, phase: str, seconds: float) -> None:
        """Record how long a phase made no progress before it continued."""
        self._slowest[phase] = max(seconds, self._slowest.get(phase, 0.0))

    def seconds(self, phase: str) -> float:
        """Return the time limit of a phase in seconds."""
        if self._limit is not None and self.started:
            return self._limit
        if phase not in self._slowest:
            return max(UNKNOWN_SECONDS, self._limit or 0.0)
        return max(SHORTEST_SECONDS, TIMES_THE_SLOWEST * self._slowest[phase])


class Watchdog:
    """A thread that checks the reporter's facts once a second."""

    def __init__(
        self, facts: Callable[[], dict[str, Any]], patience: Patience, bite: Callable[[HungError], None]
    ) -> None:
        """Watch the reporter; on a hang, call `bite` with the error; it does not return."""
        self._facts, self._patience, self._bite = facts, patience, bite
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> "Watchdog":
        """Start the thread."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        before, still, ticked = self._facts(), 0.0, time.monotonic()
        while not self._stop.wait(TICK_SECONDS):
            now, facts = time.monotonic(), self._facts()
            # A process that was stopped as a whole could not progress: ignore such a gap.
            still += min(now - ticked, 2 * TICK_SECONDS)
            ticked = now
            self._patience.started = facts["roundSteps"] > 0
            if "checkpoint" in facts:  # it was written beside training, but the last one is waited for
                self._patience.moved("save", facts["checkpoint"]["saveSeconds"])
            if facts["counter"] != before["counter"]:
                self._patience.moved(before["phase"], still)
                before, still = facts, 0.0
            elif still >= self._patience.seconds(facts["phase"]):
                self._bite(hung(facts, still))


def hung(facts: dict[str, Any], seconds: float) -> HungError:
    """Return the error; a rank that waits for others in a collective is not the cause."""
    frame = sys._current_frames()[threading.main_thread().ident or 0]  # noqa: SLF001 - documented, for debuggers
    stack = traceback.extract_stack(frame)
    alone = os.environ.get("WORLD_SIZE", "1") == "1"
    waits = not alone and any(place in stack[-1].filename for place in _MEETING_PLACES)
    where = ", waiting for other ranks" if waits else ""
    text = f"no progress for {seconds:.0f} s in phase {facts['phase']} after step {facts['step']}{where}"
    return HungError(text, phase=facts["phase"], step=facts["step"], stack="".join(stack.format()), secondary=waits)
