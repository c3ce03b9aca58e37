"""`report.<local_rank>.json`, by which a worker reports its progress: `torchyard_agent.report(step=3, loss=0.7)`.

One thread writes at most once a second, and `report` itself when it brings a new checkpoint, which must be known even
if the program is killed right after. `counter` moves only when the training thread does something. The file has one
owner at a time: a program that writes it itself, or calls `report`, silences the zero-code step counter for good.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import sys
import threading
import time
from collections import deque
from functools import lru_cache
from pathlib import Path
from typing import Any, Callable, Deque, Dict, List, Optional, Set, Tuple

from torchyard_agent.files import read_json, write_json
from torchyard_agent.telemetry import observation
from torchyard_agent.telemetry.milestones import MILESTONES, TOTAL_STEPS, Milestones, read_milestones
from torchyard_agent.telemetry.readings import overlaid, values_of, with_values

INTERVAL = 1.0
_RATE_WINDOW = 30.0


class ReportWriter:
    """Owns the report file of this process."""

    def __init__(self, run_dir: Path, env: Dict[str, str], *, yields: bool) -> None:
        """`yields`: give the file up as soon as another writer has written it."""
        self.local_rank = int(env.get("LOCAL_RANK") or 0)
        self.path = run_dir / f"report.{self.local_rank}.json"
        self.yields = yields
        self.pid = os.getpid()
        self.document: Dict[str, Any] = {
            "round": int(env.get("TORCHYARD_ROUND") or 0),
            "rank": int(env.get("RANK") or env.get("NODE_RANK") or 0),
            "localRank": self.local_rank,
            "pid": self.pid,
            "counter": 0,
            "step": 0,
            "phase": "init",
            "phaseSince": time.time(),
        }
        self._steps: Deque[Tuple[float, int]] = deque()
        self._written: Optional[Tuple[int, int]] = None
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def start(self) -> None:
        """Start writing, and write once more when the process ends."""
        threading.Thread(target=self._run, name="torchyard-report", daemon=True).start()
        atexit.register(self.write)

    def stop(self) -> None:
        """Never write again."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.write()
            self._stop.wait(INTERVAL)

    def write(self) -> None:
        """Write the file now, unless this process is a fork of its owner or the file has another owner."""
        with self._lock:
            if self._stop.is_set() or os.getpid() != self.pid:
                return
            if self.yields and _identity(self.path) != self._written and not self._inherits():
                self._stop.set()
                return
            now = time.time()
            document = dict({**observation.observed().facts(now), **self.document}, time=now)
            rate = self._rate(now, int(document["step"]))
            if rate is not None and "throughput" not in document:
                document["throughput"] = {"stepsPerSecond": rate}
            try:
                write_json(self.path, document)
            except OSError:
                return  # a full scratch volume must not end a training run
            self._written = _identity(self.path)

    def _inherits(self) -> bool:
        """Return whether the file belongs to a process that has ended: a driver may start programs one by one."""
        if self._written is not None:
            return False
        pid = (read_json(self.path) or {}).get("pid")
        return isinstance(pid, int) and pid > 0 and not Path(f"/proc/{pid}").exists()

    def _rate(self, now: float, step: int) -> Optional[float]:
        steps = self._steps
        if not steps or step != steps[-1][1]:
            steps.append((now, step))
        while len(steps) > 2 and now - steps[0][0] > _RATE_WINDOW:
            steps.popleft()
        (start, first), (_, last) = steps[0], steps[-1]
        if now - start < INTERVAL / 2 or last <= first:
            return None
        return round((last - first) / (now - start), 4)


def _identity(path: Path) -> Optional[Tuple[int, int]]:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


_MOST_STEPS = 2**53
_MOST_WARNINGS = 8

_warned: Set[str] = set()  # names of values that were left out
_writer: Optional[ReportWriter] = None
_silence: List[Callable[[], None]] = []  # what `report` stops before it takes the file over


