"""The book of what agents said and what they are told: the engine's port `Agents`, without any HTTP.

State is level-triggered: every request carries all of it, every answer the whole wished-for command, so a lost message
is repaired by the next one. Nothing here blocks; `hold` is the only thing that waits.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from torchyard.engine.actions import CommandAgent
from torchyard.engine.view import Agent
from torchyard.intake import figures, sanitise
from torchyard.intake.alarms import Alarms, wake
from torchyard.intake.wire import SyncAnswer, SyncRequest, command_document

MAX_HOLD_SECONDS = 30.0
TICKS = 50
"""An interval has so many moments at which polls end that were held to their end."""


class SupersededError(Exception):
    """A newer agent process speaks for this pod."""


@dataclass
class Counters:
    """What happened at the intake since it started, for metrics and for tests."""

    syncs: int = 0
    news: int = 0
    stale: int = 0
    superseded: int = 0
    refused: int = 0
    malformed: int = 0
    too_large: int = 0
    unavailable: int = 0
    limited: int = 0
    elsewhere: int = 0
    turned_away: int = 0
    failed_handshakes: int = 0


@dataclass
class _Entry:
    """One pod."""

    agent: Agent | None = None
    sequence: int = -1
    former: deque[str] = field(default_factory=lambda: deque(maxlen=8))
    command: CommandAgent | None = None
    revision: int = 0
    obeyed: int = 0
    held: int = 0
    woke: float = float("-inf")
    polls: set[asyncio.Future[None]] = field(default_factory=set)
    dump: tuple[int, str] | None = None


class Book:
    """Agents by pod uid.

    Args:
        clock: unix seconds, the operator's.
        interval: the longest time between two syncs of one agent, seconds.
        on_news: called with the pod uid when something that the plan acts on changed; changes of mere figures call it
            at most once an `interval` and pod.
    """

    def __init__(self, clock: Callable[[], float], *, interval: float, on_news: Callable[[str], None]) -> None:
        self.interval = interval
        self.counters = Counters()
        self._clock = clock
        self._on_news = on_news
        self._entries: dict[str, _Entry] = {}
        self._alarms = Alarms(interval / TICKS)

    @property
    def held(self) -> int:
        """Requests that wait for news just now."""
        return sum(entry.held for entry in self._entries.values())

    # What the engine asks.

    def of(self, pod_uids: Iterable[str]) -> Mapping[str, Agent]:
        """The agents of these pods that have called in, by pod uid."""
        found = {}
        for uid in pod_uids:
            entry = self._entries.get(uid)
            if entry is not None and entry.agent is not None:
                connected, current = self._connected(entry), entry.obeyed == entry.revision
                found[uid] = msgspec.structs.replace(entry.agent, connected=connected, current=current)
        return found

    def command(self, action: CommandAgent) -> None:
        """Set the wished-for command; only if it differs from the last one, the revision grows and a held poll ends."""
        entry = self._entries.setdefault(action.pod_uid, _Entry())
        if entry.command == action:
            return
        entry.command = action
        entry.revision += 1
        _release(entry)

    def commanded(self, pod_uids: Iterable[str]) -> Mapping[str, CommandAgent]:
        """The command each of these agents was last given by this process."""
        entries = {uid: self._entries.get(uid) for uid in pod_uids}
        return {uid: entry.command for uid, entry in entries.items() if entry is not None and entry.command is not None}

    def forget(self, pod_uid: str) -> None:
        """Drop a pod that is gone; a poll that it still holds ends."""
        entry = self._entries.pop(pod_uid, None)
        if entry is not None:
            entry.command = None
            _release(entry)

    def clear(self) -> None:
        """Forget every pod; polls that are held end.

        For a process that led and leads again: what it wished for in its former term means nothing, and its revisions
        could by chance be those that the leader in between gave out.
        """
        for pod_uid in tuple(self._entries):
            self.forget(pod_uid)

    def dump(self, pod_uid: str) -> tuple[int, str] | None:
        """Id and text of the newest stack dump this pod sent."""
        entry = self._entries.get(pod_uid)
        return entry.dump if entry is not None else None

    # What agents say.

    def hear(self, pod_uid: str, request: SyncRequest) -> None:
        """Take in one request.

        Raises:
            SupersededError: another agent process of this pod is newer.
        """
        now = self._clock()
        self.counters.syncs += 1
        entry = self._entries.setdefault(pod_uid, _Entry())
        if request.instance in entry.former:
            self.counters.superseded += 1
            raise SupersededError(pod_uid)
        before, was_connected = entry.agent, self._connected(entry)
        if before is None or before.instance != request.instance:
            _greet(entry, request)
        elif request.sequence <= entry.sequence:
            self.counters.stale += 1
            return
        was_current = entry.obeyed == entry.revision
        entry.sequence, entry.obeyed = request.sequence, request.revision
        entry.agent = agent = _agent(pod_uid, request, now)
        dumped = request.dump is not None and (entry.dump is None or request.dump.id != entry.dump[0])
        if request.dump is not None:
            entry.dump = (request.dump.id, sanitise.lines(request.dump.text, sanitise.MAX_DUMP))
        # The older poll of this agent has served its purpose: state came by another way.
        _release(entry)
        obeyed = not was_current and entry.obeyed == entry.revision
        matters = before is None or not was_connected or obeyed or dumped or _matters(before) != _matters(agent)
        if matters or now - entry.woke >= self.interval:
            entry.woke = now
            self.counters.news += matters
            self._on_news(pod_uid)

    async def hold(self, pod_uid: str, request: SyncRequest) -> None:
        """Wait until there is a command the agent has not got, a newer request of it, or `wait` seconds are over.

        Raises:
            SupersededError: another agent process of this pod called in meanwhile.
        """
        entry = self._entries.get(pod_uid)
        if entry is None or entry.revision != request.revision or entry.sequence != request.sequence:
            return
        if request.state == "exiting":
            return  # it wants to know that it was heard, and nothing else
        poll: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        alarm = self._alarms.set(poll, min(request.wait, self.interval, MAX_HOLD_SECONDS))
        entry.polls.add(poll)
        entry.held += 1
        try:
            await poll
        finally:
            alarm.discard(poll)
            entry.polls.discard(poll)
            entry.held -= 1
            if entry.agent is not None and entry.agent.instance == request.instance:
                entry.agent = msgspec.structs.replace(entry.agent, seen=self._clock())
        if request.instance in entry.former:
            raise SupersededError(pod_uid)

    def answer(self, pod_uid: str) -> SyncAnswer:
        """What this pod's agent is told now."""
        entry = self._entries.get(pod_uid) or _Entry()
        return SyncAnswer(revision=entry.revision, interval=self.interval, command=command_document(entry.command))

    def _connected(self, entry: _Entry) -> bool:
        return entry.agent is not None and (entry.held > 0 or self._clock() - entry.agent.seen < 2 * self.interval)


