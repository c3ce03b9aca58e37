"""Where a job is, on this machine or on a cluster, and the connection to its backend."""

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal, NamedTuple

from torchyard.client.backend import Backend, Notice, logged


class Location(NamedTuple):
    """Where a job is: on this machine, or in a namespace of a cluster."""

    kind: Literal["local", "cluster"]
    context: str | None = None
    namespace: str | None = None


HERE = Location("local")


def location_of(name: str | None, context: str | None, namespace: str | None) -> Location:
    """Return where a name is looked for: on this machine, unless a cluster is named or only that can have it."""
    return Location("cluster", context, namespace) if on_cluster(name, context, namespace) else HERE


def run_names() -> list[str]:
    """Return the names of the runs in $TORCHYARD_HOME, without reading any."""
    runs = Path(os.environ.get("TORCHYARD_HOME") or Path.home() / ".torchyard").expanduser() / "runs"
    try:
        return sorted(entry.name for entry in runs.iterdir() if entry.name[0] != "." and (entry / "job.yaml").exists())
    except OSError:
        return []


def on_cluster(name: str | None, context: str | None, namespace: str | None) -> bool:
    """Return whether a command is for the cluster: it says so, or there is a kubeconfig and no such run here.

    Args:
        name: of the run or job; None: all of them are meant.
        context: what --context says.
        namespace: what -n says.
    """
    if context is not None or namespace is not None:
        return True
    known = run_names()
    return (name not in known if name is not None else not known) and is_configured()


def is_configured() -> bool:
    """Return whether some cluster is known here."""
    files = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    return "KUBERNETES_SERVICE_HOST" in os.environ or any(
        Path(file).expanduser().is_file() for file in files.split(os.pathsep) if file
    )


@contextlib.asynccontextmanager
async def opened(location: Location, notice: Notice = logged) -> AsyncIterator[Backend]:
    """Connect to a location for as long as the block runs.

    Raises:
        TorchYardError: there is no cluster, it does not answer, or it refuses.
    """
    if location.kind == "local":
        from torchyard.client.local import LocalBackend

        yield LocalBackend(notice)
        return
    from torchyard.client.cluster import ClusterBackend
    from torchyard.client.remote.session import connection

    async with connection(location.context, location.namespace) as remote:
        yield ClusterBackend(remote, notice)
