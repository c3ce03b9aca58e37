"""How long the steps of this process take, and how much of that is its own work and not a wait for other ranks.

The hooks measure in every worker, also of built-in trainers, and write `pace.<local_rank>.json`, which the agent joins
with the rank's report. The operator compares the ranks of the gang.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Deque, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from torchyard_agent.files import write_json
from torchyard_agent.telemetry.waits import waits

# Figures are of the newest steps: of so many seconds, and so many steps at least.
WINDOW_SECONDS, WINDOW_STEPS = 30.0, 12
MOST_STEPS = 2000
WRITES = 6  # in a window
# A look at the waits takes a tenth of a millisecond: of short steps not every one is measured.
SAMPLE_SECONDS = 0.05
# The first steps of a round compile, allocate and fill caches.
SKIPPED_STEPS = 5


class Step(NamedTuple):
    """One optimizer step. `compute`: without the waits for other ranks; None: those are not known."""

    number: int
    end: float
    seconds: float
    compute: Optional[float]


def window(env: Mapping[str, str]) -> float:
    """Return the seconds of a window."""
    try:
        return min(600.0, max(1.0, float(env.get("TORCHYARD_PACE") or WINDOW_SECONDS)))
    except ValueError:
        return WINDOW_SECONDS


def figures(steps: List[Step], now: float, seconds: float = WINDOW_SECONDS) -> Dict[str, Any]:
    """Return the figures of the newest steps; nothing until they are a whole window. Pure.

    `computeLowSeconds` is what a quarter of the steps stays below: where even that is long, nearly all steps are.
    """
    newest = [step for step in steps if now - step.end <= seconds]
    if len(newest) < WINDOW_STEPS:
        newest = steps[-WINDOW_STEPS:]
    if len(newest) < WINDOW_STEPS or now - (newest[0].end - newest[0].seconds) < seconds * 0.9:
        return {}
    found: Dict[str, Any] = {
        "windowSteps": newest[-1].number - newest[0].number + 1,
        "stepSeconds": _quantile([step.seconds for step in newest], 2),
    }
    known = [step.compute for step in newest if step.compute is not None]
    if len(known) == len(newest):
        found["computeSeconds"] = _quantile(known, 2)
        found["computeLowSeconds"] = _quantile(known, 4)
    return found


def _quantile(values: Sequence[float], part: int) -> float:
    """Return the value that one in `part` of them stays below; the module `statistics` takes long to import."""
    return round(sorted(values)[len(values) // part], 6)


class Pace:
    """Measures the steps of this process, and writes the figures every few seconds.

    Args:
        run_dir: folder of the file.
        env: of the worker.
    """

    def __init__(self, run_dir: Path, env: Dict[str, str]) -> None:
        self._path = run_dir / f"pace.{int(env.get('LOCAL_RANK') or 0)}.json"
        self._round = int(env.get("TORCHYARD_ROUND") or 0)
        self._alone = int(env.get("WORLD_SIZE") or 1) < 2
        self._window = window(env)
        self._pid = os.getpid()
        self._steps: Deque[Step] = deque(maxlen=MOST_STEPS)
        self._number = 0
        self._end: Optional[float] = None  # of the newest step
        self._before: Optional[Tuple[float, float]] = None  # its seconds, and those in collectives
        self._sampled = 0.0

    def start(self) -> None:
        """Start to write."""
        threading.Thread(target=self._run, name="torchyard-pace", daemon=True).start()

    def step(self) -> None:
        """Note the end of a step; called by the training thread, so it has to be cheap."""
        now, before = time.monotonic(), self._before
        blocked = waits().take_blocked()
        if before is not None and self._number > SKIPPED_STEPS and now - self._sampled >= SAMPLE_SECONDS:
            self._sampled = now
            seconds = before[0]
            waited = 0.0 if self._alone else waits().of_step(before[1])
            self._steps.append(Step(self._number, now, seconds, None if waited is None else max(0.0, seconds - waited)))
        if self._end is not None:
            self._before = now - self._end, blocked
        self._end = now
        self._number += 1

    def _run(self) -> None:
        while os.getpid() == self._pid:
            time.sleep(self._window / WRITES)
            found = figures(self._copy(), time.monotonic(), self._window)
            if found:
                try:
                    write_json(self._path, {"round": self._round, **found})
                except OSError:
                    continue  # a full scratch volume must not end a training run

    def _copy(self) -> List[Step]:
        while True:
            try:
                return list(self._steps)
            except RuntimeError:  # noqa: PERF203 - a step was added during the copy
                continue
