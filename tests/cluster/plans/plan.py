"""Which plans there are: each is a life, and what befalls a call or an event of it."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.cluster.plans import calls
from tests.cluster.plans.faults import KILLS, SUPPLANTS, UNNOTICED, Strike

CONVERGES_WITHIN = 30.0
NOTICED_WITHIN = 95.0  # what nobody told is found by the next look at everything, which comes once a minute
LEASE_SECONDS = 20.0  # until another operator leads, and is found by agents
LONG_SECONDS = 16.0  # longer than any lease
BEYOND_SECONDS = 60.0  # as long as any job takes

OF_WRITES = (
    *("kill before", "kill after", "away", "cut", "drop", "half", "late", "delay"),
    *("exists", "409", "410", "422", "429", "500", "503"),
)
OF_NEWS = ("lose", "repeat", "swap", "gone", "stall", "old list", "kill old list")
OF_READS = ("410", "429", "500", "503", "cut", "torn", "half", "delay")
OF_REVIEWS = ("429", "500", "503", "cut", "half", "delay")
OF_SYNCS = ("cut", "drop", "hang up", "delay", "repeat", "elsewhere")
OF_LEASES = ("409", "429", "500", "503", "cut", "drop", "half", "slow")
HANDOVERS = ("stop", *sorted(SUPPLANTS))
OF_LABELS = ("409", "429", "500", "503", "cut", "drop", "half")
KINDS = ("write", "news", "read", "review", "sync", "lease", "label", "handover")

MADE = ("create ",)
# What is read when an operator starts, and who leads, is the same in every life.
STARTS = frozenset({"lose", "plain"})
READS_NODES = frozenset({"crowd"})  # all of them, which one operator does only every now and then
SWEPT = ("read trainingjobs metadata", "read pods metadata")
# Without keys of its own to judge tokens by, an operator has the API server review them.
NO_KEYS = Strike("read /.well-known/openid-configuration", "403", lasts=BEYOND_SECONDS)


class Plan(NamedTuple):
    """One fault, and what has to happen for its target to come.

    Attributes:
        reveals: whether it is played for what is read after it, of which further plans are made.
    """

    life: str
    strikes: tuple[Strike, ...]
    reveals: bool = False

    @property
    def name(self) -> str:
        return f"{self.life}: {', then '.join(map(str, self.strikes))}"

    @property
    def kind(self) -> str:
        """One of KINDS."""
        last = self.strikes[-1]
        if last.how in HANDOVERS:
            return "handover"
        return "news" if last.target.startswith(("pod ", "job ")) else calls.kind(last.target)

    @property
    def fault(self) -> str:
        return f"{self.kind}: {self.strikes[-1].fault}"

    @property
    def operators(self) -> int:
        """How many there have to be."""
        two = self.kind in {"handover", "label", "lease"} or self.strikes[-1].how == "elsewhere"
        return 2 if two else 1

    @property
    def waits(self) -> bool:
        """Whether the life goes on only when the fault has passed: it takes longer than the life."""
        return self.kind == "lease" or self._swept

    @property
    def starts(self) -> int:
        """How many operators start in the course of it."""
        return sum(each.how in KILLS for each in self.strikes)

    @property
    def seconds(self) -> float:
        """How long it may take, beside the life itself and the starts of operators."""
        unnoticed = self._swept or any(each.how in UNNOTICED for each in self.strikes)
        long = max(each.lasts for each in self.strikes if each.lasts < BEYOND_SECONDS)
        handed = LEASE_SECONDS if self.operators > 1 else 0.0
        return (NOTICED_WITHIN if unnoticed else CONVERGES_WITHIN) + long + handed

    @property
    def spoils(self) -> bool:
        """Whether an operator knows too little afterwards, or too much, or rests from an answer that cost much."""
        slow = (self.strikes[-1].target, self.strikes[-1].how) == ("read events", "delay")
        return slow or self._swept or any(each.how in UNNOTICED for each in self.strikes)

    @property
    def _swept(self) -> bool:
        return len(self.strikes) == 1 and self.strikes[-1].target in SWEPT


def plans(life: str, asked: list[str], heard: list[str], kinds: Iterable[str]) -> list[Plan]:
    """All for a life.

    Args:
        life: its name.
        asked: names of calls that come whenever it is played.
        heard: and of events.
        kinds: of plans; others are left out.
    """
    of = {kind: [each for each in asked if calls.kind(each) == kind] for kind in KINDS}
    # Where it runs, starts, or at least waits.
    known = ("status Running", "status Starting", "status ")
    middle = next(each for state in known for each in of["write"] if each.startswith(state))
    made: dict[str, Iterator[Plan]] = {
        "write": _each(life, of["write"], OF_WRITES),
        "news": _each(life, heard, OF_NEWS),
        "read": _reads(life, of, middle),
        "review": _reviews(life, of, middle),
        "sync": _each(life, [each for each in of["sync"] if each == calls.base(each)], OF_SYNCS),
        "lease": _leases(life, middle),
        "label": _labels(life, middle),
        "handover": _handovers(life, of["write"], middle),
    }
    return [plan for kind in kinds for plan in made[kind]]


def after(plan: Plan, reads: Iterable[str]) -> list[Plan]:
    """Plans of what was read after the fault of this one: after a new start any of it, else what is about the job."""
    anew = plan.strikes[-1].how in KILLS
    return [*_each(plan.life, (each for each in reads if anew or "/job" in each), OF_READS, before=plan.strikes)]


def _each(life: str, targets: Iterable[str], hows: Iterable[str], *, before: tuple[Strike, ...] = ()) -> Iterator[Plan]:
    for target in targets:
        for how in hows:
            if _applies(target, how):
                yield Plan(life, (*before, Strike(target, how)))


def _applies(target: str, how: str) -> bool:
    if how == "410":
        # Only a list has a version that can be too old, one page of it at a time.
        return not target.startswith("read ") or "/" not in target
    if how == "422" and " workload " in target:
        return False  # an object that a scheduler calls invalid is tried again after a minute: longer than a plan waits
    return how != "exists" or target.startswith(MADE)


def _reads(life: str, of: dict[str, list[str]], middle: str) -> Iterator[Plan]:
    """What the life itself brings, then what a start does, a write in doubt and a look at everything."""
    yield from _each(life, of["read"], OF_READS)
    for target in of["write"]:
        if target.startswith(("create ", "status ", "delete ")):
            for how in ("exists", "drop") if target.startswith(MADE) else ("409",):
                yield Plan(life, (Strike(target, how),), reveals=True)
    if life in STARTS | READS_NODES:
        yield Plan(life, (Strike(middle, "kill after"),), reveals=True)
    if life in STARTS:
        yield from _each(life, SWEPT, OF_READS)


def _reviews(life: str, of: dict[str, list[str]], middle: str) -> Iterator[Plan]:
    if of["sync"]:
        yield from _each(life, ("review", "review #2"), OF_REVIEWS, before=(Strike(middle, "kill after"), NO_KEYS))


def _leases(life: str, middle: str) -> Iterator[Plan]:
    if life not in STARTS:
        return
    stop, forget = Strike(middle, "stop"), Strike(middle, "no lease")
    targets = (
        *(("lease renew", ()), ("lease get", ())),
        *(("lease release", (stop,)), ("lease claim", (stop,))),
        *((f"lease {each}", (forget,)) for each in ("get", "create", "claim")),
    )
    for target, before in targets:
        for how in OF_LEASES:
            yield Plan(life, (*before, Strike(target, how)))
            if target not in {"lease create", "lease release"}:  # which are not made again
                yield Plan(life, (*before, Strike(target, how, times=3)))
            yield Plan(life, (*before, Strike(target, how, lasts=LONG_SECONDS)))


def _labels(life: str, middle: str) -> Iterator[Plan]:
    if life in STARTS:
        yield from _each(life, ("label on", "label off"), OF_LABELS, before=(Strike(middle, "stop"),))


def _handovers(life: str, writes: list[str], middle: str) -> Iterator[Plan]:
    yield from _each(life, writes, HANDOVERS)
    if life in STARTS:
        # One that is frozen while it still tries to have agents find it.
        before = Strike(middle, "kill after"), Strike("label on", "503", lasts=LONG_SECONDS)
        last = next(each for each in reversed(writes) if each.startswith("status "))
        yield from _each(life, (last,), sorted(SUPPLANTS), before=before)
