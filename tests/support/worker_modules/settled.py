"""Collectives that keep no memory after they are over, so that a tracker counts the same each time.

A thread of gloo drops a collective, and with it the last reference to its tensors, a moment after it said that it is
done. On a busy machine that moment can be long enough for the next allocations: up to an eighth more is counted then.
"""

import torch
from torch.distributed import distributed_c10d as c10d
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

COLLECTIVES = "c10d::"
Gloo = c10d.ProcessGroupGloo


class OneThread(Gloo):
    """A group that works off its collectives one after the other."""

    def __init__(self, store, rank, size, *, timeout, **_):
        options = Gloo._Options()
        options._devices = [Gloo.create_default_device()]
        options._timeout = timeout
        options._threads = 1
        super().__init__(store, rank, size, options)


class Settled(TorchDispatchMode):
    """Return from a collective only when the group's thread has dropped it: when it has ended another one after it."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        found = operation(*args, **(kwargs or {}))
        if operation.name().startswith(COLLECTIVES) and isinstance(found, tuple):
            found[-1].wait()
            group = next(each for each in args if isinstance(each, torch.ScriptObject) and _is_a_group(each))
            with _disable_current_modes():  # not a barrier, which would hold what came before it
                c10d.ProcessGroup.unbox(group).allreduce([torch.zeros(1)]).wait()
        return found


def _is_a_group(found: torch.ScriptObject) -> bool:
    return str(found._type()).endswith(".ProcessGroup")
