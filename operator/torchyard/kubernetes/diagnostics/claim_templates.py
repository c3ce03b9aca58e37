"""What a ResourceClaimTemplate asks for: the GPUs in a claim (dynamic resource allocation, `resource.k8s.io/v1`)."""

import re
from collections.abc import Mapping
from typing import Any

# Device classes of whole or partitioned GPUs: gpu.nvidia.com, mig.nvidia.com, gpu.amd.com, gpu.intel.com, ...
_GPU_CLASS = re.compile(r"(^|[.-])(gpu|gpus|mig)([.-]|$)")
MOST_GPUS = 64


def path(namespace: str, name: str) -> str:
    """Return the path of a template."""
    return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates/{name}"


def gpus_of(template: Mapping[str, Any]) -> int | None:
    """Return the GPUs of a claim from a template; None: it does not determine their number.

    A request for all devices of a node, and alternatives with different numbers, do not.
    """
    total = 0
    for request in _list(_at(template, "spec", "spec", "devices", "requests")):
        first = _list(request.get("firstAvailable"))
        counts = {_gpus(each) for each in first or [request.get("exactly") or {}]}
        count = counts.pop()
        if counts or count is None:
            return None
        total += count
    return total if total <= MOST_GPUS else None


def _gpus(request: Mapping[str, Any]) -> int | None:
    if not _GPU_CLASS.search(str(request.get("deviceClassName", ""))):
        return 0
    if request.get("allocationMode", "ExactCount") != "ExactCount":
        return None
    count = request.get("count", 1)
    return count if isinstance(count, int) and count >= 0 else None


def _list(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _at(document: Any, *names: str) -> Any:
    for name in names:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document
