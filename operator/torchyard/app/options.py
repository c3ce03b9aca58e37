"""Options of the operator; every flag is also an environment variable, TORCHYARD_<FLAG>."""

import os
import secrets
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field

from torchyard.app.log_format import LogFormat
from torchyard.app.notifier import Wishes
from torchyard.kubernetes.manifests.names import Site
from torchyard.version import __version__

INTAKE_PORT, PROBE_PORT = 8443, 8080
MetricsAccess = Literal["off", "token", "open"]
"""Access to /metrics: none; accounts with the right, at the intake port; every client, at the probe port."""
IMAGES = "ghcr.io/torchyard"
JOB_SERIES = 500


class Options(Struct, frozen=True, kw_only=True):
    """Settings of one operator process."""

    namespaces: tuple[str, ...] = ()
    intake_host: str = ""
    intake_port: int = INTAKE_PORT
    intake_url: str = ""
    tls_dir: Path = Path("/tls")
    probe_port: int = PROBE_PORT
    metrics: MetricsAccess = "token"
    job_series: int = JOB_SERIES
    notifications: Wishes | None = None
    agent_image: str = f"{IMAGES}/operator:{__version__}"
    agent_volume: bool = False
    trainer_image: str = f"{IMAGES}/trainer:{__version__}"
    disk: str = ""
    shm: str = ""
    network_peers: tuple[dict[str, Any], ...] | None = None
    schedulers: tuple[str, ...] = ()
    count_claimed_gpus: bool = False
    node_notices: tuple[str, ...] = ()
    node_memory: float = 6 * 3600.0
    qps: float = 500.0
    burst: float = 1000.0
    leader_election: bool = True
    lease_name: str = "torchyard"
    lease_namespace: str = ""
    context: str | None = None
    log_format: LogFormat = "text"
    pod_name: str = field(default_factory=lambda: os.environ.get("POD_NAME", ""))
    pod_namespace: str = field(default_factory=lambda: os.environ.get("POD_NAMESPACE", ""))

    identity: str = field(default_factory=lambda: os.environ.get("POD_NAME") or _unique())
    """Identity among candidates for the lease. A pod's name outlives its containers, and a pod runs one operator."""


def _unique() -> str:
    return f"{os.uname().nodename}-{secrets.token_hex(4)}"


def site(options: Options, namespace: str) -> Site:
    """Return what every pod needs to know about this installation.

    Args:
        options: of this process.
        namespace: that the operator is in.

    Raises:
        ValueError: the certificate of the intake's CA cannot be read.
    """
    file = options.tls_dir / "ca.crt"
    try:
        ca = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"--tls-dir {options.tls_dir}: {file.name} cannot be read: {error}: agents need it."
        ) from error
    return Site(
        operator_url=options.intake_url or f"https://torchyard-intake.{namespace}.svc:{options.intake_port}",
        ca_pem=ca,
        agent_image=options.agent_image,
        agent_volume=options.agent_volume,
        trainer_image=options.trainer_image,
        disk=options.disk,
        shm=options.shm,
        network_peers=options.network_peers,
    )


def variable(flag: str) -> str:
    """Return the environment variable of a flag: `--intake-port` is TORCHYARD_INTAKE_PORT."""
    return "TORCHYARD_" + flag.removeprefix("--").replace("-", "_").upper()


def environment(flag: str) -> str | None:
    """Return the value of a flag in the environment; None if it is not set."""
    return os.environ.get(variable(flag)) or None
