"""Operators of a sweep on virtual time, one after the other, and what befalls them, their calls and their news."""

import asyncio
import contextlib
import hashlib
import json
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tests.cluster.plans.refusals import refusal
from tests.support.cluster.fault_proxy import Request
from tests.support.kubernetes.sweep_world import KEY, NOW, World

from torchyard.app.sweep_controller import SweepController
from torchyard.kubernetes.cache.jobs import Jobs
from torchyard.kubernetes.client import errors
from torchyard.kubernetes.client.errors import Gone, NotFound, Rejected
from torchyard.kubernetes.sweeps import Sweeps
from torchyard.kubernetes.trial_provenance import TrialProvenance
from torchyard.reconcile.ports import Unavailable
from torchyard.sweeps.sampler import Sampler, SamplerError

OF_WRITES = (
    *("kill before", "kill after", "cut", "drop", "half", "late", "slow"),
    *("409", "410", "422", "429", "500", "503"),
)
OF_READS = ("kill before", "cut", "half", "slow", "410", "429", "500", "503")
AFTERWARDS = frozenset({"kill after", "drop", "half"})
OF_NEWS = ("lose", "repeat", "swap", "stall", "slow")
OF_LISTS = ("cut", "old", "410", "429", "500")
MOMENT_SECONDS = 60.0  # in which the API server rejects the same request once
LATE_SECONDS = 2.0  # after the client gave up
STALL_SECONDS = 90.0  # longer than the time between two comparisons
COMPARE_SECONDS = 55.0
AWAY_SECONDS = (0.0, 2.0, 700.0)


class DrawnSampler(Sampler):
    """Parameters that show what they were drawn from: another history gives other ones."""

    def __init__(self, weather: "Weather | None" = None) -> None:
        super().__init__()
        self._weather = weather

    async def suggest(self, spec, number, basis, history, past):
        if self._weather is not None:
            how = self._weather.draw(f"suggest {number}", ("fail", "slow"))
            if how:
                await asyncio.sleep(30.0)
            if how == "fail":
                raise SamplerError("the sampler ended with code -9")
        assert len(history) == basis
        known = [each.parameters for each in past if each.number < number]
        seen = repr((spec.algorithm.seed, number, [(each.trial, each.kind, each.value) for each in history], known[:1]))
        drawn = int.from_bytes(hashlib.sha256(seen.encode()).digest()[:4], "big") / 2**32
        return {"trainer.params.lr": round(0.7 * drawn, 6)}


class Weather:
    """Which faults a life has, and how often; none after its storm.

    A draw depends on the seed, its subject, and how often there was one of it, hence on no order of sets.
    """

    def __init__(self, seed: int) -> None:
        self._seed, self._counts = seed, Counter[str]()
        self.odds = self.random("odds").choice([0.03, 0.1, 0.25])
        self.storm = self.random("storm").choice([900.0, 3600.0, 7200.0])
        self.seen = Counter[str]()

    def random(self, subject: str) -> random.Random:
        """Randomness for this subject, other one each time."""
        self._counts[subject] += 1
        return random.Random(f"{self._seed} {subject} {self._counts[subject]}")

    def draw(self, subject: str, hows: tuple[str, ...], odds: float = 1.0) -> str:
        """What befalls it; empty: nothing."""
        drawn = self.random(subject)
        if asyncio.get_running_loop().time() > self.storm or drawn.random() > self.odds * odds:
            return ""
        how = drawn.choice(hows)
        self.seen[how] += 1
        return how


