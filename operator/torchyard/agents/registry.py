"""The messages of `POST /v1/sync` and the registry of agents: their state and commands, the port `Agents`.

docs/protocol.md defines the messages. The frame (instance, sequence, state) is strict: a wrong type is an error of the
agent and answered with 400. What a user's program wrote (reports, failures, metrics) is not: `sanitize` drops what it
cannot read, so that an odd report of a script never makes its pod look silent.

State is level-triggered: every request carries all of it and every answer the whole desired command, so the next
message repairs a lost one. Nothing here blocks; only `long_poll` waits.
"""

import asyncio
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from torchyard.agents import sanitize
from torchyard.reconcile.actions import CommandAgent
from torchyard.reconcile.observed import Agent, AgentState

PROTOCOL = 1
MAX_BODY_BYTES = 16 * 1024
MAX_HOLD_SECONDS = 30.0
TICKS = 50
"""Number of ticks of an interval: long polls that expire within a tick end together."""


Text = Annotated[str, Meta(max_length=256, pattern="^[!-~]*$")]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]


class SyncRequest(Struct, frozen=True, kw_only=True, rename="camel"):
    """A request of an agent. Raw values may come from users' programs; `sanitize` reads them."""

    protocol: int
    instance: Annotated[str, Meta(min_length=1, max_length=128, pattern="^[ -~]*$")]
    sequence: Count
    state: AgentState
    wait: Seconds = 0.0
    revision: Count = 0
    round: Count = 0
    address: Text = ""
    master_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    procs: Annotated[int, Meta(ge=0, le=4096)] = 1
    content: Annotated[str, Meta(max_length=64)] = ""
    environment: Annotated[str, Meta(max_length=64)] = ""
    exit: dict[str, Any] | None = None
    reports: list[Raw] = []
    gpus: list[Raw] = []
    inputs: list[Any] = []
    codes: list[Any] = []
    requirements: dict[str, Any] | None = None
    notices: list[Any] = []


class SyncAnswer(Struct, frozen=True, kw_only=True):
    """The answer to an agent; `interval`: the longest time between two syncs, in seconds."""

    revision: int
    interval: float
    command: dict[str, Any]


class SupersededError(Exception):
    """A newer agent process has connected for this pod."""


@dataclass
class Counters:
    """Counters since the start of the process, for metrics and tests."""

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
    """State and command of one pod's agent."""

    agent: Agent | None = None
    sequence: int = -1
    former: deque[str] = field(default_factory=lambda: deque(maxlen=8))
    command: CommandAgent | None = None
    revision: int = 0
    obeyed: int = 0
    held: int = 0
    woke: float = float("-inf")
    polls: set[asyncio.Future[None]] = field(default_factory=set)
    allowed: float = float("-inf")  # theoretical arrival time of the generic cell rate algorithm


