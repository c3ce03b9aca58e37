"""The part of a gang that one machine runs: all of it, or the pods of one host among several."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torchyard.api.resource import TrainingJob
from torchyard.local.record import loopback_address


class GangShare(NamedTuple):
    """Where the pods of one machine are in their gang.

    Attributes:
        hosts: machines of the gang.
        number: of this machine among them.
        node: its name; empty: each pod is a node of its own.
        address: at which other machines reach its pods; empty: each pod has a loopback address.
        checkpoints: folder of checkpoints; None: that of the run.
        variables: further variables of its pods.
    """

    hosts: int = 1
    number: int = 0
    node: str = ""
    address: str = ""
    checkpoints: Path | None = None
    variables: Mapping[str, str] = {}

    @property
    def runs(self) -> Path | None:
        """Return the folder with the runs whose checkpoints a job may continue from; None: that of the run."""
        return self.checkpoints.parents[1] if self.checkpoints is not None else None

    def pods(self, job: TrainingJob) -> list[int]:
        """Return the indices of the pods that are here."""
        return shares(job.spec.nodes, self.hosts)[self.number]

    def address_of(self, job_uid: str, index: int) -> str:
        """Return the address of a pod."""
        return self.address or loopback_address(job_uid, index)

    def node_of(self, index: int) -> str:
        """Return the name of the node of a pod."""
        return self.node or f"local-{index}"


def shares(nodes: int, hosts: int) -> list[list[int]]:
    """Return the pods of each host: neighbours together, and no host more than one above another."""
    return [[index for index in range(nodes) if index * hosts // nodes == host] for host in range(hosts)]
