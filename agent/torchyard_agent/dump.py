"""Stacks of every thread of every worker, on demand, while the workers hang."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Dict, List

from torchyard_agent.process import catches, is_alive

TEXT_BYTES = 6 * 1024
_WAIT_SECONDS = 3.0
_QUIET_SECONDS = 0.1


def dump(run_dir: Path, workers: Dict[int, int]) -> str:
    """Ask every process that left `stacks.<pid>.txt` for its stacks; all of them as one text.

    Args:
        run_dir: scratch folder of this pod.
        workers: process id of each worker by rank, for the headings.

    A process without a handler for SIGUSR2 is named, never signalled: the signal would end it.
    """
    ranks = {pid: rank for rank, pid in workers.items()}
    files = {int(path.name.split(".")[1]): path for path in run_dir.glob("stacks.*.txt")}
    asked: Dict[int, int] = {}
    parts: List[str] = []
    for pid in sorted({*ranks, *files}, key=lambda pid: (ranks.get(pid, 1 << 30), pid)):
        if pid in files and is_alive(pid) and catches(pid, signal.SIGUSR2):
            asked[pid] = files[pid].stat().st_size
            os.kill(pid, signal.SIGUSR2)
        elif pid in ranks:
            parts.append(f"rank {ranks[pid]} (pid {pid}): no stacks: it ended, or it is not a Python with our hooks\n")
    _await({files[pid]: size for pid, size in asked.items()})
    for pid, size in asked.items():
        name = f"rank {ranks[pid]} (pid {pid})" if pid in ranks else f"pid {pid}"
        text = files[pid].read_bytes()[size:].decode("utf-8", "replace")
        parts.append(f"{name}:\n{_without_our_frames(text) or 'no answer'}\n")
    parts += _flight_records(run_dir)
    return "\n".join(parts)


def _without_our_frames(text: str) -> str:
    """Cut each stack where the user's program begins; below it is only how a warm worker starts."""
    kept, cut = [], False
    for line in text.splitlines():
        cut = line.startswith("  ") and (cut or "torchyard_agent/worker.py" in line)
        if not cut:
            kept.append(line)
    return "\n".join(kept)


def _await(files: Dict[Path, int]) -> None:
    """Wait until each file has grown beyond its size and rests, or time is up."""
    deadline = time.monotonic() + _WAIT_SECONDS
    sizes: Dict[Path, int] = {}
    while time.monotonic() < deadline:
        now = {path: path.stat().st_size for path in files}
        if now == sizes and all(now[path] > size for path, size in files.items()):
            return
        sizes = now
        time.sleep(_QUIET_SECONDS)


def _flight_records(run_dir: Path) -> List[str]:
    prefix = Path(os.environ.get("TORCH_FR_DUMP_TEMP_FILE") or run_dir / "fr" / "rank_")
    found = sorted(prefix.parent.glob(f"{prefix.name}*")) if prefix.parent.is_dir() else []
    return [f"flight record: {path} ({path.stat().st_size} bytes)" for path in found]


def shorten(text: str, size: int = TEXT_BYTES) -> str:
    """The head of every section, so that each rank is heard, within `size` bytes."""
    if len(text.encode()) <= size:
        return text
    sections = text.split("\n\n")
    share = max(200, size // max(1, len(sections)) - 8)
    return "\n\n".join(section[:share] for section in sections).encode()[:size].decode("utf-8", "ignore")
