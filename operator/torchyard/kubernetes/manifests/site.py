"""What every pod of this installation shares: images, the way to the operator, the rules of the house."""

from typing import Any

from msgspec import Struct

AUDIENCE = "torchyard.dev"
NON_ROOT = 65532
"""The uid that distroless images call `nonroot`; it owns nothing in an image and needs no entry in its passwd."""


class Site(Struct, frozen=True, kw_only=True):
    """Settings of the operator that end up in pods."""

    operator_url: str
    """Base URL of the intake as pods reach it, `https://...`."""
    ca_pem: str
    """Certificates that the intake's own certificate is judged by."""
    agent_image: str
    """Has `python3` on its PATH and the agent's zipapp at `AGENT_ZIPAPP`."""
    trainer_image: str
    """For jobs that name no image."""
    audience: str = AUDIENCE
    token_seconds: int = 3600
    run_as: int | None = NON_ROOT
    """uid and gid of every process; None: the cluster gives them out itself, as OpenShift does."""
    disk: str = ""
    """Disk that a pod may fill if its job does not say; empty: as much as there is."""
    lost_node_seconds: int = 30
    """How long a pod stays bound to a node that is not ready or not reachable."""
    shm: str = ""
    """Size of /dev/shm if the job says neither that nor its memory; empty: as much as the node has."""
    network_peers: tuple[dict[str, Any], ...] | None = None
    """NetworkPolicy peers that may reach the pods of a job beside its own pods; None: no NetworkPolicy is made."""
    scheduling_gates: tuple[str, ...] = ()
    """Gates that a gang scheduler removes when all pods of the gang fit."""
