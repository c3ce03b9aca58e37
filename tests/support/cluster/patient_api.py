"""The API server as tests see it: what passes by itself (a time-out, a 429, a 5xx) is asked again and fails no test."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from torchyard.kubernetes.client.api import Api
from torchyard.kubernetes.client.api import connected as connected_once
from torchyard.kubernetes.client.errors import AlreadyExists, NotFound
from torchyard.reconcile.ports import Unavailable

PATIENCE_SECONDS = 90.0
PAUSE_SECONDS = 0.25


class PatientApi(Api):
    """An API server whose absences of up to 90 s are bridged."""

    async def request(self, verb: str, path: str, *, body: Any = None, **options: Any) -> bytes:
        """As `Api.request`; a write whose answer was lost may have been done, and then counts as done."""
        deadline, unanswered = time.monotonic() + PATIENCE_SECONDS, False
        while True:
            try:
                return await super().request(verb, path, body=body, **options)
            except Unavailable as error:
                if time.monotonic() > deadline:
                    raise
                unanswered = True
                await asyncio.sleep(max(PAUSE_SECONDS, error.retry_after or 0.0))
            except AlreadyExists:
                if not (unanswered and verb == "POST" and isinstance(body, dict)):
                    raise
                return await super().request("GET", f"{path}/{body['metadata']['name']}")
            except NotFound:
                # What was changed may have ended because of that, as a pod that lost its label does.
                if not (unanswered and verb in {"DELETE", "PATCH"}):
                    raise
                return b"{}"


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[PatientApi]:
    """The API server that KUBECONFIG names, with all rights."""
    async with connected_once() as api:
        yield PatientApi(api.session, api.credentials)
