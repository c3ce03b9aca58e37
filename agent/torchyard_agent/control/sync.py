"""The agent's end of `POST /v1/sync`: state up, command down, one request at a time, long-polled.

Runs in a thread. News cancels the pending poll and is sent at once on a new connection. While the operator does not
answer, the newest state is sent again with jittered exponential back-off, and training continues.
"""

from __future__ import annotations

import http.client
import json
import logging
import random
import socket
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Tuple

from torchyard_agent.control.payload import fit
from torchyard_agent.control.transport import base_path, connect

PROTOCOL = 1
_ANSWER_BYTES = 1 << 20
_CONNECT_SECONDS = 5.0
_SLACK_SECONDS = 10.0
_BACKOFF_FIRST, _BACKOFF_MOST = 0.2, 10.0
_FIRST_INTERVAL = 1.0
_OBEDIENCE_SECONDS = 1.0

logger = logging.getLogger(__name__)


class SupersededError(Exception):
    """Another instance of this pod is newer."""


class RefusedError(Exception):
    """The operator answered with a status that asks to retry later."""


class Sync:
    """Talks to the operator for one agent process.

    Args:
        url: base URL of the intake.
        token_file: bearer token, read again for every connection.
        ca_file: CA of the intake; None where it needs none.
        instance: random id of this agent process.
        wake: called from the thread whenever something arrived.
    """

    def __init__(
        self, url: str, token_file: Path, ca_file: Optional[Path], instance: str, wake: Callable[[], None]
    ) -> None:
        self._url, self._path = url, base_path(url) + "/v1/sync"
        self._token_file, self._ca_file = token_file, ca_file
        self._instance, self._wake = instance, wake
        self._connection: Optional[http.client.HTTPConnection] = None
        self._changed = threading.Condition()
        self._state: Dict[str, Any] = {}
        self._urgent = 0  # how often news was published; a request remembers which it carries
        self._sent = 0  # the news that the operator has answered
        self._polling: Optional[socket.socket] = None
        self._closed = False
        self._sequence = 0
        self._obeyed = 0
        self.revision = 0
        self.interval = _FIRST_INTERVAL
        self.command: Dict[str, Any] = {"verb": "wait"}
        self.superseded = False
        self.answered_at = time.monotonic()
        self.trouble: Optional[str] = None

    def start(self) -> None:
        """Start the thread; publish a state first."""
        threading.Thread(target=self._run, name="sync", daemon=True).start()

    def pending_command(self) -> Tuple[Dict[str, Any], int]:
        """Return the newest command and its revision."""
        with self._changed:
            return self.command, self.revision

    def publish(self, state: Dict[str, Any], *, obeyed: int, urgent: bool) -> None:
        """Send `state` to the operator: now if `urgent`, else with the next poll.

        Args:
            state: of the agent.
            obeyed: the newest command that it reflects.
            urgent: whether it is news.
        """
        with self._changed:
            self._state = state
            if obeyed != self._obeyed:
                self._obeyed = obeyed
                self._changed.notify_all()
            if urgent:
                self._urgent += 1
                _shut(self._polling)
                self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Wait until the newest state has been answered, at most `seconds`."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._sent < self._urgent and not self.superseded:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            _shut(self._polling)
            self._changed.notify_all()

    def _run(self) -> None:
        backoff = _BACKOFF_FIRST
        while not self._closed:
            started, news, revision = time.monotonic(), self._urgent, self.revision
            try:
                self._exchange(news)
            except SupersededError:
                self.superseded = True
                self._wake()
                return
            except (OSError, http.client.HTTPException, ValueError, RefusedError) as error:
                self._drop()
                if self._closed or self._urgent > news:
                    continue  # the agent itself cancelled the poll: there is news
                self._complain(f"{type(error).__name__}: {error}")
                self._pause(backoff * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
                backoff = min(backoff * 2, _BACKOFF_MOST)
                continue
            backoff = _BACKOFF_FIRST
            self.trouble = None
            self._wake()
            self._obedience()
            if self.revision == revision and time.monotonic() - started < self.interval / 2:
                self._pause(min(self.interval, 1.0))  # a server that does not hold requests must not be hammered

    def _pause(self, seconds: float) -> None:
        with self._changed:
            news = self._urgent
            self._changed.wait_for(lambda: self._closed or (self._urgent > news and self.trouble is None), seconds)

    def _obedience(self) -> None:
        """Wait until a new command was obeyed: the next poll reports its outcome, not the state before it."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._obeyed == self.revision, _OBEDIENCE_SECONDS)

    def _complain(self, text: str) -> None:
        if text != self.trouble:
            logger.warning("operator at %s: %s; training continues, retrying", self._url, text)
            self.trouble = text
            self._wake()

    def _exchange(self, news: int) -> None:
        connection = self._connect()
        with self._changed:
            self._sequence += 1
            # The first poll of an instance asks for an answer at once: it learns the interval from it.
            wait = self.interval if self._sequence > 1 else 0.0
            body = {
                "protocol": PROTOCOL,
                "instance": self._instance,
                "sequence": self._sequence,
                "wait": wait,
                "revision": self._obeyed,
                **self._state,
            }
        connection.timeout = wait + _SLACK_SECONDS
        if connection.sock is not None:
            connection.sock.settimeout(wait + _SLACK_SECONDS)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"}
        connection.request("POST", self._path, body=fit(body), headers=headers)
        with self._changed:
            if self._closed or self._urgent > news:
                raise ConnectionAbortedError("the agent has something new to report")
            self._polling = connection.sock
        try:
            response = connection.getresponse()
            data = response.read(_ANSWER_BYTES)
        finally:
            with self._changed:
                self._polling = None
        self._answered(response.status, data, news)

    def _answered(self, status: int, data: bytes, news: int) -> None:
        if status == http.client.CONFLICT and _error(data) == "superseded":
            raise SupersededError
        if status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            raise RefusedError(f"{status}: the token in {self._token_file} was rejected")
        if status != http.client.OK:
            raise RefusedError(f"{status}: {_error(data)}")
        answer = json.loads(data)
        command, revision, interval = answer["command"], answer["revision"], answer["interval"]
        if not isinstance(command, dict) or not isinstance(revision, int) or not isinstance(interval, (int, float)):
            raise ValueError("the answer must hold `command` (an object), `revision` and `interval` (numbers)")  # noqa: TRY004 - a bad answer
        with self._changed:
            self.command, self.revision = command, revision
            self.interval = min(max(float(interval), 0.05), 300.0)
            self.answered_at = time.monotonic()
            self._sent = max(self._sent, news)
            self._changed.notify_all()

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None:
            self._token = self._token_file.read_text(encoding="utf-8").strip()
            self._connection = connect(self._url, self._ca_file, _CONNECT_SECONDS)
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _error(data: bytes) -> str:
    try:
        return str(json.loads(data)["error"])
    except (ValueError, KeyError, TypeError):
        return data[:200].decode("utf-8", "replace")


def _shut(sock: Optional[socket.socket]) -> None:
    if sock is not None:
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
