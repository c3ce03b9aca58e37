"""Requests to one repository of a registry: authentication, blobs and manifests (OCI distribution specification)."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

import aiohttp
from yarl import URL

from torchyard.client.errors import FAILED, TorchYardError
from torchyard.client.registry.credentials import Credentials, credentials
from torchyard.client.registry.reference import Reference, is_here

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_ACCEPTED = f"{INDEX_TYPE}, {MANIFEST_TYPE}"
MAX_MANIFEST_BYTES = 4 << 20
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=300)
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')

Body = Callable[[], Any]


class Session:
    """Requests to the repository of an image. Use it as an asynchronous context manager.

    Args:
        image: names the repository.
        write: whether blobs and manifests are written.
    """

    def __init__(self, image: Reference, *, write: bool) -> None:
        self.image, self._write = image, write
        self._authorization = ""

    async def __aenter__(self) -> Self:
        self._known: Credentials | None = await asyncio.to_thread(credentials, self.image.host)
        self._client = aiohttp.ClientSession(timeout=_TIMEOUT, trust_env=True, auto_decompress=False)
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._client.close()

    async def has(self, digest: str) -> bool:
        """Return whether the repository has a blob."""
        async with self.request("HEAD", f"blobs/{digest}", allowed=(404,)) as answer:
            return answer.status == 200

    async def put_blob(self, digest: str, length: int, body: Body) -> None:
        """Write a blob in one request; `body` returns its content as often as it is called."""
        async with self.request("POST", "blobs/uploads/") as answer:
            place = answer.url.join(URL(answer.headers["Location"]))
        place = place.update_query(digest=digest)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(length)}
        async with self.request("PUT", place, headers=headers, body=body):
            pass

    async def put_manifest(self, name: str, kind: str, data: bytes) -> None:
        """Write a manifest or an index under a tag or digest."""
        async with self.request("PUT", f"manifests/{name}", headers={"Content-Type": kind}, body=lambda: data):
            pass

    async def manifest(self, name: str) -> bytes:
        """Return a manifest or an index."""
        async with self.request("GET", f"manifests/{name}", headers={"Accept": _ACCEPTED}) as answer:
            data = bytearray()
            async for piece in answer.content.iter_any():
                data += piece
                if len(data) > MAX_MANIFEST_BYTES:
                    raise TorchYardError(f"{self.image.host} sent a manifest of more than {MAX_MANIFEST_BYTES} bytes")
            return bytes(data)

    async def blob(self, digest: str) -> AsyncIterator[bytes]:
        """Yield the content of a blob, which is not verified."""
        async with self.request("GET", f"blobs/{digest}") as answer:
            async for piece in answer.content.iter_any():
                yield piece

    @asynccontextmanager
    async def request(
        self,
        method: str,
        where: str | URL,
        *,
        headers: Mapping[str, str] | None = None,
        body: Body = lambda: None,
        allowed: tuple[int, ...] = (),
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the answer to a request, authorized as the registry asks for.

        Raises:
            TorchYardError: the registry cannot be reached or refuses.
        """
        url = URL(f"{self.image.base}/{where}") if isinstance(where, str) else where
        try:
            answer = await self._send(method, url, headers, body)
            if answer.status == 401:
                challenge = answer.headers.get("WWW-Authenticate", "")
                answer.release()
                await self._authorize(challenge)
                answer = await self._send(method, url, headers, body)
            try:
                if answer.status >= 400 and answer.status not in allowed:
                    raise await self._refusal(method, answer)
                yield answer
            finally:
                answer.release()
        except ssl.SSLError as error:
            raise TorchYardError(f"{self.image.host}: {error}", "use a registry with a valid certificate") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            raise TorchYardError(f"{self.image.host} cannot be reached ({why})", "try again", FAILED) from error

    async def _send(
        self, method: str, url: URL, headers: Mapping[str, str] | None, body: Body
    ) -> aiohttp.ClientResponse:
        # Uploads may go to another host, which gets no credentials of this one; redirects drop them by themselves.
        own = url.origin() == URL(self.image.base).origin()
        authorization = {"Authorization": self._authorization} if self._authorization and own else {}
        return await self._client.request(method, url, headers={**(headers or {}), **authorization}, data=body())

    async def _authorize(self, challenge: str) -> None:
        """Set the header that a challenge of the registry asks for."""
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() == "basic":
            if self._known is None or self._known.is_token:
                raise self._login()
            self._authorization = self._known.basic()
            return
        parameters = dict(_PARAMETER.findall(rest))
        realm = URL(parameters.get("realm", ""))
        if scheme.lower() != "bearer" or not realm.host:
            raise TorchYardError(f"{self.image.host} asks for the unknown authentication {scheme!r}")
        if realm.scheme != "https" and not (is_here(realm.host) and is_here(self.image.host)):
            raise TorchYardError(f"{self.image.host} asks to send credentials to {realm}, which is not encrypted")
        self._authorization = f"Bearer {await self._token(realm, parameters.get('service', ''))}"

    async def _token(self, realm: URL, service: str) -> str:
        scope = f"repository:{self.image.repository}:{'pull,push' if self._write else 'pull'}"
        query = {"service": service, "scope": scope}
        if self._known is not None and self._known.is_token:
            form = {
                **query,
                "grant_type": "refresh_token",
                "client_id": "torchyard",
                "refresh_token": self._known.password,
            }
            request = self._client.post(realm, data=form)
        else:
            headers = {"Authorization": self._known.basic()} if self._known is not None else {}
            request = self._client.get(realm.update_query(query), headers=headers)
        async with request as answer:
            if answer.status in (400, 401, 403):
                raise self._login()
            answer.raise_for_status()
            found = await answer.json(content_type=None)
        token = found.get("token") or found.get("access_token") if isinstance(found, dict) else None
        if not isinstance(token, str):
            raise TorchYardError(f"{realm.host} sent no token for {self.image.host}")
        return token

    def _login(self) -> TorchYardError:
        what = "rejects the stored credentials" if self._known is not None else "asks for credentials"
        return TorchYardError(f"{self.image.host} {what}", f"`docker login {self.image.host}`")

    async def _refusal(self, method: str, answer: aiohttp.ClientResponse) -> TorchYardError:
        try:
            errors = (await answer.json(content_type=None))["errors"]
            why = "; ".join(f"{each['code']}: {each.get('message', '')}" for each in errors)[:300]
        except (ValueError, KeyError, TypeError, aiohttp.ClientError):
            why = answer.reason or ""
        where = f"{self.image.host}/{self.image.repository}"
        if answer.status in (401, 403):
            access = "write to" if self._write else "read"
            fix = f"`docker login {self.image.host}` as a user that may {access} {self.image.repository}"
            return TorchYardError(f"{where}: HTTP {answer.status} {why}", fix)
        fix = "check the name and the digest" if answer.status == 404 else "try again, or ask the administrator"
        return TorchYardError(f"{where}: {method}: HTTP {answer.status} {why}", fix, FAILED)
