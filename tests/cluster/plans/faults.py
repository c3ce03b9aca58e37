"""What can befall one call or one event, and the tamper that lets it happen exactly once."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fault_proxy import Answer, CutError, Request, Tamper
from plans import calls

RETRY_AFTER = 1
DELAY_SECONDS = 3.0
LATE_SECONDS = 1.5  # after whoever asked gave up, as packets that a broken network still delivers
COPIES = 3
BACK = 2  # events that an old list does not know yet
JSON = {"Content-Type": "application/json"}

REFUSALS: dict[str, tuple[int, str, dict[str, str]]] = {
    "exists": (409, "AlreadyExists", {}),
    "409": (409, "Conflict", {}),
    "410": (410, "Expired", {}),
    "422": (422, "Invalid", {}),
    "429": (429, "TooManyRequests", {"Retry-After": str(RETRY_AFTER)}),
    "500": (500, "InternalError", {}),
    "503": (503, "ServiceUnavailable", {}),
}
OF_WRITES = ("kill before", "kill after", "away", "drop", "late", "delay", *REFUSALS)
OF_NEWS = ("lose", "repeat", "swap", "gone", "stall", "old list", "kill old list")
UNNOTICED = frozenset({"lose", "stall"})  # nobody knows before the next look at everything
AFTERWARDS = frozenset({"kill after", "away", "drop"})
KILLS = frozenset({"kill before", "kill after", "away", "kill old list"})
AWAY_SECONDS = 2.5  # in which the job's life goes on


class Recorder(Tamper):
    """Names what passes, and knows what was done in the end.

    Args:
        job: that is looked at.
        past: collections as they were told, by path; kept over several runs.

    Attributes:
        writes, heard: names of what was sent and told about it, in order.
        done: what the server answered to the writes: their names and statuses.
        log: all of it, with times.
        changed: when something was last written.
    """

    def __init__(self, job: str, past: dict[str, "History"]) -> None:
        self.job, self.past = job, past
        self.writes: list[str] = []
        self.heard: list[str] = []
        self.done: list[tuple[str, int]] = []
        self.log: list[str] = []
        self.changed = time.monotonic()
        self._write, self._news, self._began = calls.Numbered(), calls.Numbered(), time.monotonic()
        self._names: dict[int, str] = {}

    async def before(self, request: Request) -> Answer | None:
        name = calls.write(request, self.job)
        if not name:
            return None
        self.changed = time.monotonic()
        numbered = self._write(name)
        self.writes.append(numbered)
        self.note(f"-> {numbered}")
        answer = await self._instead(numbered, request)
        if answer is None:
            self._names[id(request)] = numbered
        return answer

    async def after(self, request: Request, answer: Answer) -> Answer:
        name = self._names.pop(id(request), "")
        if name:
            self._did(name, answer)
            return await self._told(name, answer)
        if request.verb == "GET" and answer.status == 200 and _is_whole_list(request, answer):
            answer = self._listed(request, answer)
            self.past[request.path] = History(json.loads(answer.body))
        return answer

    async def line(self, request: Request, line: bytes | None) -> list[bytes]:
        if line is None:
            return self._released(request)
        event = json.loads(line)
        name = calls.news(event, self.job)
        if name:
            name = self._news(name)
            self.heard.append(name)
            self.note(f"   {name}")
        past = self.past.get(request.path)
        if past is not None:
            past.hear(event)
        return await self._heard(name, request, line)

    def note(self, what: str) -> None:
        self.log.append(f"{time.monotonic() - self._began:8.3f} {what}")

    def _did(self, name: str, answer: Answer) -> None:
        self.done.append((name.partition(" #")[0], answer.status))
        self.note(f"<- {name}: {answer.status}")

    # What a fault changes.

    async def _instead(self, _name: str, _request: Request) -> Answer | None:
        return None

    async def _told(self, _name: str, answer: Answer) -> Answer:
        return answer

    def _listed(self, _request: Request, answer: Answer) -> Answer:
        return answer

    async def _heard(self, _name: str, _request: Request, line: bytes) -> list[bytes]:
        return [line]

    def _released(self, _request: Request) -> list[bytes]:
        return []


class Fault(Recorder):
    """One fault that happens once: to the call or the event of this name.

    Args:
        job: that is looked at.
        past: collections as they were told, by path.
        target: name of a call or event of it.
        what: one of OF_WRITES or OF_NEWS.
        restart: kills the operator and starts another one in its place, so many seconds later.
        ask: passes a request on.

    Attributes:
        at: when it happened.
        unseen: whether the life goes on while no operator sees it.
    """

    def __init__(
        self,
        job: str,
        past: dict[str, "History"],
        target: str,
        what: str,
        *,
        restart: Callable[[float], Awaitable[None]],
        ask: Callable[[Request], Awaitable[Answer]],
    ) -> None:
        super().__init__(job, past)
        self.at: float | None = None
        self.unseen = what in KILLS | UNNOTICED
        self._target, self._what, self._restart, self._ask = target, what, restart, ask
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: dict[int, bytes] = {}  # by the watch they belong to
        self._stalled: Request | None = None
        self._old: dict[str, bytes] = {}  # lists that are told next, by path

    def _strikes(self, name: str) -> bool:
        if self.at is not None or name != self._target:
            return False
        self.at = time.monotonic()
        self.note(f"!! {self._what}")
        return True

    async def _instead(self, name: str, request: Request) -> Answer | None:
        if self._what in AFTERWARDS or not self._strikes(name):
            return None
        if self._what == "delay":
            await asyncio.sleep(DELAY_SECONDS)
            return None
        if self._what in REFUSALS:
            return refusal(self._what, request)
        if self._what == "late":
            self._tasks.add(asyncio.create_task(self._ask_later(name, request)))
        else:
            await self._restart(0.0)
        raise CutError

    async def _ask_later(self, name: str, request: Request) -> None:
        await asyncio.sleep(LATE_SECONDS)
        self._did(name, await self._ask(request))

    async def _told(self, name: str, answer: Answer) -> Answer:
        if self._what not in AFTERWARDS or not self._strikes(name):
            return answer
        if self._what in KILLS:
            await self._restart(AWAY_SECONDS if self._what == "away" else 0.0)
        raise CutError

    def _listed(self, request: Request, answer: Answer) -> Answer:
        old = self._old.pop(request.path, None)
        if old is None:
            return answer
        self.note(f"!! an old list of {request.path}")
        return answer._replace(body=old)

    async def _heard(self, name: str, request: Request, line: bytes) -> list[bytes]:
        if request is self._stalled:
            return []
        if not self._strikes(name):
            return [line, *self._released(request)]
        match self._what:
            case "repeat":
                return [line] * COPIES
            case "swap":
                self._held[id(request)] = line
            case "stall":
                self._stalled = request
            case "gone" | "old list":
                if self._what == "old list":
                    self._old[request.path] = self.past[request.path].document(BACK)
                return [GONE]
            case "kill old list":
                self._old = {path: each.document(BACK) for path, each in self.past.items()}
                await self._restart(0.0)
                raise CutError
        return []

    def _released(self, request: Request) -> list[bytes]:
        held = self._held.pop(id(request), None)
        return [held] if held is not None else []


class History:
    """A collection as it was after each of the events about it."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        now = {each["metadata"]["uid"]: each for each in document["items"]}
        self._then = [(document["metadata"]["resourceVersion"], now)]

    def hear(self, event: dict[str, Any]) -> None:
        """Take in an event of a watch."""
        if event["type"] not in {"ADDED", "MODIFIED", "DELETED"}:
            return
        meta = event["object"]["metadata"]
        now = {uid: each for uid, each in self._then[-1][1].items() if uid != meta["uid"]}
        if event["type"] != "DELETED":
            now[meta["uid"]] = event["object"]
        self._then = [*self._then[-BACK:], (meta["resourceVersion"], now)]

    def document(self, back: int) -> bytes:
        """The list that was served so many events ago."""
        version, items = self._then[max(0, len(self._then) - 1 - back)]
        metadata = {"resourceVersion": version}
        return json.dumps({**self._document, "metadata": metadata, "items": list(items.values())}).encode()


def _is_whole_list(request: Request, answer: Answer) -> bool:
    """Whether all objects of a collection were told, and everything of them."""
    return (
        request.path.rsplit("/", 1)[-1] in {"pods", "trainingjobs"}
        and b'"PartialObjectMetadataList"' not in answer.body
        and "job-uid%3D" not in request.query
        and "continue=" not in request.query
    )


def refusal(what: str, request: Request) -> Answer:
    """As an API server words it."""
    code, reason, headers = REFUSALS[what]
    message = f"injected: {request.verb} {request.path.rsplit('/', 1)[-1]} is refused with {code} {reason}"
    return Answer(code, _status(code, reason, message), JSON | headers)


def _status(code: int, reason: str, message: str) -> bytes:
    fields = {"code": code, "reason": reason, "message": message, "status": "Failure"}
    return json.dumps({"kind": "Status", "apiVersion": "v1", "metadata": {}, **fields}).encode()


GONE = b'{"type":"ERROR","object":' + _status(410, "Expired", "injected: too old resource version") + b"}\n"
