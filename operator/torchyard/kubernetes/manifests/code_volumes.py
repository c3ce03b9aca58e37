"""The volumes of code that is not in the image of a job, and what the agent is given to find it."""

from typing import Any

from torchyard.api import code_source, inputs
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.spec_code import Code, is_sent
from torchyard.kubernetes.manifests import names

Entry = dict[str, Any]
_CODE, _CODE_PARTS = "torchyard-code", "torchyard-code-parts"
_CODE_SOURCE, _CODE_SECRET = "torchyard-code-source", "torchyard-code-secret"

_LIMIT = "512Mi"  # of former and new code, unpacked and in parts
_FETCHED_LIMIT = "4Gi"  # what git sends, its archive and the files: twice the limits of the agent


def source(spec: TrainingJobSpec) -> dict[str, str]:
    """Return the variable by which the agent finds code that is not sent; none, if it is."""
    if spec.code is None:
        return {}
    return code_source.settings(
        spec.code,
        root=names.CODE,
        folder=_folder(spec.code),
        cache=f"{inputs.SHARED}/.code" if spec.input_cache is not None else names.CODE_FETCHED,
        secret=names.CODE_SECRET,
        own=False,
    )


def volumes(code: Code) -> list[Entry]:
    """Return the volumes of code: one for what agents unpack, and one that it comes from."""
    if is_sent(code) and code.digest is None:
        return []
    if not is_sent(code):
        return [{"name": _CODE, "emptyDir": {"sizeLimit": _FETCHED_LIMIT}}, *_origin(code)]
    assert code.digest is not None
    parts = [
        {"configMap": {"name": name, "items": [{"key": names.PART, "path": f"{names.PART}-{number:04}"}]}}
        for number, name in enumerate(names.code_parts(code.digest, code.parts))
    ]
    return [
        {"name": _CODE, "emptyDir": {"sizeLimit": _LIMIT}},
        {"name": _CODE_PARTS, "projected": {"sources": parts}},
    ]


def _origin(code: Code) -> list[Entry]:
    """Return the volume of an image, a claim, or of the credentials of a repository."""
    if code.image is not None:
        return [{"name": _CODE_SOURCE, "image": {"reference": code.image, "pullPolicy": "IfNotPresent"}}]
    if code.claim is not None:
        return [{"name": _CODE_SOURCE, "persistentVolumeClaim": {"claimName": code.claim.name}}]
    if code.git is not None and code.git.secret is not None:
        return [{"name": _CODE_SECRET, "secret": {"secretName": code.git.secret}}]
    return []


def mounts(code: Code) -> list[Entry]:
    """Return the mounts of these volumes."""
    paths = {
        _CODE_PARTS: names.CODE_PARTS,
        _CODE_SOURCE: names.CODE_SOURCE,
        _CODE_SECRET: names.CODE_SECRET,
    }
    return [
        _mount(_CODE, names.CODE)
        if each["name"] == _CODE
        else _mount(each["name"], paths[each["name"]], read_only=True)
        for each in volumes(code)
    ]


def _folder(code: Code) -> str:
    """Return where the code is of an image or a claim."""
    below = code.claim.path if code.claim is not None else None
    return f"{names.CODE_SOURCE}/{below}" if below else names.CODE_SOURCE


def _mount(name: str, path: str, *, read_only: bool = False) -> Entry:
    return {"name": name, "mountPath": path} | ({"readOnly": True} if read_only else {})
