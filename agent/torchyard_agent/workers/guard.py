"""The launcher's guard: it ends workers and their processes, on request or after the agent has ended."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Callable, List

from torchyard_agent.workers.process import (
    catches,
    descendants,
    die_with_parent,
    is_alive,
    kill_descendants,
    signal_groups,
)

GRACE_SECONDS = 5.0
_PARENT_DIED = signal.SIGUSR1
_GUARDED = (signal.SIGTERM, _PARENT_DIED)
_stopping = threading.Event()


def watch(workers: Callable[[], List[int]], stopped: Callable[[], None]) -> None:
    """Start the guard thread, first thing in a launcher: every thread after it inherits the blocked signals.

    A thread in `sigwait`, because torch's store blocks the main thread in C++, where Python handlers never run.

    Args:
        workers: process ids of the workers known so far, each the leader of its own group.
        stopped: called after a SIGTERM has ended them, before the launcher exits.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _GUARDED)
    threading.Thread(target=_guard, args=(workers, stopped), name="guard", daemon=True).start()
    die_with_parent(_PARENT_DIED, os.getppid())


def give_way() -> None:
    """Wait for the guard to end this process if it has ended the workers, so that no failure is written."""
    if _stopping.is_set():
        threading.Event().wait()


def _guard(workers: Callable[[], List[int]], stopped: Callable[[], None]) -> None:
    if signal.sigwait(_GUARDED) == _PARENT_DIED:
        signal_groups(workers(), signal.SIGKILL)
        kill_descendants(os.getpid())
        os._exit(128 + signal.SIGKILL)
    _stopping.set()
    end_workers(workers())
    kill_descendants(os.getpid())
    stopped()
    os._exit(128 + signal.SIGTERM)


def end_workers(pids: List[int], grace: float = GRACE_SECONDS) -> None:
    """Send SIGTERM to the groups of `pids`, and SIGKILL to the remaining processes after `grace` seconds.

    A shell without a trap ends at once. What it has started gets the same time if it has a handler for SIGTERM.
    """
    below = [each for pid in pids for each in descendants(pid) if catches(each, signal.SIGTERM)]
    signal_groups(pids, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while any(map(is_alive, (*pids, *below))) and time.monotonic() < deadline:
        time.sleep(0.005)
    signal_groups(pids, signal.SIGKILL)
