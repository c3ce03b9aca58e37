"""Failure files of the programs below a worker in its run folder, merged into one finding for each worker.

`failure.<rank>.json` is a program's own word; `failure.<rank>.<pid>.json` is written by our hooks in any Python that
dies of an exception: in the worker itself, or in one that it started.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Optional

from torchyard_agent.files import is_number, is_whole, read_json
from torchyard_agent.workers import failure

# A launcher gives its other workers half a minute to end before it ends itself. What failed longer ago was handled.
_RECENT_SECONDS = 60.0


def found(run_dir: Path, rank: int, pid: int, ended: float, *, alone: bool) -> Optional[Dict[str, Any]]:
    """Return the evidence about a worker's end in the form of a failure file, or None.

    Args:
        run_dir: scratch folder of the pod.
        rank: global rank of the worker.
        pid: its process id.
        ended: when it ended, unix seconds.
        alone: it is the only worker here, so that failures of every rank are those of programs below it.
    """
    stated = read_json(run_dir / f"failure.{rank}.json")
    if stated is not None:
        return stated
    own = read_json(run_dir / f"failure.{rank}.{pid}.json")
    own = own and failure.unwrapped(own)
    if own is not None and not failure.is_wrapper(own.get("exception")):
        return own
    below = [each for each in _below(run_dir, None if alone else rank) if ended - each["time"] <= _RECENT_SECONDS]
    causes = [each for each in below if not failure.is_wrapper(each.get("exception"))] or below
    return failure.first_cause([_judged(each) for each in _together(causes)]) or own


def _together(failures: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Return the last failure and those of processes that ran at the same time, such as the ranks of a launcher.

    A failure from before that process began was handled, and so was one of a process that it had started itself.
    """
    last = max(failures, key=lambda each: float(each["time"]), default={})
    began = last["started"] if is_number(last.get("started")) else 0.0
    own = last.get("pid")
    return [each for each in failures if each["time"] >= began and (own is None or each.get("parent") != own)]


def _below(run_dir: Path, rank: Optional[int]) -> List[Dict[str, Any]]:
    patterns = ("failure.*.json",) if rank is None else (f"failure.{rank}.*.json",)
    documents = (read_json(path) for pattern in patterns for path in run_dir.glob(pattern))
    known = (failure.unwrapped(each) for each in documents if each is not None)
    return [each for each in known if is_number(each.get("time")) and is_whole(each.get("rank"))]


def _judged(document: Dict[str, Any]) -> Dict[str, Any]:
    if isinstance(document.get("secondary"), bool):
        return document
    exception, message = document.get("exception"), str(document.get("message") or "")
    return {
        **document,
        "secondary": failure.is_secondary(exception if isinstance(exception, str) else None, message, 1),
    }
