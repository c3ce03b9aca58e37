"""How an API server refuses, word for word."""

import json

from tests.support.cluster.fault_proxy import Answer, Request

RETRY_AFTER = 1
JSON = {"Content-Type": "application/json"}

REFUSALS: dict[str, tuple[int, str, dict[str, str]]] = {
    "exists": (409, "AlreadyExists", {}),
    "403": (403, "Forbidden", {}),
    "409": (409, "Conflict", {}),
    "410": (410, "Expired", {}),
    "422": (422, "Invalid", {}),
    "429": (429, "TooManyRequests", {"Retry-After": str(RETRY_AFTER)}),
    "500": (500, "InternalError", {}),
    "503": (503, "ServiceUnavailable", {}),
}


def refusal(what: str, request: Request) -> Answer:
    """As an API server words it."""
    code, reason, headers = REFUSALS[what]
    message = f"injected: {request.verb} {request.path.rsplit('/', 1)[-1]} is refused with {code} {reason}"
    return Answer(code, _status(code, reason, message), JSON | headers)


def _status(code: int, reason: str, message: str) -> bytes:
    fields = {"code": code, "reason": reason, "message": message, "status": "Failure"}
    return json.dumps({"kind": "Status", "apiVersion": "v1", "metadata": {}, **fields}).encode()


GONE = b'{"type":"ERROR","object":' + _status(410, "Expired", "injected: too old resource version") + b"}\n"
