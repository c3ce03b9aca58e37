"""The API server as a user whose token came with a request: the token is passed on, and only reads are sent.

A server that acts for many users has no rights of its own here: the API server authenticates and authorizes each call.
"""

import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import ClientResponse
from kubernetes.client import Configuration
from msgspec import Struct

from torchyard.kubernetes.client.api import Api, connector_for, session_for
from torchyard.kubernetes.client.credentials import Chosen, Credentials, Loaded
from torchyard.kubernetes.client.errors import Details, Rejected

REVIEW = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
MAX_ANSWER_BYTES = 64 * 2**20
"""Of one answer: 10,000 jobs are read in pages of 500."""
_OURS = r"/apis/torchyard\.dev/v1alpha1(/namespaces/[a-z0-9-]+)?/(trainingjobs|trainingsweeps)(/[a-z0-9.-]+)?"
_OF_PODS = r"/api/v1/namespaces/[a-z0-9-]+/(events|pods(/[a-z0-9.-]+(/log)?)?)"
READABLE = re.compile(f"{_OURS}|{_OF_PODS}")


class _UserInfo(Struct, frozen=True):
    username: str = ""


class _ReviewStatus(Struct, frozen=True, rename="camel"):
    user_info: _UserInfo = _UserInfo()


class _Review(Struct, frozen=True):
    status: _ReviewStatus = _ReviewStatus()


class ReadingApi(Api):
    """The API server, of which only jobs, sweeps, their pods, logs and events are read; nothing else is sent."""

    def another_session(self) -> aiohttp.ClientSession:
        """Raise an error: commands in pods need such a session.

        Raises:
            Rejected: always.
        """
        raise _denied("commands in pods")

    def _open(
        self, verb: str, path: str, options: Mapping[str, Any]
    ) -> contextlib.AbstractAsyncContextManager[ClientResponse]:
        if not (verb == "GET" and READABLE.fullmatch(path)) and (verb, path) != ("POST", REVIEW):
            raise _denied(f"{verb} {path}")
        return super()._open(verb, path, options)

    async def user(self) -> str:
        """Return the name of the user.

        Raises:
            Unauthorized: the token is invalid or has expired.
            Unavailable: the API server does not answer.
            Rejected: the user may not ask for its name.
        """
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        answer = await self.request("POST", REVIEW, body=body, most=MAX_ANSWER_BYTES)
        return msgspec.json.decode(answer, type=_Review).status.user_info.username


class ApiServer:
    """An API server and the connections to it, which all users share: a request carries its user, not a connection.

    Args:
        url: such as `https://10.96.0.1:443`.
        ca: file with the authorities that its certificate may be from.
    """

    def __init__(self, url: str, ca: Path) -> None:
        self._url, self._ca = url, ca
        self._connector = connector_for(_PassedToken(url, ca, "").tls)

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator["ApiServer"]:
        """Close the connections at the end of the block."""
        try:
            yield self
        finally:
            await self._connector.close()

    def as_user(self, token: str) -> ReadingApi:
        """Return the API server as the user of a token; close its session."""
        credentials = _PassedToken(self._url, self._ca, token)
        return ReadingApi(session_for(credentials, self._connector, owner=False), credentials)


class _PassedToken(Credentials):
    """A token that is sent as it came. No other credentials take its place after a 401."""

    def __init__(self, url: str, ca: Path, token: str) -> None:
        configuration = Configuration(host=url, proxy="")
        configuration.ssl_ca_cert = str(ca)
        super().__init__(None, Loaded(configuration, Chosen(namespace="")))
        self.authorization = f"Bearer {token}"
        self.fresh_until = float("inf")

    async def changed_since(self, used: str | None) -> bool:  # noqa: ARG002
        """Return False: another token comes with another request."""
        return False


def _denied(what: str) -> Rejected:
    why = f"the page in the cluster only reads jobs, sweeps, pods, logs and events, and does not send {what}"
    return Rejected(403, "Forbidden", why, Details())
