"""What passes between operators, agents and an API server: named, remembered, and where a fault is put in, changed."""

import json
import time
from collections import Counter
from typing import Any

from tests.cluster.plans import calls
from tests.cluster.plans.agent import Send
from tests.support.cluster.fault_proxy import Answer, Request, Tamper

BACK = 2  # events that an old list does not know yet


class Memory:
    """What is kept from one life to the next.

    Attributes:
        lists: collections as an operator received them, by its name and their path.
        leader: holder of the lease; empty: there is none.
        led: all holders since the last look.
    """

    def __init__(self) -> None:
        self.lists: dict[tuple[str, str], History] = {}
        self.leader = ""
        self.led: set[str] = set()

    def elect(self, name: str) -> None:
        """Record a new holder of the lease."""
        self.leader = name
        self.led |= {name} - {""}


class Recorder(Tamper):
    """Names what passes, and knows what was done in the end.

    Args:
        job: that is looked at.
        memory: kept over several runs.

    Attributes:
        asked, heard: names of what operators and agents asked, and of what an operator received, in order.
        done: what the server answered to the writes: their names and statuses.
        writers: how many of these each operator made.
        broken: writes of operators whose lease was another's.
        log: all of it, with times.
        changed: when something was last written.
    """

    def __init__(self, job: str, memory: Memory) -> None:
        self.job, self.memory = job, memory
        self.asked: list[str] = []
        self.heard: list[str] = []
        self.done: list[tuple[str, int]] = []
        self.writers = Counter[str]()
        self.broken: list[str] = []
        self.log: list[str] = []
        self.changed = time.monotonic()
        self._call, self._news, self._began = calls.Numbered(), calls.Numbered(), time.monotonic()
        self._names: dict[int, str] = {}

    def of(self, kind: str) -> list[str]:
        """Names of what was asked, of one kind of calls."""
        return [each for each in self.asked if calls.kind(each) == kind]

    # What passes.

    async def before(self, request: Request) -> Answer | None:
        name = calls.call(request, self.job)
        self._look_at_writer(name, request)
        if not name:
            return None
        if calls.kind(name) == "write":
            self.changed = time.monotonic()
        numbered = self._ask(name, request.by)
        answer = await self._instead(numbered, request)
        if answer is None:
            self._names[id(request)] = numbered
        return answer

    async def after(self, request: Request, answer: Answer) -> Answer:
        name = self._names.pop(id(request), "")
        if not name:
            return answer
        self._did(name, request, answer)
        whole = request.verb == "GET" and answer.status == 200 and _is_whole_list(request, answer)
        if whole:
            answer = self._listed(request, answer)
            self.memory.lists[request.by, request.path] = History(json.loads(answer.body))
        return await self._told(name, request, answer)

    async def line(self, request: Request, line: bytes | None) -> list[bytes]:
        if line is None:
            return self._released(request)
        event = json.loads(line)
        past = self.memory.lists.get((request.by, request.path))
        name = calls.news(event, self.job) if request.by == self.memory.leader else ""
        if name:
            name = self._news(name)
            self.heard.append(name)
            self.note(f"   {name}")
        if past is not None:
            past.hear(event)
        return await self._heard(name, request, line)

    async def said(self, pod: str, says: dict[str, Any], send: Send, to: str) -> dict[str, Any] | None:
        """An agent says something.

        Args:
            pod: its name.
            says: the message.
            send: sends it.
            to: where agents are sent now: URL of an intake.
        """
        if not pod.startswith(f"{self.job}-"):
            return await send(to)
        return await self._carried(self._ask(calls.sync(says, pod, self.job), "agent"), send, to)

    def note(self, what: str) -> None:
        self.log.append(f"{time.monotonic() - self._began:8.3f} {what}")

    def _ask(self, name: str, by: str) -> str:
        numbered = self._call(name)
        self.asked.append(numbered)
        self.note(f"-> {by} {numbered}")
        return numbered

    def _did(self, name: str, request: Request, answer: Answer) -> None:
        self.note(f"<- {request.by} {name}: {answer.status}")
        if calls.kind(name) == "write":
            self.done.append((calls.base(name), answer.status))
            self.writers[request.by] += 1
        if name.startswith("lease ") and request.verb != "GET" and answer.status < 300:
            self.memory.elect(json.loads(answer.body)["spec"].get("holderIdentity") or "")

    def _look_at_writer(self, name: str, request: Request) -> None:
        leader = self.memory.leader
        # Whoever stops takes its label off, last of all.
        if request.writes and leader not in {"", request.by} and name != "label off":
            self.broken.append(f"two writers: {request.by} sent {request.verb} {request.path}, {leader} has the lease")

    # What a fault changes.

    async def _instead(self, _name: str, _request: Request) -> Answer | None:
        return None

    async def _told(self, _name: str, _request: Request, answer: Answer) -> Answer:
        return answer

    async def _carried(self, _name: str, send: Send, to: str) -> dict[str, Any] | None:
        return await send(to)

    def _listed(self, _request: Request, answer: Answer) -> Answer:
        return answer

    async def _heard(self, _name: str, _request: Request, line: bytes) -> list[bytes]:
        return [line]

    def _released(self, _request: Request) -> list[bytes]:
        return []


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
    """Return whether all objects of a collection were sent, and everything of them."""
    return (
        request.path.rsplit("/", 1)[-1] in {"pods", "trainingjobs"}
        and b'"PartialObjectMetadataList"' not in answer.body
        and "job-uid%3D" not in request.query
        and "continue=" not in request.query
    )
