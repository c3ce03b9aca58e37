"""Code that is not sent with a job: what an agent is given to fetch or find it, and where it is in a pod."""

import json
from typing import Any

from torchyard.api.spec_code import Code, is_sent, pinned_commit, source_of

REPORT = "spec.code"
"""As which agents report this code among the inputs; no input can have this name."""
FILE_URL = "file://"
IMAGE_VOLUMES = "Kubernetes 1.35 and later do, 1.33 and 1.34 with the feature gate ImageVolume"
"""Which clusters serve image volumes."""


def settings(code: Code | None, *, root: str, folder: str, cache: str, secret: str, own: bool) -> dict[str, str]:
    """Return the variable by which an agent makes the code of a job known to rounds; none, if it is sent.

    Args:
        code: of the job.
        root: folder with the unpacked code.
        folder: where an image or a claim is.
        cache: folder of what is fetched.
        secret: folder with the credentials of `git.secret`.
        own: whether the machine is the user's, whose git is used with its settings and credentials.
    """
    if code is None or is_sent(code):
        return {}
    known: dict[str, Any] = {"root": root, "shown": source_of(code), "digest": code.digest or ""}
    if code.git is None:
        return {"TORCHYARD_CODE_SOURCE": json.dumps({**known, "folder": folder, "absent": _absent(code)})}
    repository = {
        "url": code.git.url,
        "commit": pinned_commit(code),
        "path": code.git.path or "",
        "secret": secret if code.git.secret is not None and not own else "",
        "own": own,
    }
    return {"TORCHYARD_CODE_SOURCE": json.dumps({**known, "cache": cache, "git": repository})}


def _absent(code: Code) -> str:
    """Return what is wrong where the folder of an image or a claim is not there."""
    if code.claim is not None:
        return f"claim {code.claim.name} has no folder {code.claim.path or '/'}"
    fix = f"{IMAGE_VOLUMES}; or use spec.code.git or claim"
    return f"{code.image} is not mounted, because the cluster serves no image volumes: {fix}"