class Operators:
    """One operator after the other, each with new caches, and the way from them to the API server.

    Args:
        world: the API server, with a sweep.
        weather: faults.

    Attributes:
        notes: what happened, in order.
        late_trials: created by requests that had failed before; no operator can know of them in time.
    """

    def __init__(self, world: World, weather: Weather) -> None:
        self.world, self.weather = world, weather
        self.notes: list[str] = []
        self.late_trials: set[str] = set()
        self._down = asyncio.Event()
        self._late: set[asyncio.Task[Any]] = set()
        self._away = 0.0
        self._rejected: dict[str, float] = {}

    def note(self, what: str) -> None:
        """Record what happened."""
        self.notes.append(f"{asyncio.get_running_loop().time():10.1f} {what}")

    async def run(self) -> None:
        """Start a process, and another one when it was killed, until cancelled."""
        while True:
            self._tick()
            self.world.provenance = TrialProvenance(lambda: self.world.now)
            self._down.clear()
            process = asyncio.create_task(self._process())
            down = asyncio.create_task(self._down.wait())
            await asyncio.wait({process, down}, return_when=asyncio.FIRST_COMPLETED)
            process.cancel()
            down.cancel()
            (ended,) = await asyncio.gather(process, return_exceptions=True)
            assert isinstance(ended, asyncio.CancelledError), ended
            self.note(f"the operator was killed; the next one starts in {self._away:.0f} s")
            await asyncio.sleep(self._away)

    async def _process(self) -> None:
        """One operator."""
        jobs, sweeps = Jobs(), Sweeps()
        controller = self.world.controller(jobs, sweeps, self)  # type: ignore[arg-type]

        def changed(_key: Any, _after: float) -> None:
            controller.enqueue(KEY)

        with jobs.subscribed(changed), sweeps.subscribed(changed):
            await self._work({"trainingjobs": jobs, "trainingsweeps": sweeps}, controller)

    async def _work(self, caches: dict[str, Any], controller: SweepController) -> None:
        """List, perhaps an old state, then watch, and compare every minute."""
        since = self._listed_at("start")
        for (plural, _), document in self._as_of(since).items():
            caches[plural].record(None, document)
        async with asyncio.TaskGroup() as group:
            for plural, cache in caches.items():
                group.create_task(self._watch(plural, cache, since))
            for cache in caches.values():
                await self._asked(lambda cache=cache: cache.caught_up(self, KEY[:1]))
            group.create_task(controller.run())
            while True:
                await asyncio.sleep(COMPARE_SECONDS)
                for cache in caches.values():
                    with contextlib.suppress(Unavailable, Rejected, NotFound, Gone):
                        await cache.compare(self, KEY[:1])

    async def _asked(self, ask) -> None:
        while True:
            try:
                return await ask()
            except (Unavailable, Rejected, NotFound, Gone):
                await asyncio.sleep(1.0)

    async def _watch(self, plural: str, cache: Any, since: int) -> None:
        """Send events in order, except where a fault befalls them."""
        news = asyncio.Event()
        self.world.changed.append(news.set)
        held: list[tuple[str, str]] = []
        try:
            while True:
                while since < len(self.world.history):
                    kind, its, document = self.world.history[since]
                    since += 1
                    if its != plural:
                        continue
                    how = self.weather.draw(f"{plural} {since}", OF_NEWS)
                    if how in {"stall", "slow"}:
                        await asyncio.sleep(STALL_SECONDS if how == "stall" else 5.0)
                    if how == "swap" and not held:
                        held = [(kind, document)]
                        continue
                    for each in [] if how == "lose" else [(kind, document)] * (3 if how == "repeat" else 1) + held:
                        cache.record(each[0], json.loads(each[1]))
                    held = []
                news.clear()
                await news.wait()
        finally:
            self.world.changed.remove(news.set)

    def _as_of(self, moment: int) -> dict[tuple[str, str], dict[str, Any]]:
        """The objects as they were after so many events."""
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for kind, plural, text in self.world.history[:moment]:
            document = json.loads(text)
            found[plural, document["metadata"]["name"]] = document
            if kind == "DELETED":
                del found[plural, document["metadata"]["name"]]
        return found

    def _listed_at(self, what: str) -> int:
        """The moment of a list that may come from the server's cache."""
        most = len(self.world.history)
        old = self.weather.draw(f"age {what}", ("old",), 3.0)
        return max(1, most - self.weather.random("age").choice([1, 3, 10, 30])) if old else most

    # Calls: the API server, and the way to it.

    def _tick(self) -> None:
        self.world.now = NOW + asyncio.get_running_loop().time()

    async def request(
        self, verb: str, path: str, *, body: Any = None, params: Mapping[str, str] | None = None, **_: Any
    ) -> bytes:
        """Stand for the client of a process."""
        self._tick()
        await asyncio.sleep(0.01)
        name = f"{verb} {'/'.join(path.split('/')[6:])}"
        if verb == "GET" and len(path.split("/")) == 7 and not (params or {}).get("fieldSelector"):
            return await self._list(name, path, params)
        how = self.weather.draw(name, OF_READS if verb == "GET" else OF_WRITES)
        if how == "422" and self.world.now - self._rejected.get(name, 0.0) < MOMENT_SECONDS:
            how = ""
        if how:
            self.note(f"!! {how}: {name}")
        if how == "422":
            self._rejected[name] = self.world.now
        if how and how not in AFTERWARDS:
            await self._before(how, verb, path, body, params)
        answer = await self.world.request(verb, path, body=body, params=params)
        if verb != "GET":
            self.note(f"{name} {body.get('metadata', {}).get('name', '')} {json.dumps(body.get('spec', ''))[:80]}")
        if how == "kill after":
            await self._killed()
        if how in AFTERWARDS:
            raise Unavailable(f"{name}: half of an answer, or none")
        return answer

    async def _before(self, how: str, verb: str, path: str, body: Any, params: Any) -> None:
        """Change what happens to a request before the server receives it, or instead."""
        match how:
            case "cut":
                raise Unavailable("connection reset")
            case "slow":
                await asyncio.sleep(8.0)
                self._tick()
            case "late":
                late = asyncio.create_task(self._ask_later(verb, path, body, params))
                self._late.add(late)
                await asyncio.sleep(1.0)
                raise Unavailable("time-out")
            case "kill before":
                await self._killed()
            case _:
                refused = refusal(how, Request(0.0, verb, path))
                raise errors.refusal(
                    refused.status, refused.body, what=path, retry_after=refused.headers.get("Retry-After")
                )

    async def _ask_later(self, verb: str, path: str, body: Any, params: Any) -> None:
        await asyncio.sleep(1.0 + LATE_SECONDS)
        self._tick()
        if verb == "POST" and body["metadata"]["name"] not in {job["metadata"]["name"] for job in self.world.trials()}:
            self.late_trials.add(body["metadata"]["name"])
        with contextlib.suppress(NotFound, errors.Conflict, Rejected):
            await self.world.request(verb, path, body=body, params=params)
            self.note(f"late {verb} {path.rpartition('/')[2]} was done after all")

    async def _list(self, name: str, path: str, params: Any) -> bytes:
        how = self.weather.draw(name, OF_LISTS, 2.0)
        if how == "old" and (params or {}).get("resourceVersion") == "0":
            objects, self.world.objects = self.world.objects, self._as_of(self._listed_at(name))
            try:
                return await self.world.request("GET", path, params=params)
            finally:
                self.world.objects = objects
        if how and how != "old":
            await self._before(how, "GET", path, None, params)
        return await self.world.request("GET", path, params=params)

    async def _killed(self) -> None:
        """Kill the process that asks: it receives no answer and executes nothing more."""
        self._away = self.weather.random("away").choice(AWAY_SECONDS)
        self._down.set()
        await asyncio.Event().wait()
