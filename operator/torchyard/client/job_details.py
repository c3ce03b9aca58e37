"""What is known of a job besides its object: on this machine files and processes, on a cluster pods."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from torchyard.client.ranks import Rank
from torchyard.reconcile.observed import Pod


class PodProcesses(NamedTuple):
    """The processes of one pod."""

    pod: str
    agent: int
    workers: Mapping[int, int]  # pid by rank


class Processes(NamedTuple):
    """Who runs: the controlling process, 0 if it is not known yet, and the pods."""

    controller: int | None
    pods: Sequence[PodProcesses]


class JobDetails(NamedTuple):
    """What is known of a job besides its object; `folder` is that of a run of this machine."""

    ranks: tuple[Rank, ...] = ()
    folder: Path | None = None
    processes: Processes = Processes(None, ())
    pods: Sequence[Pod] = ()
