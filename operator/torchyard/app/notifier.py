"""Notifications of the operator: CloudEvents for one webhook, signed, at least once, and never in the way of a plan.

They wait in a bounded queue that one task sends in order. The Lease carries the time before which everything was sent
(decision 59): a new leader sends again what its jobs' statuses prove since then. The signature is that of Standard
Webhooks, for which receivers find libraries.
"""

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import logging
import ssl
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
from msgspec import Struct

from torchyard.api.resource import TrainingJob
from torchyard.api.status import State, TrainingJobStatus
from torchyard.reconcile.notifications import (
    CONTENT_TYPE,
    Notification,
    cloud_event,
    encoded,
    new_notifications,
    notifications_of,
)

MAX_WAITING = 2000
MAX_AGE_SECONDS = 3600.0
"""Older notifications are dropped, and a new leader sends none that is older."""
MARGIN_SECONDS = 60.0
"""Longest time between a transition and its notification here: that of a slow write of the status."""
TRY_SECONDS = 10.0
FIRST_SECONDS, MOST_SECONDS = 1.0, 60.0
TRIES = 6
"""After which others in the queue are tried first."""
MIN_KEY_BYTES = 24
MAX_FILE_BYTES = 64 * 1024
NOTIFIED_UNTIL = "torchyard.dev/notified-until"
"""Annotation of the Lease: unix seconds."""
AGAIN = {408, 409, 425, 429}
"""Statuses below 500 after which a receiver wants the notification again."""
_PREFIX = "whsec_"
_log = logging.getLogger(__name__)


class Webhook(Struct, frozen=True):
    """Where notifications go, and the key of their signatures."""

    url: str
    key: bytes
    authority: str = ""
    """Certificates that vouch for the receiver, as PEM; empty: those of the system."""


class Wishes(Struct, frozen=True, kw_only=True):
    """What an installation wants to be notified of.

    Attributes:
        folder: with the files url, key and optionally ca.crt.
        states: to which a transition is sent.
        link: URL in each notification, with {namespace}, {name} and {cluster}.
        cluster: name of the cluster.
    """

    folder: Path
    states: tuple[State, ...]
    link: str = ""
    cluster: str = ""


def webhook(folder: Path) -> Webhook:
    """Read the files of a webhook.

    Raises:
        ValueError: one of them is missing or unusable.
    """
    url, key = (_text(folder / name) for name in ("url", "key"))
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username is not None:
        # The URL may be a secret itself.
        raise ValueError(f"{folder / 'url'}: this is not an http or https URL without a user; correct the Secret")
    try:
        raw = base64.b64decode(key.removeprefix(_PREFIX), validate=True) if key.startswith(_PREFIX) else key.encode()
    except binascii.Error:
        raise ValueError(f"{folder / 'key'}: {_PREFIX} is followed by base64; correct the Secret") from None
    if len(raw) < MIN_KEY_BYTES:
        raise ValueError(f"{folder / 'key'}: {len(raw)} bytes are too few; use at least {MIN_KEY_BYTES} random ones")
    authority = folder / "ca.crt"
    return Webhook(url, raw, _text(authority) if authority.exists() else "")


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(MAX_FILE_BYTES).strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ValueError(f"{path} cannot be read: {why}; the Secret of notifications needs url and key") from error


def signed(key: bytes, id_: str, seconds: int, body: bytes) -> Mapping[str, str]:
    """Return the headers of Standard Webhooks for a body (pure)."""
    content = b".".join((id_.encode(), str(seconds).encode(), body))
    signature = base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()
    return {"webhook-id": id_, "webhook-timestamp": str(seconds), "webhook-signature": f"v1,{signature}"}


