"""The threads that gloo starts for process groups: they take no processor from other threads when they wake up."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_wakeup_preemption() -> Iterator[None]:
    """Start the threads of gloo in this block, so that on busy processors they wait their turn.

    A message wakes gloo's loop thread, which by default takes the processor at once, often from a thread of gloo that
    holds the lock of that connection. The loop thread then polls until the other one is given the processor again: five
    times the processor time and three times the duration of a small collective, where ranks have no core to spare.

    Does nothing where the system has no SCHED_BATCH, or the process has another policy than the default one.
    """
    batch = getattr(os, "SCHED_BATCH", None)
    if batch is None or os.sched_getscheduler(0) != os.SCHED_OTHER or not _chosen(batch):
        yield
        return
    try:
        yield
    finally:
        _chosen(os.SCHED_OTHER)


def _chosen(policy: int) -> bool:
    """Set the policy of this thread and of those that it starts; return whether the system allows that."""
    try:
        os.sched_setscheduler(0, policy, os.sched_param(0))
    except OSError:
        return False
    return True
