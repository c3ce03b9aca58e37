"""Failure files of the programs below a worker in its run folder, merged into one finding for each worker.

`failure.<rank>.json` is a program's own word; `failure.<rank>.<pid>.json` is written by our hooks in any Python that
ends by an exception: in the worker itself, or in one that it started. What a worker starts ends it only if its exit
code is passed on.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from torchyard_agent.files import is_number, is_whole, read_json
from torchyard_agent.telemetry.hang_detector import LONGEST_GAP_SECONDS
from torchyard_agent.workers import failure
from torchyard_agent.workers.printed import is_wrapper

# A launcher gives its other workers half a minute to end before it ends itself. What failed longer ago was handled.
_RECENT_SECONDS = 60.0
_LOOK_SECONDS = 1.0


class Ages:
    """How long ago each failure file appeared in a run folder.

    Counted in looks, as by the hang detector: where the machine is so busy that a process takes a minute to end, or is
    suspended, this process looks late, too, and a failure does not become older than what followed it.

    Args:
        run_dir: scratch folder of the pod.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._seconds = 0.0
        self._looked: Optional[float] = None
        self._appeared: Dict[str, float] = {}

    def start(self) -> None:
        """Look every second, in a thread, until this process ends."""
        threading.Thread(target=self._watch, name="failure-ages", daemon=True).start()

    def look(self, now: float) -> None:
        """Notice the files that are new at `now`, monotonic seconds."""
        if self._looked is not None:
            self._seconds += min(now - self._looked, LONGEST_GAP_SECONDS)
        self._looked = now
        with contextlib.suppress(OSError), os.scandir(self.run_dir) as entries:
            for entry in entries:
                if entry.name.startswith("failure."):
                    self._appeared.setdefault(entry.name, self._seconds)

    def recent(self, path: Path) -> bool:
        """Return whether the failure in the file `path` is recent enough to be what ended the worker."""
        return self._seconds - self._appeared.get(path.name, self._seconds) <= _RECENT_SECONDS

    def _watch(self) -> None:
        never = threading.Event()
        while True:
            self.look(time.monotonic())
            never.wait(_LOOK_SECONDS)


def found(ages: Ages, rank: int, pid: int, *, code: int, alone: bool) -> Optional[Dict[str, Any]]:
    """Return the evidence about a worker's end in the form of a failure file, or None.

    Args:
        ages: of the failure files of the pod.
        rank: global rank of the worker.
        pid: its process id.
        code: its exit code, 128 + the number of a signal.
        alone: it is the only worker here, so that failures of every rank are those of programs below it.
    """
    run_dir = ages.run_dir
    stated = read_json(run_dir / f"failure.{rank}.json")
    if stated is not None:
        return stated
    own = read_json(run_dir / f"failure.{rank}.{pid}.json")
    if own is not None and own.get("exitCode", code) != code:
        own = None  # a handler called `sys.exit`, and the program caught that and ended in another way
    own = own and failure.unwrapped(own)
    if own is not None and not is_wrapper(own.get("exception")):
        return own
    passed_on = code if own is None else failure.status_in(str(own.get("message") or ""))
    below = [
        each for each in _below(ages, None if alone else rank) if passed_on is None or _exit_code(each) == passed_on
    ]
    causes = [each for each in below if not is_wrapper(each.get("exception"))] or below
    return failure.first_cause([_judged(each) for each in _together(causes)]) or own


def _together(failures: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Return the last failure and those of processes that ran at the same time, such as the ranks of a launcher.

    A failure from before that process began was handled, and so was one of a process that it had started itself.
    """
    last = max(failures, key=lambda each: float(each["time"]), default={})
    began = last["started"] if is_number(last.get("started")) else 0.0
    own = last.get("pid")
    return [each for each in failures if each["time"] >= began and (own is None or each.get("parent") != own)]


def _below(ages: Ages, rank: Optional[int]) -> List[Dict[str, Any]]:
    pattern = "failure.*.json" if rank is None else f"failure.{rank}.*.json"
    documents = (read_json(path) for path in ages.run_dir.glob(pattern) if ages.recent(path))
    known = (failure.unwrapped(each) for each in documents if each is not None)
    return [each for each in known if is_number(each.get("time")) and is_whole(each.get("rank"))]


def _exit_code(document: Dict[str, Any]) -> Any:
    """Return the code with which the process of a failure file ended; 1 after an uncaught exception."""
    return document.get("exitCode", document["code"] if is_whole(document.get("code")) else 1)


def _judged(document: Dict[str, Any]) -> Dict[str, Any]:
    if isinstance(document.get("secondary"), bool):
        return document
    exception, message = document.get("exception"), str(document.get("message") or "")
    return {
        **document,
        "secondary": failure.is_secondary(exception if isinstance(exception, str) else None, message, 1),
    }
