"""The `restricted` Pod Security Standard, and a root file system that nobody writes to."""

from typing import Any

from torchyard.api.spec import TrainingJobSpec
from torchyard.cluster.kube.manifest import volumes
from torchyard.cluster.kube.manifest.site import Site

Context = dict[str, Any]


def of_pod(spec: TrainingJobSpec, site: Site) -> Context:
    """A numeric user that is not root, whatever the image says."""
    context: Context = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if site.run_as is not None:
        context |= {"runAsUser": site.run_as, "runAsGroup": site.run_as}
        if volumes.claims(spec):
            # Checking only the top folder keeps a claim with a million checkpoint files from delaying every start.
            context |= {"fsGroup": site.run_as, "fsGroupChangePolicy": "OnRootMismatch"}
    return context


def of_container() -> Context:
    """No privilege, and no way to one."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
