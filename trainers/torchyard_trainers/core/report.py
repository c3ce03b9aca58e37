"""`report.<local_rank>.json`: the state of this process for the agent, replaced atomically every second by a thread.

The thread proves that the process lives; `counter`, advanced by the main thread only, proves that it progresses. Two
events are written at once, because decisions depend on them: the first step of a round, and each checkpoint.
"""

import hashlib
import math
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchyard_trainers.core.json_text import json_of, non_finite_name

PERIOD_SECONDS = 1.0
MAX_METRICS = 64
MAX_WARNINGS = 8
METRIC_WARNINGS = 3  # a program whose every step has a new name does not displace other warnings
MAX_ARTIFACTS = 16
MAX_DEVICE = 64


class Reporter:
    """Collects facts from the main thread (no I/O there) and writes them; without a run folder it only collects."""

    def __init__(
        self,
        run_dir: Path | None,
        *,
        rank: int,
        local_rank: int,
        round_number: int,
        saves: bool = False,
        period: float = PERIOD_SECONDS,
    ) -> None:
        """Start in phase `init`; `start` starts the thread. `saves`: whether a request to stop leads to a save."""
        self._path = run_dir / f"report.{local_rank}.json" if run_dir else None
        self._period = period
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._news = threading.Event()
        self._beyond: set[str] = set()  # metrics that a warning names
        self._metric_warnings = 0
        self._thread = threading.Thread(target=self._keep_writing, name="report", daemon=True)
        self._facts: dict[str, Any] = {
            "round": round_number,
            "rank": rank,
            "localRank": local_rank,
            "pid": os.getpid(),
            "counter": 0,
            "time": time.time(),
            "step": 0,
            "totalSteps": 0,
            "roundSteps": 0,
            "epoch": 0.0,
            "phase": "init",
            "phaseSince": time.time(),
            "metrics": {},
            "nonFiniteMetrics": {},
            "throughput": {},
            "warnings": [],
            "artifacts": [],
            "saves": saves,
        }

    def start(self) -> "Reporter":
        """Write the first report and start the thread."""
        if self._path is not None:
            self._write()
            self._thread.start()
        return self

    def stop(self) -> None:
        """Write the last report and end the thread."""
        self._stop.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join()
            self._write()

    def phase(self, name: str) -> None:
        """Enter a phase: init, compile, restore, rollout, step, eval, save, export or drain."""
        self._update({"phase": name, "phaseSince": time.time()} if self._facts["phase"] != name else {})

    def device(self, name: str) -> None:
        """Set the device that this rank trains on."""
        with self._lock:
            self._facts["device"] = name[:MAX_DEVICE]

    def batch(self, per_process: int, whole: int, passes: int) -> None:
        """Set how many samples a step has: of a process and of all, and in how many passes a process takes its own."""
        with self._lock:
            self._facts["batch"] = {"perProcess": per_process, "global": whole, "accumulation": passes}

    def goes_on(self) -> None:
        """Report that a part of a long phase is done, so that the agent does not take it for a hang."""
        self._update({})

    def made_step(
        self, step: int, total_steps: int, metrics: Mapping[str, float], pace: Mapping[str, float], epoch: float = 0.0
    ) -> None:
        """Report a finished optimizer step, its metrics and the current speed."""
        self.metrics(metrics, step)
        self.throughput(pace)
        self.progress(step, total_steps, epoch)
        with self._lock:
            self._facts["roundSteps"] += 1
            first = self._facts["roundSteps"] == 1
        if first:
            self._news.set()

    def progress(self, step: int, total_steps: int, epoch: float = 0.0) -> None:
        """Report the number of finished optimizer steps."""
        self._update({"step": step, "totalSteps": total_steps, "epoch": epoch})

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Merge metrics, of the newest step unless one is given. JSON has no NaN: what is not finite has its own block.

        A report has the `MAX_METRICS` names that came first; a warning says once of another one that it is left out.
        """
        with self._lock:
            numbers, others = dict(self._facts["metrics"]), dict(self._facts["nonFiniteMetrics"])
            left_out = []
            for name, value in values.items():
                if name not in numbers and name not in others and len(numbers) + len(others) == MAX_METRICS:
                    left_out.append(name)
                elif math.isfinite(value):
                    others.pop(name, None)
                    numbers[name] = float(value)
                else:
                    numbers.pop(name, None)
                    since = others[name]["step"] if name in others else self._facts["step"] if step is None else step
                    others[name] = {"value": non_finite_name(value), "step": since}
            self._facts |= {"metrics": numbers, "nonFiniteMetrics": others}
            beyond = [name for name in left_out if name not in self._beyond]
        if beyond and self._metric_warnings < METRIC_WARNINGS:
            self._metric_warnings += 1
            self._beyond.update(beyond)
            more = f" and {len(beyond) - 3} more" if len(beyond) > 3 else ""
            text = (
                f"the status has at most {MAX_METRICS} metrics, and not {', '.join(beyond[:3])}{more}, which only "
                "metrics.jsonl and trackers have; report fewer names"
            )
            self.warn(text)
            if self._facts["rank"] == 0:
                sys.stderr.write(f"torchyard_trainers: {text}\n")

    def throughput(self, values: Mapping[str, float]) -> None:
        """Replace the throughput block."""
        self._update({"throughput": finite(values)})

    def checkpoint(self, values: Mapping[str, Any]) -> None:
        """Replace the checkpoint block: step, time, path, bytes, saveSeconds."""
        self._update({"checkpoint": dict(values)})
        self._news.set()

    def artifact(self, name: str, path: Path, *, verified: bool | None = None) -> None:
        """Report a finished file: name, path, size, SHA-256; `verified`: whether it was compared with the model."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        facts = {"name": name, "uri": str(path), "sha256": digest, "bytes": path.stat().st_size}
        self.made(facts if verified is None else facts | {"verified": verified})

    def refused(self, name: str) -> None:
        """Report an artifact that was not published because it does not match the model."""
        self.made({"name": name, "verified": False})

    def made(self, made: Mapping[str, Any]) -> None:
        """Report an artifact by its facts; it replaces one of the same name."""
        name = made["name"]
        with self._lock:
            others = [known for known in self._facts["artifacts"] if known["name"] != name]
            self._facts["artifacts"] = [*others, dict(made)][-MAX_ARTIFACTS:]

    def warn(self, text: str) -> None:
        """Add a warning; the newest few stay."""
        with self._lock:
            self._facts["warnings"] = [*self._facts["warnings"], text[:300]][-MAX_WARNINGS:]

    @property
    def facts(self) -> dict[str, Any]:
        """Return a copy of what the next report says."""
        with self._lock:
            return dict(self._facts)

    def _update(self, facts: Mapping[str, Any]) -> None:
        with self._lock:
            self._facts.update(facts)
            self._facts["counter"] += 1

    def _keep_writing(self) -> None:
        while not self._stop.is_set():
            self._news.wait(self._period)
            self._news.clear()
            if not self._stop.is_set():
                self._write()

    def _write(self) -> None:
        assert self._path is not None
        scratch = self._path.with_suffix(".tmp")
        try:
            scratch.write_text(json_of(self.facts | {"time": time.time()}))
            scratch.replace(self._path)
        except OSError:
            return  # reporting never stops training: the agent sees an old `time` and says so


def finite(values: Mapping[str, float]) -> dict[str, float]:
    """Keep the finite numbers."""
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}