class AgentRegistry:
    """The agents, by pod uid.

    Args:
        clock: unix seconds, the operator's.
        interval: the longest time between two syncs of one agent, seconds.
        on_news: called with the pod uid when something changed that the plan acts on; changes of figures alone call
            it at most once per `interval` and pod.
    """

    def __init__(self, clock: Callable[[], float], *, interval: float, on_news: Callable[[str], None]) -> None:
        self.interval = interval
        self.counters = Counters()
        self._clock = clock
        self._on_news = on_news
        self._entries: defaultdict[str, _Entry] = defaultdict(_Entry)
        self._timers = Timers(interval / TICKS)

    @property
    def held(self) -> int:
        """Return the number of long polls in progress."""
        return sum(entry.held for entry in self._entries.values())

    # The port `Agents`.

    def of(self, pod_uids: Iterable[str]) -> Mapping[str, Agent]:
        """Return the agents of these pods that have connected, by pod uid."""
        found = {}
        for uid in pod_uids:
            entry = self._entries.get(uid)
            if entry is not None and entry.agent is not None:
                connected, current = self._connected(entry), entry.obeyed == entry.revision
                found[uid] = msgspec.structs.replace(entry.agent, connected=connected, current=current)
        return found

    def command(self, action: CommandAgent) -> None:
        """Set the desired command; if it differs from the last one, the revision grows and a long poll is answered."""
        entry = self._entries[action.pod_uid]
        if entry.command == action:
            return
        entry.command = action
        entry.revision += 1
        _release(entry)

    def commanded(self, pod_uids: Iterable[str]) -> Mapping[str, CommandAgent]:
        """Return the last command that this process gave to each of these agents."""
        entries = {uid: self._entries.get(uid) for uid in pod_uids}
        return {uid: entry.command for uid, entry in entries.items() if entry is not None and entry.command is not None}

    def forget(self, pod_uid: str) -> None:
        """Forget a pod that is gone; its long poll ends."""
        entry = self._entries.pop(pod_uid, None)
        if entry is not None:
            entry.command = None
            _release(entry)

    def clear(self) -> None:
        """Forget every pod; all long polls end.

        For a process that leads again: commands of its former term are void, and its revisions could equal those of
        the leader in between.
        """
        for pod_uid in tuple(self._entries):
            self.forget(pod_uid)

    # Requests of agents.

    def throttle(self, pod_uid: str, *, rate: float, burst: float) -> float:
        """Count one request of a pod; return 0, or the seconds until it may send one, which is then not counted.

        Args:
            pod_uid: of the pod.
            rate: requests a second.
            burst: requests at once, after a pause.
        """
        now, entry = time.monotonic(), self._entries[pod_uid]
        allowed = max(entry.allowed, now - burst / rate) + 1 / rate
        if allowed > now:
            return allowed - now
        entry.allowed = allowed
        return 0.0

    def record(self, pod_uid: str, request: SyncRequest) -> None:
        """Record the state in one request.

        Raises:
            SupersededError: another agent process of this pod is newer.
        """
        now = self._clock()
        self.counters.syncs += 1
        entry = self._entries[pod_uid]
        if request.instance in entry.former:
            self.counters.superseded += 1
            raise SupersededError(pod_uid)
        before, was_connected = entry.agent, self._connected(entry)
        if before is None or before.instance != request.instance:
            _register(entry, request)
        elif request.sequence <= entry.sequence:
            self.counters.stale += 1
            return
        was_current = entry.obeyed == entry.revision
        entry.sequence, entry.obeyed = request.sequence, request.revision
        entry.agent = agent = _agent(pod_uid, request, now)
        # The older long poll of this agent is obsolete: newer state has arrived.
        _release(entry)
        obeyed = not was_current and entry.obeyed == entry.revision
        matters = before is None or not was_connected or obeyed or _matters(before) != _matters(agent)
        if matters or now - entry.woke >= self.interval:
            entry.woke = now
            self.counters.news += matters
            self._on_news(pod_uid)

    async def long_poll(self, pod_uid: str, request: SyncRequest) -> None:
        """Wait until there is a command that the agent does not have, a newer request of it, or `wait` seconds pass.

        Raises:
            SupersededError: another agent process of this pod has connected.
        """
        entry = self._entries.get(pod_uid)
        if entry is None or entry.revision != request.revision or entry.sequence != request.sequence:
            return
        if request.state == "exiting":
            return  # the agent only needs the acknowledgement
        poll: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        alarm = self._timers.set(poll, min(request.wait, self.interval, MAX_HOLD_SECONDS))
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
        """Return the current answer for this pod's agent."""
        entry = self._entries.get(pod_uid) or _Entry()
        return SyncAnswer(revision=entry.revision, interval=self.interval, command=command_document(entry.command))

    def _connected(self, entry: _Entry) -> bool:
        return entry.agent is not None and (entry.held > 0 or self._clock() - entry.agent.seen < 2 * self.interval)


def decode(body: bytes) -> SyncRequest:
    """Decode a request.

    Raises:
        ValueError: the body is invalid; the text is a sentence for the agent's log.
    """
    try:
        request = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"The body is not a sync request: {error}.") from None
    if request.protocol != PROTOCOL:
        raise ValueError(
            f"`protocol` is {request.protocol}, this operator speaks {PROTOCOL}: use the agent of its version."
        )
    return request


def without_figures(request: SyncRequest) -> SyncRequest:
    """Return a request without figures, which are not kept during a long poll."""
    return msgspec.structs.replace(request, exit=None, reports=[], gpus=[], inputs=[], requirements=None, notices=[])


