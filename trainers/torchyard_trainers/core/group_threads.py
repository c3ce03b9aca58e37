"""The threads that gloo starts for process groups: they take no processor from other threads when they wake up."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_wakeup_preemption() -> Iterator[None]:
    """Start the threads of gloo in this block, so that on busy processors they wait their turn.

    A message wakes gloo's loop thread, which by default takes the processor at once, often from a thread of gloo that
    holds the lock of that connection. The loop thread then polls until the other one runs again. Where ranks have no
    core to spare, a small collective takes three to five times as long, and three to five times the processor time.

    Does nothing where the system lacks or refuses SCHED_BATCH, or the process has another policy than the default one.
    """
    if not _changed_to_batch():
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _changed_to_batch() -> bool:
    """Set the policy of this thread, and so of those that it starts, to SCHED_BATCH; return whether that was done."""
    batch = getattr(os, "SCHED_BATCH", None)
    try:
        if batch is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
            return False
        os.sched_setscheduler(0, batch, os.sched_param(0))
    except OSError:
        return False
    return True
