"""What is known of a job besides its object: on this machine files and processes, on a cluster pods."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torchyard.client.local import PodProcesses
from torchyard.client.ranks import Rank
from torchyard.reconcile.observed import Pod


class Processes(NamedTuple):
    """Who runs: the controlling process, 0 if it is not known yet, and the pods."""

    controller: int | None
    pods: Sequence[PodProcesses]


class Inside(NamedTuple):
    """The inside of a job; `folder` is that of a run of this machine."""

    ranks: tuple[Rank, ...] = ()
    folder: Path | None = None
    processes: Processes = Processes(None, ())
    pods: Sequence[Pod] = ()
