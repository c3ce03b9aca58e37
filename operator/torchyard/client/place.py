"""Whether a command means this machine or a cluster, decided without importing or asking anything."""

import os
from pathlib import Path


def run_names() -> list[str]:
    """Return the names of the runs in $TORCHYARD_HOME, without reading any."""
    runs = Path(os.environ.get("TORCHYARD_HOME") or Path.home() / ".torchyard").expanduser() / "runs"
    try:
        return sorted(entry.name for entry in runs.iterdir() if entry.name[0] != "." and (entry / "job.yaml").exists())
    except OSError:
        return []


def place_flags(context: str | None, namespace: str | None) -> str:
    """Return what a command that is proposed has to repeat to mean the same place."""
    given = (("-n", namespace), ("--context", context))
    return "".join(f" {flag} {value}" for flag, value in given if value is not None)


def on_cluster(name: str | None, context: str | None, namespace: str | None) -> bool:
    """Whether a command is for the cluster: it says so, or this machine has no such run and there is a kubeconfig.

    Args:
        name: of the run or job; None: all of them are meant.
        context: what --context says.
        namespace: what -n says.
    """
    if context is not None or namespace is not None:
        return True
    known = run_names()
    return is_configured() and (name not in known if name is not None else not known)


def is_configured() -> bool:
    """Whether some cluster is known here."""
    files = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    return "KUBERNETES_SERVICE_HOST" in os.environ or any(
        Path(file).expanduser().is_file() for file in files.split(os.pathsep) if file
    )
