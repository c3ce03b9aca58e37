"""Inputs of a job: where they come from, where programs find them, and `${inputs.NAME}` in texts of the spec."""

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from torchyard.api.resource import TrainingJob
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_placement import Input
from torchyard.api.spec_texts import with_texts

CLAIM = "claim:"
FOLDERS = "/torchyard/inputs"
"""Where the inputs of a job without `path` are in a pod."""
SHARED = "/torchyard/input-cache"
"""Where the claim of `inputCache` is in a pod."""
PRIVATE = f"{FOLDERS}/.cache"
"""Where the files are without such a claim: with the pod."""
PLACEHOLDER = re.compile(r"\$\{inputs\.([^{}$]*)\}")


def claim_of(each: Input) -> tuple[str, str] | None:
    """Return the claim that an input lies on, and the folder there; None: it is fetched."""
    if not each.source.startswith(CLAIM):
        return None
    claim, _, folder = each.source.removeprefix(CLAIM).partition("/")
    return claim, folder.strip("/")


def fetched(spec: TrainingJobSpec) -> tuple[Input, ...]:
    """Return the inputs that are fetched; the others lie on claims."""
    return tuple(each for each in spec.inputs if claim_of(each) is None)


def has_requirements(spec: TrainingJobSpec) -> bool:
    """Return whether packages are installed for the code."""
    return spec.code is not None and spec.code.requirements is not None


def requirements(spec: TrainingJobSpec, root: str) -> dict[str, str]:
    """Return the variable by which an agent installs requirements (docs/protocol.md); none, if the code has none.

    Args:
        spec: of the job.
        root: folder of the installed packages.
    """
    code = spec.code
    if code is None or code.requirements is None:
        return {}
    known = {"root": root, "code": code.digest, "wheels": code.wheels}
    return {"TORCHYARD_REQUIREMENTS": json.dumps({name: value for name, value in known.items() if value})}


def folder_in_pod(each: Input) -> str:
    """Return where programs of a pod find an input."""
    return each.path or f"{FOLDERS}/{each.name}"


def variables(spec: TrainingJobSpec, folder_of: Callable[[Input], str]) -> dict[str, str]:
    """Return a variable with the folder of each input: `TORCHYARD_INPUT_<NAME>`."""
    return {f"TORCHYARD_INPUT_{each.name.upper().replace('-', '_')}": folder_of(each) for each in spec.inputs}


def settings(job: TrainingJob, cache: str, views: str) -> dict[str, str]:
    """Return the variable by which an agent fetches inputs (docs/protocol.md); none, if nothing is fetched.

    What an earlier pod has fetched is pinned: `status.inputs` has its revision.

    Args:
        job: the job.
        cache: folder of what is fetched.
        views: folder in which each input gets a folder by its name.
    """
    known = {(each.name, each.request): each.revision for each in job.status.inputs}
    entries: list[dict[str, Any]] = []
    for each in fetched(job.spec):
        entry = {"name": each.name, "from": each.source, "sha256": each.sha256, "include": each.include}
        entry["revision"] = known.get((each.name, request(each)), "")
        entries.append({name: value for name, value in entry.items() if value})
    if not entries:
        return {}
    return {"TORCHYARD_INPUTS": json.dumps({"cache": cache, "views": views, "inputs": entries})}


def request(each: Input) -> str:
    """Return a digest of what is fetched: the revision of another source, or of other files, is not the same."""
    return hashlib.sha256(json.dumps([each.source, each.include]).encode()).hexdigest()[:16]


def with_folders(job: TrainingJob, folder_of: Callable[[Input], str]) -> TrainingJob:
    """Return the job with folders in the place of `${inputs.NAME}`, in command, args, env and parameters."""
    folders = {each.name: folder_of(each) for each in job.spec.inputs}

    def fill(text: str) -> str:
        return PLACEHOLDER.sub(lambda match: folders.get(match[1], match[0]), text)

    return replace(job, spec=with_texts(job.spec, fill, b"${inputs."))
