"""Inputs of `https://`: one file, whose SHA-256 the job names. Needs no library, so that it works in every image."""

from __future__ import annotations

import contextlib
import http.client
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Callable, Optional
from urllib.parse import urlsplit

from torchyard_agent.inputs.source import (
    FetchError,
    Input,
    Listing,
    RejectedInputError,
    SourceFile,
    file_of_url,
    listing,
)

_CHUNK = 1 << 20
_SECONDS = 60.0
_RETRIED = frozenset({408, 425, 429})
_UNSATISFIABLE = 416


class _SecureRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never to an address that is not encrypted."""

    def redirect_request(self, req: Any, *answer: Any) -> Any:
        newurl = answer[-1]
        if req.full_url.startswith("https:") and not newurl.startswith("https:"):
            raise RejectedInputError(f"{req.host} redirects to {newurl.partition('?')[0]}, which is not encrypted")
        return super().redirect_request(req, *answer)


def resolve(item: Input) -> Listing:
    """Return the file of a URL; its size is known once it is fetched.

    Raises:
        RejectedInputError: it does not exist, or may not be read.
        FetchError: it cannot be fetched now.
    """
    with _opened(item.source, 0, method="HEAD") as answer:
        size = _length(answer) if answer is not None else None
    file = SourceFile(file_of_url(item.source), size, {"sha256": item.sha256}, item.source)
    return listing(item.sha256, [file], item.shown)


def download(file: SourceFile, path: Path, report: Callable[[int], None]) -> None:
    """Append to `path` what it lacks of a file; a server that cannot continue sends all of it again.

    Raises:
        RejectedInputError: it does not exist, or may not be read.
        FetchError: it cannot be fetched now.
    """
    begun = path.stat().st_size if path.exists() else 0
    with _opened(file.address, begun) as answer:
        if answer is None:  # nothing is missing, or what is there is longer than the file; its digest decides
            return
        expected = _length(answer)
        continued = begun > 0 and answer.status == http.client.PARTIAL_CONTENT
        length = begun if continued else 0
        expected = None if expected is None else expected + length
        with path.open("ab" if continued else "wb") as target:
            try:
                while data := answer.read1(_CHUNK):
                    target.write(data)
                    length += len(data)
                    report(length)
            except (http.client.HTTPException, TimeoutError, ConnectionError) as error:
                raise FetchError(
                    f"{_host(file.address)}: the connection broke after {length:,} bytes ({error})"
                ) from error
    if expected is not None and length < expected:
        raise FetchError(f"{_host(file.address)}: the connection ended after {length:,} of {expected:,} bytes")


@contextlib.contextmanager
def _opened(url: str, begun: int, method: str = "GET") -> Any:
    """Yield the answer to a request from byte `begun` on; None: there is nothing from there on, or no `HEAD`."""
    headers = {"User-Agent": "torchyard", "Accept-Encoding": "identity"}
    if begun:
        headers["Range"] = f"bytes={begun}-"
    request = urllib.request.Request(url, headers=headers, method=method)  # noqa: S310 - the spec allows https alone
    try:
        answer = urllib.request.build_opener(_SecureRedirects).open(request, timeout=_SECONDS)
    except urllib.error.HTTPError as error:
        if (begun and error.code == _UNSATISFIABLE) or (method == "HEAD" and error.code not in (401, 404, 410)):
            yield None  # signed URLs often allow GET alone
            return
        shown = f"{url.partition('?')[0]}: HTTP {error.code} {error.reason}"
        if error.code in _RETRIED or error.code >= 500:
            raise FetchError(shown) from error
        raise RejectedInputError(shown) from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            fix = "SSL_CERT_FILE in spec.env names a file with the CA"
            raise RejectedInputError(
                f"{_host(url)}: its certificate is not trusted ({error.reason.verify_message}): {fix}"
            ) from error
        raise FetchError(f"{_host(url)}: {error.reason}") from error
    except (http.client.HTTPException, OSError) as error:
        raise FetchError(f"{_host(url)}: {error or type(error).__name__}") from error
    with answer:
        yield answer


def _length(answer: Any) -> Optional[int]:
    text = answer.headers.get("Content-Length", "")
    return int(text) if text.isdigit() else None


def _host(url: str) -> str:
    return urlsplit(url).netloc or url