class Notifier:
    """Sends notifications for the term of one leader.

    Args:
        wishes: of the installation.
        since: unix seconds before which everything was sent; None: not known, so nothing old is sent.
        clock: unix seconds.
        pause: seconds after the first failure; it doubles with each further one.
    """

    def __init__(
        self, wishes: Wishes, since: float | None, clock: Callable[[], float], *, pause: float = FIRST_SECONDS
    ) -> None:
        self.sent, self.dropped = 0, 0
        self._pause = pause
        self._wishes, self._clock = wishes, clock
        now = clock()
        self._since = now if since is None else max(since, now - MAX_AGE_SECONDS)
        self._caught_up = False
        self._waiting: deque[_Waiting] = deque()
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._added = asyncio.Event()
        self._problem, self._failures = "", 0

    @property
    def sent_until(self) -> float:
        """Unix seconds before which everything was sent or given up."""
        if not self._caught_up:
            return self._since
        oldest = min((each.time for each in self._waiting), default=self._clock())
        return max(self._since, min(oldest, self._clock() - MARGIN_SECONDS))

    def written(self, job: TrainingJob, status: TrainingJobStatus) -> None:
        """Queue the transitions that a newly written status proves."""
        for notification in new_notifications(job.metadata.uid, job.status, status):
            self._queue(job, notification)

    def catch_up(self, jobs: Iterable[TrainingJob]) -> None:
        """Queue what an earlier leader may not have sent."""
        unsent = [
            (job, each)
            for job in jobs
            for each in notifications_of(job.metadata.uid, job.status)
            if each.time >= self._since - 1.0  # times of a status are whole seconds
        ]
        for job, notification in sorted(unsent, key=lambda pair: pair[1].time):
            self._queue(job, notification)
        self._caught_up = True

    async def run(self) -> None:
        """Send until cancelled."""
        async with aiohttp.ClientSession(trust_env=True, timeout=aiohttp.ClientTimeout(total=TRY_SECONDS)) as session:
            while True:
                while not self._waiting:
                    self._added.clear()
                    await self._added.wait()
                await asyncio.sleep(await self._try(session, self._waiting[0]))

    def _queue(self, job: TrainingJob, notification: Notification) -> None:
        if notification.state not in self._wishes.states or notification.id in self._ids:
            return
        self._ids[notification.id] = None
        if len(self._ids) > 2 * MAX_WAITING:
            self._ids.popitem(last=False)
        if len(self._waiting) >= MAX_WAITING:
            self._drop(self._waiting[0], f"more than {MAX_WAITING} wait")
        event = cloud_event(job, notification, link=self._wishes.link, cluster=self._wishes.cluster)
        self._waiting.append(_Waiting(notification.id, notification.time, encoded(event)))
        self._added.set()

    async def _try(self, session: aiohttp.ClientSession, entry: "_Waiting") -> float:
        """Send one notification, which stays in the queue until it is sent; return the seconds until the next try."""
        problem, again = await self._post(session, entry.id, entry.body)
        if not problem:
            self.sent += 1
            self._failures, self._problem = 0, ""
            self._remove(entry)
            return 0.0
        if not again or self._clock() - entry.time > MAX_AGE_SECONDS:
            self._drop(entry, problem)
            return 0.0
        if problem != self._problem:
            _log.warning("notifications cannot be sent, retrying: %s", problem)
        self._problem = problem
        entry.tries += 1
        if entry.tries % TRIES == 0 and self._waiting and self._waiting[0] is entry:
            self._waiting.rotate(-1)  # the receiver may reject this one only
        delay = min(MOST_SECONDS, self._pause * 2.0**self._failures)
        self._failures = min(self._failures + 1, 16)
        return delay

    async def _post(self, session: aiohttp.ClientSession, id_: str, body: bytes) -> tuple[str, bool]:
        """Send one request; return what is wrong, and whether another try may help."""
        try:
            hook = await asyncio.to_thread(webhook, self._wishes.folder)  # they are replaced while this process runs
            context = ssl.create_default_context(cadata=hook.authority) if hook.authority else True
        except (ValueError, OSError) as error:  # an unreadable certificate, too
            return str(error), True
        headers = {"Content-Type": CONTENT_TYPE, **signed(hook.key, id_, int(time.time()), body)}
        try:
            post = session.post(hook.url, data=body, headers=headers, allow_redirects=False, ssl=context)
            async with post as answer:
                status = answer.status
        except Exception as error:  # noqa: BLE001 -- whatever a receiver does, jobs are reconciled
            return f"the receiver does not answer ({type(error).__name__})", True  # its text may name the URL
        if 200 <= status < 300:
            return "", False
        return f"the receiver answered {status}", status >= 500 or status in AGAIN

    def _drop(self, entry: "_Waiting", why: str) -> None:
        self.dropped += 1
        self._remove(entry)
        _log.warning("notification %s is dropped: %s", entry.id, why)

    def _remove(self, entry: "_Waiting") -> None:
        with contextlib.suppress(ValueError):  # it was dropped while it was being sent
            self._waiting.remove(entry)


class _Waiting(Struct, eq=False):
    """A notification in the queue."""

    id: str
    time: float
    body: bytes
    tries: int = 0


class Progress:
    """The annotation of the Lease from which the next leader knows what was sent.

    Attributes:
        former: the time that a former leader left, unix seconds; None: it left none, or it was edited.
        notifier: of this process, once it leads.
    """

    def __init__(self) -> None:
        self.former: float | None = None
        self.notifier: Notifier | None = None

    def published(self) -> str:
        """Return until when everything was sent; empty: no leader has sent anything."""
        until = self.notifier.sent_until if self.notifier is not None else self.former
        return "" if until is None else f"{until:.0f}"

    def read(self, text: str) -> None:
        """Take the time of a former leader."""
        try:
            seconds = float(text)
        except ValueError:
            seconds = 0.0
        self.former = seconds if 0 < seconds < 2**40 else None
