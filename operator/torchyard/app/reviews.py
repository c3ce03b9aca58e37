"""Questions about bearer tokens that this process has its API server answer: whose they are, and what they allow."""

from collections.abc import Callable
from typing import Any

from torchyard.agents.auth.readers import ACCESS_PATH, Readers
from torchyard.agents.auth.signatures import MEDIA_TYPES, Signatures
from torchyard.agents.auth.tokens import REVIEW_PATH, MemberOf, Tokens, review_document
from torchyard.kubernetes.client.api import Api
from torchyard.kubernetes.client.errors import NotFound, Rejected


def tokens_of(api: Api, member_of: MemberOf, clock: Callable[[], float]) -> Tokens:
    """Verify tokens with this API server.

    Args:
        api: may create TokenReviews.
        member_of: the jobs' pods.
        clock: unix seconds.
    """

    async def published(path: str) -> bytes:
        try:
            return await api.request("GET", path, accept=MEDIA_TYPES)
        except (NotFound, Rejected) as error:
            raise ValueError(f"it does not publish them to us: {error}") from None

    async def review(token: str, audience: str) -> bytes:
        return await api.request("POST", REVIEW_PATH, body=review_document(token, audience))

    return Tokens(review, member_of, vouch=Signatures(published).vouch, clock=clock)


def readers_of(api: Api) -> Readers:
    """Ask this API server who may read /metrics.

    Args:
        api: may create TokenReviews and SubjectAccessReviews.
    """

    async def review(token: str) -> bytes:
        return await api.request("POST", REVIEW_PATH, body=review_document(token))

    async def access(document: dict[str, Any]) -> bytes:
        return await api.request("POST", ACCESS_PATH, body=document)

    return Readers(review, access, clock=api.time)
