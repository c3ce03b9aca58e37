"""Select the processes of a program that receive a signal, such as SIGTERM to save and stop.

The program may be a shell that runs a Python, or a Python that runs another one: the process that can save is rarely
the one that was started. On each branch of the tree the nearest process with a handler gets the signal, and nothing
below it: a launcher such as torchrun passes the signal on itself, and a second one often means "now".

What a Python without a handler has started is mostly no program but a helper: a worker of a DataLoader, which has a
handler of torch's, or the service of an experiment tracker. There only another Python that has imported torch counts
and, among the processes of `multiprocessing`, one that has made an optimizer step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Iterable, List

from torchyard_agent.workers.process import catches, children, is_python, is_spawned


def handlers(sig: int, roots: Iterable[int], run_dir: Path) -> List[int]:
    """Return the processes below and including `roots` that get the signal `sig`.

    Args:
        sig: number of the signal.
        roots: process ids of the workers.
        run_dir: scratch folder of the pod, where hooks leave `stacks.<pid>.txt` and `steps.<pid>`.
    """
    below = children()
    found: List[int] = []
    front = list(roots)
    while front:
        pid = front.pop()
        if catches(pid, sig):
            found.append(pid)
            continue
        helpers = is_python(pid)
        front += [child for child in below.get(pid, ()) if not helpers or _trains(child, run_dir)]
    return found


def _trains(pid: int, run_dir: Path) -> bool:
    if (run_dir / f"steps.{pid}").exists():
        return True
    return (run_dir / f"stacks.{pid}.txt").exists() and not is_spawned(pid)