def command_document(command: CommandAgent | None) -> dict[str, Any]:
    """Return a command as sent to the agent: only the fields of its verb."""
    if command is None:
        return {"verb": "wait"}
    fields = {"verb": command.verb}
    return fields | {name: getattr(command, attribute) for name, attribute in _FIELDS[command.verb].items()}


_RUN = {
    "round": "round",
    "nodes": "nodes",
    "nodeRank": "node_rank",
    "masterAddress": "master_address",
    "masterPort": "master_port",
    "procs": "procs",
    "env": "env",
    "code": "bundle",
    "program": "program",
}
_FIELDS: dict[str, dict[str, str]] = {
    "wait": {},
    "run": _RUN,
    "stop": {"round": "round"},
    "save-and-stop": {"round": "round", "graceSeconds": "grace_seconds"},
    "exit": {"code": "code"},
}
_DECODER = msgspec.json.Decoder(SyncRequest)


def _register(entry: _Entry, request: SyncRequest) -> None:
    """Register an agent process: the first one of the pod, a restarted one, or one that a former operator knew."""
    if entry.agent is not None:
        # The command of the old process is void for the new one: it would join a round that the others have left.
        entry.former.append(entry.agent.instance)
        entry.command = None
    entry.sequence = -1
    # Revisions of a former operator process are unknown, so a new one must differ from the one the agent has.
    entry.revision = max(entry.revision, request.revision) + (1 if entry.command is not None else 0)
    if entry.former:
        _release(entry)


def _release(entry: _Entry) -> None:
    """Answer the long polls of an agent."""
    while entry.polls:
        wake(entry.polls.pop())


def _agent(pod_uid: str, request: SyncRequest, now: float) -> Agent:
    return Agent(
        pod_uid=pod_uid,
        instance=request.instance,
        state=request.state,
        seen=now,
        round=request.round,
        address=sanitize.line(request.address, 64),
        master_port=request.master_port,
        procs=request.procs,
        exit=sanitize.round_exit(request.exit),
        content=sanitize.line(request.content, 64),
        environment=sanitize.line(request.environment, 64),
        reports=sanitize.reports(request.reports),
        gpus=sanitize.gpus(request.gpus),
        inputs=sanitize.inputs(request.inputs),
        codes=sanitize.digests(request.codes),
        requirements=sanitize.requirements(request.requirements),
        notices=sanitize.notices(request.notices),
    )


def _matters(agent: Agent) -> tuple[Any, ...]:
    """Return the state without figures that change constantly: if two of these differ, the job is planned at once."""
    return (
        agent.instance,
        agent.state,
        agent.round,
        agent.address,
        agent.master_port if agent.state == "ready" else 0,
        agent.procs,
        agent.content,
        agent.codes,
        agent.exit,
        len(agent.gpus),
        tuple((each.name, each.state, each.revision, each.message) for each in agent.inputs),
        agent.requirements,
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


class Timers:
    """Futures by the time at which they are resolved: long polls that are due at about the same time end together.

    With one timer per poll the process would wake up for each, which costs more than the answer.

    Args:
        tick: seconds between two such times.
    """

    def __init__(self, tick: float) -> None:
        self._tick = tick
        self._due: dict[int, set[asyncio.Future[None]]] = {}

    def set(self, sleeper: asyncio.Future[None], seconds: float) -> set[asyncio.Future[None]]:
        """Resolve a future after `seconds`, at most a tick later; discard it from the result to cancel."""
        loop = asyncio.get_running_loop()
        moment = math.ceil((loop.time() + seconds) / self._tick)
        if moment not in self._due:
            self._due[moment] = set()
            loop.call_at(moment * self._tick, self._ring, moment)
        self._due[moment].add(sleeper)
        return self._due[moment]

    def _ring(self, moment: int) -> None:
        for sleeper in self._due.pop(moment):
            wake(sleeper)


def wake(sleeper: asyncio.Future[None]) -> None:
    """Resolve a future unless it is done."""
    if not sleeper.done():
        sleeper.set_result(None)
