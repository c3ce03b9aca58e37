"""One Lease object of an API server, behind connections that are slow, cut, or lose answers. No sockets, any clock."""

import asyncio
import json
from collections.abc import Callable

import msgspec

from torchyard.kubernetes.client.errors import AlreadyExists, Conflict, NotFound, refusal
from torchyard.reconcile.ports import Unavailable


class LeaseServer:
    def __init__(self) -> None:
        self.lease: dict | None = None
        self.version = 0

    def serve(self, verb: str, body: dict | None) -> dict:
        if verb == "POST" and self.lease is not None:
            raise AlreadyExists("leases.coordination.k8s.io already exists")
        if verb != "POST" and self.lease is None:
            raise refusal(404, b'{"message": "gone", "details": {"kind": "leases"}}', what="GET")
        if verb == "PUT" and body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise Conflict("the object has been modified")
        if verb in {"PUT", "POST"}:
            self.version += 1
            self.lease = body | {"metadata": body["metadata"] | {"resourceVersion": str(self.version)}}
        return self.lease

    @property
    def holder(self) -> str | None:
        return self.lease["spec"].get("holderIdentity") if self.lease else None


class Wire:
    """One client's connection. `delays` gives the seconds of the way there and of the way back; None: lost."""

    def __init__(
        self, server: LeaseServer, delays: Callable[[], tuple[float | None, float | None]] = lambda: (0.01, 0.01)
    ) -> None:
        self.server, self.delays, self.sent = server, delays, 0

    async def request(self, verb: str, _path: str, *, body=None, timeout: float, **_: object) -> bytes:  # noqa: ASYNC109 -- as Api
        self.sent += 1
        there, back = self.delays()
        sent = json.loads(_encoded(body)) if body is not None else None
        try:
            async with asyncio.timeout(timeout):
                if there is None:
                    await asyncio.Event().wait()
                await asyncio.sleep(there)
                try:
                    answer = _encoded(self.server.serve(verb, sent))
                except (Conflict, NotFound) as error:
                    answer = error
                if back is None:
                    await asyncio.Event().wait()
                await asyncio.sleep(back)
        except TimeoutError as error:
            raise Unavailable(f"{verb}: no answer in time") from error
        if isinstance(answer, Exception):
            raise answer
        return answer


def _encoded(value: object) -> bytes:
    return msgspec.json.encode(value)
