"""Whether the pods of a cluster can get the code of a job where it says: asked before the job is created."""

from typing import Any

import msgspec

from torchyard.api.code_source import FILE_URL, IMAGE_VOLUMES
from torchyard.api.resource import TrainingJob
from torchyard.client.errors import TorchYardError
from torchyard.client.remote.session import Remote
from torchyard.kubernetes.client.errors import NotFound, Rejected
from torchyard.reconcile.ports import Unavailable

_VOLUME = "code"


async def require_served(remote: Remote, job: TrainingJob) -> None:
    """Check that a cluster can mount the image of a job's code, or reach its repository.

    Raises:
        TorchYardError: it cannot. What the user may not ask the API server for is found out by the pods.
    """
    code = job.spec.code
    if code is not None and code.git is not None and code.git.url.startswith(FILE_URL):
        what = f"spec.code.git.url is {code.git.url}, a folder that the pods of a cluster cannot read"
        raise TorchYardError(what, "use an address of https or ssh, or send the folder by spec.code.path")
    if code is not None and code.image is not None and await _drops_image_volumes(remote, code.image):
        what = f"{remote.where} serves no image volumes, by which pods mount spec.code.image"
        raise TorchYardError(what, f"{IMAGE_VOLUMES}; use spec.code.git or claim")


async def _drops_image_volumes(remote: Remote, image: str) -> bool:
    """Return whether the API server drops an image volume from a pod that is created as a trial (dry run)."""
    path = f"/api/v1/namespaces/{remote.namespace}/pods?dryRun=All"
    try:
        answer = await remote.api.request("POST", path, body=_pod(image))
    except Rejected as error:
        return "must specify a volume type" in error.message
    except (NotFound, Unavailable):
        return False
    created: dict[str, Any] = msgspec.json.decode(answer)
    return not any(each["name"] == _VOLUME and "image" in each for each in created["spec"].get("volumes", ()))


def _pod(image: str) -> dict[str, Any]:
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    mount = {"name": _VOLUME, "mountPath": "/code", "readOnly": True}
    container = {"name": "trial", "image": image, "securityContext": security, "volumeMounts": [mount]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "torchyard-trial-"},
        "spec": {"containers": [container], "volumes": [{"name": _VOLUME, "image": {"reference": image}}]},
    }
