"""The living processes of a run of this machine: what `ps`, `kill` and `nvidia-smi` know them by."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field

from torchyard.cluster.local.keeper import stat_fields
from torchyard.cluster.local.record import Running, read


class PodProcesses(NamedTuple):
    """The processes of one pod."""

    pod: str
    agent: int
    workers: Mapping[int, int]  # pid by rank


class _Workers(Struct, frozen=True):
    """`workers.json`, written by the launcher of a round."""

    pids: dict[int, int] = field(default_factory=dict)


def living_processes(pods: Path) -> list[PodProcesses]:
    """Return the pods whose agents live, with the workers of each."""
    found = []
    for file in sorted(pods.glob("*/process.json")):
        running = read(file, Running)
        if running is not None and running.agent.alive():
            workers = read(file.parent / "run" / "workers.json", _Workers) or _Workers()
            alive = {rank: pid for rank, pid in sorted(workers.pids.items()) if _runs(pid)}
            found.append(PodProcesses(file.parent.name, running.agent.pid, alive))
    return found


def _runs(pid: int) -> bool:
    fields = stat_fields(pid)
    return bool(fields) and fields[0] != "Z"
