"""What stands in a simulated pod: speaks to the operator as an agent does, and ends its rounds as a test tells it."""

import asyncio
import contextlib
import functools
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from torchyard.agents.registry import PROTOCOL

LONGEST_POLL = 10.0
PAUSE_SECONDS = 0.25
ASKED_TO_STOP, SAVED = 143, 75
STEP = 5  # in every round, so that those that fail there make no progress

Send = Callable[[str], Awaitable[dict[str, Any] | None]]
"""Says something to the operator whose intake has this URL; the answer, None: there was none that is any good."""

Tell = Callable[[dict[str, Any], Send], Awaitable[dict[str, Any] | None]]
"""Has a message sent to where agents are to turn to; the answer."""


class Agent:
    """One agent.

    Args:
        session: to operators, trusting their authority.
        tell: sends its syncs.
        token: of the pod.
        address: that it tells the others.
        begins: called when workers of a round begin.

    Attributes:
        round: newest round it took up.
        trains: whether the workers of that round run.
    """

    def __init__(
        self, session: aiohttp.ClientSession, tell: Tell, token: str, address: str, begins: Callable[[], None]
    ) -> None:
        self.round, self.trains = 0, False
        self._begins = begins
        self._session, self._tell, self._token, self._address = session, tell, token, address
        self._instance, self._sequence, self._revision = secrets.token_hex(16), 0, 0
        self._exit: dict[str, Any] | None = None
        self._news = asyncio.Event()

    def finish(self, code: int, exception: str = "") -> None:
        """The workers of the round end by themselves."""
        self._end(code, failure={"rank": 0, "localRank": 0, "code": code, "exception": exception} if code else None)

    async def run(self) -> int:
        """Execute commands until `exit` comes; return the exit code."""
        while True:
            self._news.clear()
            sync, news = asyncio.create_task(self._sync()), asyncio.create_task(self._news.wait())
            try:
                await asyncio.wait({sync, news}, return_when=asyncio.FIRST_COMPLETED)
                if not sync.done():
                    continue  # what is new is said at once
                answer = sync.result()
            finally:
                for task in (sync, news):
                    task.cancel()
            if answer is None:
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            self._revision = answer["revision"]
            code = self._obey(answer["command"])
            if code is not None:
                return code

    def _obey(self, command: dict[str, Any]) -> int | None:
        match command["verb"]:
            case "run" if command["round"] > self.round:
                self.round, self.trains, self._exit = command["round"], True, None
                self._begins()
                self._news.set()
            case "stop" if self.trains and command["round"] >= self.round:
                self._end(ASKED_TO_STOP, asked=True)
            case "save-and-stop" if self.trains and command["round"] >= self.round:
                self._end(SAVED, asked=True, saved=True)
            case "exit":
                return int(command["code"])
        return None

    def _end(self, code: int, **fields: Any) -> None:
        told = {"saved": False, "asked": False, "failure": None, "lines": []}
        self._exit = {"round": self.round, "code": code, "time": time.time(), **told, **fields}
        self.trains = False
        self._news.set()

    async def _sync(self) -> dict[str, Any] | None:
        self._sequence += 1
        says = self._says()
        return await self._tell(says, functools.partial(self._send, says))

    async def _send(self, says: dict[str, Any], intake: str) -> dict[str, Any] | None:
        headers = {"Authorization": f"Bearer {self._token}"}
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
            limit = aiohttp.ClientTimeout(total=LONGEST_POLL + 5)
            url = f"{intake}/v1/sync"
            async with self._session.post(url, json=says, headers=headers, timeout=limit) as response:
                if response.status == 200:
                    return await response.json()
        return None

    def _says(self) -> dict[str, Any]:
        now = time.time()
        report = {"round": self.round, "rank": 0, "localRank": 0, "counter": STEP, "step": STEP, "phase": "step"}
        return {
            "protocol": PROTOCOL,
            "instance": self._instance,
            "sequence": self._sequence,
            "time": now,
            "wait": LONGEST_POLL if self._revision else 0.0,
            "revision": self._revision,
            "state": "running" if self.trains else "ready",
            "round": self.round,
            "address": self._address,
            "masterPort": 41233,
            "procs": 1,
            "exit": self._exit,
            "reports": [report | {"phaseSince": now, "time": now}] if self.trains else [],
        }
