"""Where a job is, on this machine or on a cluster, and the connection to its backend."""

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from torchyard.client.backend import Backend, Notice, logged

if TYPE_CHECKING:
    from torchyard.client.remote.session import Remote
    from torchyard.kubernetes.client.bearer import ReadingApi


class Location(NamedTuple):
    """Where a job is: on this machine, or in a namespace of a cluster."""

    kind: Literal["local", "cluster"]
    context: str | None = None
    namespace: str | None = None
    api: "ReadingApi | None" = None
    """The cluster as a user whose token came with a request; None: as the kubeconfig has it."""


HERE = Location("local")


def location_of(name: str | None, context: str | None, namespace: str | None) -> Location:
    """Return where to look for a name: on this machine, unless a cluster is named or only a cluster can have it."""
    return Location("cluster", context, namespace) if on_cluster(name, context, namespace) else HERE


def run_names() -> list[str]:
    """Return the names of the runs in $TORCHYARD_HOME, without reading any."""
    runs = expanded(os.environ.get("TORCHYARD_HOME") or "~/.torchyard") / "runs"
    try:
        return sorted(entry.name for entry in runs.iterdir() if entry.name[0] != "." and (entry / "job.yaml").exists())
    except OSError:
        return []


def has_runs_on_hosts(name: str = "") -> bool:
    """Return whether a run of this name, or any run, was started on hosts; no file is read."""
    folder = expanded(os.environ.get("TORCHYARD_HOME") or "~/.torchyard") / "hosts"
    return (folder / f"{name}.json").exists() if name else any(folder.glob("*.json"))


def on_cluster(name: str | None, context: str | None, namespace: str | None) -> bool:
    """Return whether a command is for the cluster: by its flags, or since there is a kubeconfig and no such run here.

    Args:
        name: of the run or job; None: all.
        context: value of --context.
        namespace: value of -n.
    """
    if context is not None or namespace is not None:
        return True
    known = run_names()
    return (name not in known if name is not None else not known) and is_configured()


def is_configured() -> bool:
    """Return whether a cluster is configured."""
    files = os.environ.get("KUBECONFIG") or "~/.kube/config"
    return "KUBERNETES_SERVICE_HOST" in os.environ or any(
        expanded(file).is_file() for file in files.split(os.pathsep) if file
    )


def contexts() -> list[str]:
    """Return the names of the contexts of the kubeconfig, the current one first; empty if it cannot be read."""
    if not is_configured():
        return []
    from torchyard.kubernetes.client.credentials import context_names

    return context_names(os.environ.get("KUBECONFIG") or "~/.kube/config")


def expanded(path: str) -> Path:
    """Return a path in which `~` is the home folder, as it is for a user without one: nothing is there then."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - pathlib's raises


@contextlib.asynccontextmanager
async def opened(location: Location, notice: Notice = logged) -> AsyncIterator[Backend]:
    """Connect to a location for the duration of the block.

    Raises:
        TorchYardError: there is no cluster, it does not answer, or it rejects the request.
    """
    if location.kind == "local":
        from torchyard.client.local import LocalBackend

        yield LocalBackend(notice)
        return
    from torchyard.client.cluster import ClusterBackend, ReadingBackend

    async with connection_to(location) as remote:
        yield ClusterBackend(remote, notice) if location.api is None else ReadingBackend(remote, notice)


def connection_to(location: Location) -> "contextlib.AbstractAsyncContextManager[Remote]":
    """Return the connection to the cluster of a location. Raises what `connection` of `remote.session` does."""
    from torchyard.client.remote.session import connection

    return connection(location.context, location.namespace, location.api)
