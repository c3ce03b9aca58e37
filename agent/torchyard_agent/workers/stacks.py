"""Stacks of every thread of every worker, on demand, while the workers hang."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Dict, List

from torchyard_agent.files import read_json
from torchyard_agent.telemetry.hang_detector import stack_location
from torchyard_agent.workers.hooks import STACKS_SIGNAL
from torchyard_agent.workers.process import catches, is_alive

_QUIET_SECONDS = 0.1
_LOOKS = 30  # three seconds, or longer where the machine is so busy that this process looks late, too
_OUR_THREADS = ("torchyard_agent/telemetry/progress.py", "torchyard_agent/telemetry/pace.py")


def listed(run_dir: Path) -> List[Dict[str, Any]]:
    """Return the position of each worker of this pod: `rank`, `pid`, `stacks` (None: not available), `at`, `waits`."""
    workers = (read_json(run_dir / "workers.json") or {}).get("pids", {})
    found = collect(run_dir)
    rows = []
    for rank, pid in sorted((int(rank), int(pid)) for rank, pid in workers.items()):
        at, waits = stack_location(found.get(pid, ""))
        rows.append({"rank": rank, "pid": pid, "stacks": found.get(pid), "at": at, "waits": waits})
    return rows


def collect(run_dir: Path) -> Dict[int, str]:
    """Request the stacks of every process with a file `stacks.<pid>.txt`; return them by process id.

    Processes without our handler are not signalled, since the signal would end them.
    """
    files = {int(path.name.split(".")[1]): path for path in run_dir.glob("stacks.*.txt")}
    asked: Dict[int, int] = {}
    for pid, path in files.items():
        if is_alive(pid) and catches(pid, STACKS_SIGNAL):
            asked[pid] = path.stat().st_size
            os.kill(pid, STACKS_SIGNAL)
    _await({files[pid]: size for pid, size in asked.items()})
    written = {pid: files[pid].read_bytes()[size:].decode("utf-8", "replace") for pid, size in asked.items()}
    return {pid: _without_our_frames(text) for pid, text in written.items()}


def _without_our_frames(text: str) -> str:
    """Remove the frames below the user's program, which start a warm worker, and our own threads."""
    threads = (thread for thread in text.split("\n\n") if not any(each in thread for each in _OUR_THREADS))
    kept, cut = [], False
    for line in "\n\n".join(threads).splitlines():
        cut = line.startswith("  ") and (cut or "torchyard_agent/workers/worker.py" in line)
        if not cut:
            kept.append(line)
    return "\n".join(kept)


def _await(files: Dict[Path, int]) -> None:
    """Wait until each file has grown and no longer grows, for a few seconds at most."""
    sizes: Dict[Path, int] = {}
    for _ in range(_LOOKS):
        now = {path: path.stat().st_size for path in files}
        if now == sizes and all(now[path] > size for path, size in files.items()):
            return
        sizes = now
        time.sleep(_QUIET_SECONDS)