def _greet(entry: _Entry, request: SyncRequest) -> None:
    """Meet an agent process: the first one of the pod, one restarted in it, or an old one after our own restart."""
    if entry.agent is not None:
        # What was asked of the old process is not asked of the new one: it would join a round that the others left.
        entry.former.append(entry.agent.instance)
        entry.command = None
    entry.sequence = -1
    # Revisions of a former operator process mean nothing to us, so ours must differ from the one the agent has.
    entry.revision = max(entry.revision, request.revision) + (1 if entry.command is not None else 0)
    if entry.former:
        _release(entry)


def _release(entry: _Entry) -> None:
    """End the polls that are held."""
    while entry.polls:
        wake(entry.polls.pop())


def _agent(pod_uid: str, request: SyncRequest, now: float) -> Agent:
    return Agent(
        pod_uid=pod_uid,
        instance=request.instance,
        state=request.state,
        seen=now,
        round=request.round,
        address=sanitise.line(request.address, 64),
        master_port=request.master_port,
        procs=request.procs,
        exit=sanitise.round_exit(request.exit),
        content=sanitise.line(request.content, 64),
        reports=figures.reports(request.reports),
        gpus=figures.gpus(request.gpus),
        notices=sanitise.notices(request.notices),
    )


def _matters(agent: Agent) -> tuple[Any, ...]:
    """Everything but figures that change all the time: when two of these differ, the plan is asked at once."""
    return (
        agent.instance,
        agent.state,
        agent.round,
        agent.address,
        agent.master_port if agent.state == "ready" else 0,
        agent.procs,
        agent.content,
        agent.exit,
        len(agent.gpus),
        tuple(
            (
                report.round,
                report.rank,
                report.phase,
                report.step > 0,
                report.total_steps,
                (report.checkpoint or {}).get("step"),
                report.warnings,
            )
            for report in agent.reports
        ),
    )
