"""The `restricted` Pod Security Standard, and a read-only root file system."""

from typing import Any

from torchyard.api.spec import TrainingJobSpec
from torchyard.cluster.kube.manifest import volumes

Context = dict[str, Any]


def of_pod(spec: TrainingJobSpec, run_as: int | None) -> Context:
    """A numeric user that is not root, whatever the image says; None: the cluster chooses it."""
    context: Context = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if run_as is not None:
        context |= {"runAsUser": run_as, "runAsGroup": run_as}
        if volumes.claims(spec):
            # Checking only the top folder keeps a claim with a million checkpoint files from delaying every start.
            context |= {"fsGroup": run_as, "fsGroupChangePolicy": "OnRootMismatch"}
    return context


def of_container() -> Context:
    """No privilege, and no way to one."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
