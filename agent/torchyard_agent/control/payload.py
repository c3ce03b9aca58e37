"""A state of the agent as the body of a sync: JSON within the protocol's limit (pure)."""

from __future__ import annotations

import json
import math
from typing import Any, Callable, Dict, Sequence

from torchyard_agent.files import head

BODY_BYTES = 16 * 1024


def fit(body: Dict[str, Any]) -> bytes:
    """Return the body as JSON within the protocol's limit; the least needed is cut first, an end only shortened.

    The traceback of a failure stays here: the important part of it is in `lines`.
    """
    body = _finite(body)
    _failure(body).pop("traceback", None)
    for cut in _CUTS:
        data = _encoded(body)
        if len(data) <= BODY_BYTES:
            return data
        cut(body)
    return _encoded(body)


def _encoded(body: Dict[str, Any]) -> bytes:
    # Not as ASCII: that makes six bytes of a character that has two or three. Half a surrogate pair becomes `?`.
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


def _failure(body: Dict[str, Any]) -> Dict[str, Any]:
    return (body.get("exit") or {}).get("failure") or {}


def _shorten_message(body: Dict[str, Any]) -> None:
    failure = _failure(body)
    if "message" in failure:
        failure["message"] = head(failure["message"], 300)


def _keep_lines(count: int, size: int) -> Callable[[Dict[str, Any]], None]:
    def shorten(body: Dict[str, Any]) -> None:
        ended = body.get("exit") or {}
        if ended.get("lines"):
            ended["lines"] = [head(line, size) for line in ended["lines"][-count:]]

    return shorten


_CUTS: Sequence[Callable[[Dict[str, Any]], Any]] = (
    _shorten_message,
    _keep_lines(5, 200),
    lambda body: body.update(reports=body.get("reports", [])[:1]),
    lambda body: body.update(reports=[]),
    lambda body: body.update(gpus=[], notices=[]),
    # Control characters take six bytes even so.
    _keep_lines(1, 200),
)


def _finite(value: Any) -> Any:
    """Replace NaN and infinity by null: JSON has neither, and one in a report must not prevent the sync."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
