"""A worker that checks how the threads of its process groups are scheduled."""

import os
from pathlib import Path

from torchyard_trainers.core.parallel import mesh_of
from torchyard_trainers.core.world import join


def check(given: int = os.SCHED_OTHER) -> int:
    """Return 0 if the threads of gloo wait their turn, or keep the policy that the process was given."""
    os.sched_setscheduler(0, given, os.sched_param(0))
    with join("cpu", needs_group=True) as world:
        world.with_own_group().barrier()
        mesh_of("fsdp", world)
        gloo = {os.sched_getscheduler(task) for task in threads("gloo")}
    assert gloo == {os.SCHED_BATCH if given == os.SCHED_OTHER else given}, gloo
    return os.sched_getscheduler(0) - given


def threads(kind: str) -> list[int]:
    tasks = Path("/proc/self/task").iterdir()
    return [int(each.name) for each in tasks if kind in (each / "comm").read_text()]
