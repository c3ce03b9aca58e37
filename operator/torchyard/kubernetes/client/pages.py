"""Lists page by page, of objects of whatever size: pages get smaller where their objects are large.

Users decide how large objects are: 500 pods of one job, with all texts that its spec may have, take a gigabyte as JSON.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol, TypeVar

from torchyard.kubernetes.client.api import JSON, Api
from torchyard.kubernetes.client.errors import TooLarge

PAGE = 500
PAGE_BYTES = 32 * 2**20
SHRINK = 8


class _Meta(Protocol):
    @property
    def continue_(self) -> str | None:
        """Where the next page begins."""
        ...


class Page(Protocol):
    """One page of a list."""

    @property
    def metadata(self) -> _Meta:
        """Of the list."""
        ...


P = TypeVar("P", bound=Page)


async def pages(
    api: Api,
    path: str,
    read: Callable[[bytes], P],
    params: Mapping[str, str],
    *,
    accept: str = JSON,
    timeout: float,  # noqa: ASYNC109 -- of each request
) -> AsyncIterator[P]:
    """Yield the pages of a list.

    Args:
        api: the server.
        path: of the collection.
        read: decodes a page.
        params: of the query, without `limit` and `continue`.
        accept: form of the answers.
        timeout: seconds for each page.

    Raises:
        Gone: the list changed too much while it was read.
        Unavailable, Rejected, NotFound: it could not be read.
    """
    limit, rest = PAGE, ""
    while True:
        query = {**params, "limit": str(limit)} | ({"continue": rest} if rest else {})
        try:
            page = read(await api.request("GET", path, params=query, accept=accept, timeout=timeout, most=PAGE_BYTES))
        except TooLarge:
            if limit == 1:
                raise
            limit = max(1, limit // SHRINK)
            continue
        yield page
        rest = page.metadata.continue_ or ""
        if not rest:
            return