def report(
    step: int,
    *,
    total_steps: Optional[int] = None,
    epoch: Optional[float] = None,
    phase: str = "step",
    checkpoint_step: Optional[int] = None,
    **metrics: float,
) -> None:
    """Report to TorchYard how far the training is. Cheap enough for every step; outside TorchYard it does nothing.

    A value that is not a number is left out, with a warning the first time: a report never ends a training.

    Args:
        step: optimizer steps done so far, over all rounds.
        total_steps: steps the whole run will take, if known.
        epoch: passes over the data, fractions allowed.
        phase: `init`, `compile`, `restore`, `rollout`, `step`, `eval`, `save`, `export` or `drain`.
        checkpoint_step: step of the newest durable checkpoint.
        metrics: numbers, such as `loss=0.7`. NaN and infinity are shown as such.
    """
    global _writer  # noqa: PLW0603 - one report file a process
    if "TORCHYARD_ROUND" not in os.environ or "TORCHYARD_RUN_DIR" not in os.environ:
        return
    writer = _writer
    fresh = writer is None or writer.pid != os.getpid()
    if writer is None or fresh:
        for stop in _silence:
            stop()
        _writer = writer = ReportWriter(Path(os.environ["TORCHYARD_RUN_DIR"]), dict(os.environ), yields=False)
    document = dict(writer.document, counter=writer.document["counter"] + 1, phase=str(phase))
    if document["phase"] != writer.document["phase"]:
        document["phaseSince"] = time.time()
    for name, called, value in (("step", "step", step), ("totalSteps", "total_steps", total_steps)):
        count = _count(document, called, value)
        if count is not None:
            document[name] = count
    passes = None if epoch is None else _number(document, "epoch", epoch)
    if passes is not None and math.isfinite(passes):
        document["epoch"] = passes
    known = writer.document.get("checkpoint", {}).get("step")
    saved = _count(document, "checkpoint_step", checkpoint_step)
    if saved is not None:
        document["checkpoint"] = {"step": saved, "time": time.time()}
    numbers = {name: _number(document, name, value) for name, value in metrics.items()}
    values = {name: value for name, value in numbers.items() if value is not None}
    document = with_values(document, values, document["step"])
    passed = _passed(document)
    if passed:
        # First, since the number of metrics is limited.
        document = overlaid(with_values({}, passed, document["step"]), document)
    writer.document = document  # one assignment: the writing thread sees the old document or the new one
    if fresh:
        writer.start()
    if passed or (saved is not None and saved != known):
        writer.write()


def _passed(document: Dict[str, Any]) -> Dict[str, float]:
    """Return the values at milestones that this report is the first one to have passed."""
    milestones = _milestones(os.environ.get(MILESTONES, ""))
    if milestones is None:
        return {}
    given = os.environ.get(TOTAL_STEPS, "")
    total = document.get("totalSteps") or (int(given) if given.isdecimal() else None)
    return milestones.passed(document["step"], total, values_of(document))


@lru_cache(maxsize=1)
def _milestones(text: str) -> Optional[Milestones]:
    return read_milestones({MILESTONES: text})


def _count(document: Dict[str, Any], name: str, value: Any) -> Optional[int]:
    """Return a number of steps, or None: with a warning if `value` is not one, without if no value was passed."""
    if value is None and name != "step":
        return None
    count = _number(document, name, value)
    if count is not None and not 0 <= count < _MOST_STEPS:
        _warn(document, name, f"{count:g} is not a number of steps")
        return None
    return None if count is None else int(count)


def _number(document: Dict[str, Any], name: str, value: Any) -> Optional[float]:
    """Return a value as a number, or None, with a warning. The class of the value may raise any exception here."""
    try:
        return float(value)
    except Exception as error:  # noqa: BLE001 - see above
        _warn(document, name, f"it must be a number, not {type(value).__name__} ({_shortened(error)})")
        return None


def _shortened(error: Exception) -> str:
    try:
        return str(error)[:100]
    except Exception:  # noqa: BLE001 - it is the program's own
        return type(error).__name__


def _warn(document: Dict[str, Any], name: str, what: str) -> None:
    """Add a warning to the report, and print it, the first time that a value of this name is left out."""
    if name in _warned or len(_warned) == _MOST_WARNINGS:
        return
    _warned.add(name)
    text = f"report(): {name} is left out: {what}; give each metric a keyword and one number: report(step=3, loss=0.7)"
    document["warnings"] = [*document.get("warnings", []), text][-_MOST_WARNINGS:]
    with contextlib.suppress(Exception):
        print(f"torchyard: {text}", file=sys.stderr)


def silence_with(stop: Callable[[], None]) -> None:
    """Call `stop` when the program starts to report by itself."""
    _silence.append(stop)
