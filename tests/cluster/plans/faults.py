"""What can befall a call or an event, and the tamper that lets it happen to exactly those of a plan."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol

from tests.cluster.plans import calls
from tests.cluster.plans.agent import Send
from tests.cluster.plans.recorder import BACK, Memory, Recorder
from tests.cluster.plans.refusals import GONE, REFUSALS, refusal
from tests.support.cluster.fault_proxy import Answer, CutError, Request

DELAY_SECONDS = 3.0
SLOW_SECONDS = 5.0  # longer than whoever renews a lease waits for the answer
LATE_SECONDS = 1.5  # after whoever asked gave up, as packets that a broken network still delivers
AWAY_SECONDS = 2.5  # in which the job's life goes on
HEARD_SECONDS = 0.5  # in which an operator has taken in what an agent said
ACTS_SECONDS = 2.0  # for a new leader to do what is to be done, if anything is
AGAIN_SECONDS = 16.0  # in which a call is repeated if it ever is
SUCCEEDS_SECONDS = 60.0
COPIES = 3
UNNOTICED = frozenset({"lose", "stall"})  # nobody knows before the next look at everything
AFTERWARDS = frozenset({"kill after", "away", "no lease", "drop", "torn", "half", "stop", "supplant after"})
KILLS = frozenset({"kill before", "kill after", "away", "no lease", "kill old list"})
SUPPLANTS = frozenset({"supplant", "supplant after", "supplant late"})


class Strike(NamedTuple):
    """One fault of a plan.

    Args:
        target: name of the first call or event that it befalls.
        how: what befalls it.
        times: to how many in a row of that name.
        lasts: or for how many seconds.
    """

    target: str
    how: str
    times: int = 1
    lasts: float = 0.0

    @property
    def fault(self) -> str:
        """What happens, and how often."""
        if self.lasts:
            return f"{self.how} for {self.lasts:.0f} s"
        return self.how if self.times == 1 else f"{self.how} x{self.times}"

    def __str__(self) -> str:
        """Both, as a plan is called."""
        return f"{self.target}: {self.fault}"


class House(Protocol):
    """What a fault does to operators, by their names."""

    async def restart(self, away: float = 0.0, *, lease: bool = True) -> None:
        """Kill the one that leads and start it again so many seconds later, without its lease if so wished."""

    def freeze(self, name: str) -> None:
        """Stop its process as it is."""

    def thaw(self, name: str) -> None:
        """Continue it."""

    def stop(self, name: str) -> None:
        """Ask it to end."""

    async def ask(self, request: Request) -> Answer:
        """Have the API server answer."""

    def elsewhere(self) -> str:
        """URL of the intake of one that does not lead."""


class Fault(Recorder):
    """Faults that happen once each, one after the other.

    Args:
        job: that is looked at.
        memory: kept over several runs.
        strikes: what happens; each waits for those before it.
        house: the operators.

    Attributes:
        reached: whether all of it happened.
        unseen: whether the life goes on while no operator sees it.
        read_afterwards: names of what was read since the last of it began.
    """

    def __init__(self, job: str, memory: Memory, strikes: Sequence[Strike], house: House) -> None:
        super().__init__(job, memory)
        self.unseen = any(each.how in KILLS | UNNOTICED for each in strikes)
        self._strikes, self._house = strikes, house
        self._times: list[list[float]] = [[] for _ in strikes]
        self._hows: dict[int, str] = {}  # of calls that something happens to when they are answered
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: dict[int, bytes] = {}  # by the watch they belong to
        self._stalled: Request | None = None
        self._old: dict[tuple[str, str], bytes] = {}  # lists that are told next, by whom and by path
        self._busy, self._mark = False, 0

    @property
    def reached(self) -> bool:
        return all(self._times)

    @property
    def played(self) -> bool:
        """Whether nothing more will happen."""
        return self.reached and not self._busy and all(map(self._is_spent, self._strikes, self._times))

    def _is_spent(self, strike: Strike, times: list[float]) -> bool:
        since = time.monotonic() - times[0]
        return since >= strike.lasts and (len(times) >= strike.times or since >= AGAIN_SECONDS)

    @property
    def read_afterwards(self) -> list[str]:
        return [each for each in self.asked[self._mark :] if calls.kind(each) == "read"]

    def _how(self, name: str) -> str:
        """What befalls the call or event of this name; empty: nothing."""
        now = time.monotonic()
        for strike, times in zip(self._strikes, self._times, strict=True):
            first = not times and name == strike.target
            more = times and calls.base(name) == calls.base(strike.target)
            if first or (more and (len(times) < strike.times or now - times[0] < strike.lasts)):
                if not times:  # what comes after it is counted anew
                    self._call, self._mark = calls.Numbered(), len(self.asked)
                times.append(now)
                self.note(f"!! {strike.how}: {name}")
                return strike.how
            if not times:
                break
        return ""

    # Calls.

    async def _instead(self, name: str, request: Request) -> Answer | None:
        how = self._how(name)
        if how in AFTERWARDS:
            self._hows[id(request)] = how
        elif how in REFUSALS:
            return refusal(how, request)
        elif how in {"delay", "slow"}:
            await asyncio.sleep(DELAY_SECONDS if how == "delay" else SLOW_SECONDS)
        elif how:
            await self._lose(how, name, request)
            raise CutError
        return None

    async def _lose(self, how: str, name: str, request: Request) -> None:
        """The server receives the request late or never, and the client gets no answer."""
        match how:
            case "late":
                self._tasks.add(asyncio.create_task(self._ask_later(name, request)))
            case "kill before":
                await self._house.restart()
            case "supplant":
                await self._supplant(request.by)
            case "supplant late":
                await self._supplant(request.by, lambda: self._ask_now(name, request))

    async def _ask_later(self, name: str, request: Request) -> None:
        await asyncio.sleep(LATE_SECONDS)
        await self._ask_now(name, request)

    async def _ask_now(self, name: str, request: Request) -> None:
        self._did(name, request, await self._house.ask(request))

    async def _told(self, _name: str, request: Request, answer: Answer) -> Answer:
        match self._hows.pop(id(request), ""):
            case "":
                return answer
            case "stop":
                self._house.stop(request.by)
                return answer
            case "half":
                return answer._replace(body=answer.body[: len(answer.body) // 2])
            case "torn":
                raise CutError(answer)
            case "kill after":
                await self._house.restart()
            case "away":
                await self._house.restart(AWAY_SECONDS)
            case "no lease":
                await self._house.restart(lease=False)
            case "supplant after":
                await self._supplant(request.by)
        raise CutError

    async def _supplant(self, name: str, meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
        """Freeze a leader until another one has led and acted."""
        self._busy, before = True, self._made_by_others(name)
        self._house.freeze(name)
        try:
            await _within(SUCCEEDS_SECONDS, lambda: self.memory.leader not in {"", name})
            self.note(f"{self.memory.leader} leads")
            await _within(ACTS_SECONDS, lambda: self._made_by_others(name) > before)
            if meanwhile is not None:
                await meanwhile()
        finally:
            self._house.thaw(name)
            self._busy = False

    def _made_by_others(self, name: str) -> int:
        return self.writers.total() - self.writers[name]

    # What agents say.

    async def _carried(self, name: str, send: Send, to: str) -> dict[str, Any] | None:
        match self._how(name):
            case "cut":
                return None
            case "drop":
                await send(to)
                return None
            case "hang up":
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(send(to), HEARD_SECONDS)
                return None
            case "delay":
                await asyncio.sleep(DELAY_SECONDS)
            case "repeat":
                await send(to)
            case "elsewhere":
                return await send(self._house.elsewhere())
        return await send(to)

    # Lists and watches.

    def _listed(self, request: Request, answer: Answer) -> Answer:
        old = self._old.pop((request.by, request.path), None)
        if old is None:
            return answer
        self.note(f"!! an old list of {request.path}")
        return answer._replace(body=old)

    async def _heard(self, name: str, request: Request, line: bytes) -> list[bytes]:
        if request is self._stalled:
            return []
        how, past = self._how(name) if name else "", self.memory.lists
        match how:
            case "":
                return [line, *self._released(request)]
            case "repeat":
                return [line] * COPIES
            case "swap":
                self._held[id(request)] = line
            case "stall":
                self._stalled = request
            case "gone":
                return [GONE]
            case "old list":
                where = request.by, request.path
                self._old[where] = past[where].document(BACK)
                return [GONE]
            case "kill old list":
                self._old = {where: each.document(BACK) for where, each in past.items()}
                await self._house.restart()
                raise CutError
        return []

    def _released(self, request: Request) -> list[bytes]:
        held = self._held.pop(id(request), None)
        return [held] if held is not None else []


async def _within(seconds: float, condition: Callable[[], bool]) -> None:
    """Wait until it is so, or the time is over: the outcome is judged in any case."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 -- of several sources of news
                await asyncio.sleep(0.02)
