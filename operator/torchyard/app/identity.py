"""Whose tokens the agents bring: what the API server publishes and answers, as the intake asks for it."""

from collections.abc import Callable

from torchyard.cluster.kube.client import Api
from torchyard.cluster.kube.errors import NotFound, Rejected
from torchyard.intake.signatures import MEDIA_TYPES, Signatures
from torchyard.intake.tokens import REVIEW_PATH, MemberOf, Tokens, review_document


def tokens(api: Api, member_of: MemberOf, clock: Callable[[], float]) -> Tokens:
    """Judge tokens by what this API server says.

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
