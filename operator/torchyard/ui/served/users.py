"""The users of the page in a cluster: one for each token, which the API server has reviewed a few seconds ago.

Nothing is shared between tokens, neither a topic nor an answer: what a token may not read is not shown to it.
"""

import asyncio
import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable

from aiohttp import web

from torchyard.api.values import DNS_LABEL_PATTERN
from torchyard.client.location import Location
from torchyard.kubernetes.client.bearer import ApiServer, ReadingApi
from torchyard.kubernetes.client.errors import Rejected, Unauthorized
from torchyard.reconcile.ports import Unavailable
from torchyard.ui.content import Reader
from torchyard.ui.live import Hub
from torchyard.ui.requests import READING, Requests
from torchyard.ui.server import Views

MAX_USERS = 100
MAX_TOPICS = 24
"""That the tabs of one user show at a time."""
REVIEW_SECONDS = 10.0
"""For which a token that the API server has accepted is accepted here."""
REJECTED_SECONDS = 5.0
MAX_REJECTED = 1000
IDLE_SECONDS = 60.0
RECENT_SECONDS = 10.0
"""For which a user without a stream is not forgotten in favour of another: a request may be under way."""
MAX_REVIEWS = 16
"""Under way at a time."""
EVERYWHERE = "*"
"""The place of all namespaces; a namespace cannot have this name."""


class User:
    """One token: what it watches, and the API server as its user."""

    def __init__(self, api: ReadingApi) -> None:
        self.api = api
        self.lock = asyncio.Lock()
        self.reviewed = float("-inf")
        self.used = time.monotonic()
        reader = NamespaceReader(api)
        self.views = Views(Hub(reader, MAX_TOPICS), Requests(reader, READING))

    async def close(self) -> None:
        """End streams and connections."""
        await self.views.close()
        await self.api.session.close()


class NamespaceReader(Reader):
    """Reads topics whose places are namespaces, or all of them."""

    def __init__(self, api: ReadingApi) -> None:
        super().__init__({EVERYWHERE: Location("cluster", None, None, api)})
        self._api = api

    def location(self, place: str) -> Location:
        """Return the location of a namespace. Raises what `Reader.location` does."""
        if is_namespace(place):
            return Location("cluster", None, place, self._api)
        return super().location(place)


def is_namespace(text: str) -> bool:
    """Return whether a namespace can have this name."""
    return re.fullmatch(DNS_LABEL_PATTERN, text) is not None


class Users:
    """The users whose tokens were used lately.

    Args:
        server: that reviews tokens and answers their reads.
        clock: monotonic seconds.
    """

    def __init__(self, server: ApiServer, clock: Callable[[], float] = time.monotonic) -> None:
        self._server, self._clock = server, clock
        self._users: OrderedDict[bytes, User] = OrderedDict()
        self._rejected: OrderedDict[bytes, float] = OrderedDict()
        self._reviews = asyncio.Semaphore(MAX_REVIEWS)

    async def of(self, token: str) -> User:
        """Return the user of a token.

        Raises:
            HTTPUnauthorized: the API server does not know the token, or it has expired.
            HTTPForbidden: the API server knows the user, and lets it read nothing about itself.
            HTTPServiceUnavailable: the API server does not answer, or there are too many users.
        """
        key = hashlib.sha256(token.encode()).digest()
        now = self._clock()
        if self._rejected.get(key, float("-inf")) > now:
            raise unauthorized()
        user = self._users.get(key)
        if user is None:
            await self._make_room()
            user = self._users[key] = User(self._server.as_user(token))
        self._users.move_to_end(key)
        user.used = now
        async with user.lock:  # requests of a page come together: one review serves all
            if self._clock() - user.reviewed > REVIEW_SECONDS:
                await self._review(key, user)
        return user

    async def _review(self, key: bytes, user: User) -> None:
        try:
            async with self._reviews:
                await user.api.user()
        except Unauthorized as error:
            self._rejected[key] = self._clock() + REJECTED_SECONDS
            while len(self._rejected) > MAX_REJECTED:
                self._rejected.popitem(last=False)
            await self._forget(key)
            raise unauthorized() from error
        except Rejected as error:
            await self._forget(key)
            raise web.HTTPForbidden(text=f"The API server rejects this user: {error.message}") from error
        except Unavailable as error:
            raise web.HTTPServiceUnavailable(text="The API server does not answer.") from error
        user.reviewed = self._clock()

    async def look(self) -> None:
        """Forget users who were away, and end the streams of tokens that are not valid any more."""
        for key, user in list(self._users.items()):
            if not user.views.hub.streams and self._clock() - user.used > IDLE_SECONDS:
                await self._forget(key)
            elif user.views.hub.streams and self._clock() - user.reviewed > REVIEW_SECONDS and not user.lock.locked():
                try:
                    async with user.lock:
                        await self._review(key, user)
                except web.HTTPException:
                    continue  # of an expired token: its streams have ended; else it is looked at again

    async def close(self) -> None:
        """Forget all users."""
        while self._users:
            await self._forget(next(iter(self._users)))

    async def _make_room(self) -> None:
        if len(self._users) < MAX_USERS:
            return
        before = self._clock() - RECENT_SECONDS
        idle = (key for key, user in self._users.items() if not user.views.hub.streams and user.used < before)
        oldest = next(idle, None)
        if oldest is None:
            raise web.HTTPServiceUnavailable(text=f"More than {MAX_USERS} users have the page open. Try again later.")
        await self._forget(oldest)

    async def _forget(self, key: bytes) -> None:
        if (user := self._users.pop(key, None)) is not None:
            await user.close()


def unauthorized() -> web.HTTPUnauthorized:
    """Return the answer to a request without a valid token."""
    text = "The API server does not know this token, or it has expired. Log in again: reload the page."
    return web.HTTPUnauthorized(text=text, headers={"WWW-Authenticate": 'Bearer realm="torchyard"'})
