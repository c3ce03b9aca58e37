"""Lives of a sweep on virtual time, each drawn from a seed: what befalls calls, news, operators, trials and the spec.

    python -m tests.support.kubernetes.sweep_life FIRST LAST [HASHES]

plays the lives of these seeds and prints those that decided something else than the undisturbed life.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import random
import sys
import traceback
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tests.cluster.plans.refusals import refusal
from tests.support.cluster.fault_proxy import Request
from tests.support.kubernetes.sweep_world import KEY, NOW, World, noisy, percent_of
from tests.support.virtual_time import in_virtual_time

from torchyard.kubernetes.cache.jobs import Jobs
from torchyard.kubernetes.client import errors
from torchyard.kubernetes.client.errors import Gone, NotFound, Rejected
from torchyard.kubernetes.sweeps import Sweeps
from torchyard.kubernetes.trial_provenance import TrialProvenance
from torchyard.reconcile.ports import Unavailable
from torchyard.sweeps.resource import TRIAL
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
TICK_SECONDS = 20.0
MOST_SECONDS = 14 * 86400.0
FIRST_TRIALS, ALL_TRIALS = 9, 13


class Told(Sampler):
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
        self.storm = self.random("storm").choice([1800.0, 7200.0, 30000.0])
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


class Life:
    """One sweep, its operator, and what befalls both.

    Args:
        seed: of all that is drawn.
    """

    def __init__(self, seed: int) -> None:
        self.weather = Weather(seed)
        drawn = self.weather.random("spec")
        self.spec = {
            "algorithm": {"name": "random", "seed": seed},
            "objective": {"metric": "score", "goal": drawn.choice(["maximize", "minimize"])},
            "earlyStopping": {"name": drawn.choice(["asha", "asha", "hyperband", "median"]), "minTrials": 2},
            "parallelTrials": drawn.choice([1, 2, 3]),
            "maxTrials": FIRST_TRIALS,
            "maxFailed": 1000,
        }
        self.fails = {f"tune-{number}" for number in drawn.sample(range(ALL_TRIALS), drawn.choice([0, 1, 3]))}
        self.fail_at = drawn.choice([5, 60, 100])
        self.lost = drawn.choice([0.0, 0.1])  # part of the parameters whose last value is no finite number
        self.world = self._new(Told(self.weather))
        self.world.changed.append(self._check)
        self.notes: list[str] = []
        self._records: dict[str, dict[str, Any]] = {}
        self._down = asyncio.Event()
        self._late: set[asyncio.Task[Any]] = set()
        self._away = 0.0
        self._rejected: dict[str, float] = {}
        self.broken = ""
        self._most = FIRST_TRIALS

    def _new(self, sampler: Told) -> World:
        def score(lr: float, percent: int) -> float | None:
            return None if percent == 100 and lr * 1e3 % 1.0 < self.lost else noisy(lr, percent)

        world = World(score=score, sampler=sampler, **self.spec)
        world.fails, world.fail_at = self.fails, self.fail_at
        return world

    async def undisturbed(self) -> list[Any]:
        """What is decided where nothing happens, before and after the number of trials is raised."""
        world, found = self._new(Told()), []
        for most in (FIRST_TRIALS, ALL_TRIALS):
            world.edit("trainingsweeps", KEY[1], lambda sweep, most=most: sweep["spec"].update(maxTrials=most))
            found.append(ending(await world.until_over(2000), world))
        return found

    async def disturbed(self) -> list[Any]:
        """The same of this life."""
        found = []
        async with asyncio.TaskGroup() as group:
            others = [group.create_task(each) for each in (self._operators(), self._training(), self._people())]
            for most in (FIRST_TRIALS, ALL_TRIALS):
                self._most = most
                self._edit(maxTrials=most)
                await self._until(self._over)
                while len(self.world.trials()) < most and not self.broken:  # one was deleted at the very end
                    self._edit(maxFailed=self.world.sweep()["spec"]["maxFailed"] + 1)
                    await self._until(self._over)
                found.append(ending(self.world.sweep()["status"], self.world))
            for each in (*others, *self._late):
                each.cancel()
        return found

    def note(self, what: str) -> None:
        """Record what happened."""
        self.notes.append(f"{asyncio.get_running_loop().time():10.1f} {what}")

    async def _until(self, condition) -> None:
        async with asyncio.timeout(MOST_SECONDS):
            while not condition() and not self.broken:  # noqa: ASYNC110 -- on virtual time
                await asyncio.sleep(TICK_SECONDS)

    def _over(self) -> bool:
        sweep = self.world.sweep()
        status, generation = sweep.get("status", {}), sweep["metadata"]["generation"]
        at_rest = status.get("completionTime") is not None and status["observedGeneration"] == generation
        return at_rest and not sweep["spec"].get("suspend")

    def _edit(self, **fields: Any) -> None:
        self.note(f"spec {fields}")
        self.world.edit("trainingsweeps", KEY[1], lambda sweep: sweep["spec"].update(fields))

    def _check(self) -> None:
        """Check what holds at each moment, whatever the operator knows; it must not take a fault for one of its own."""
        jobs, spec = self.world.trials(), self.world.sweep()["spec"]
        records = {job["metadata"]["name"]: json.loads(job["metadata"]["annotations"][TRIAL]) for job in jobs}
        units = [unit["number"] for record in records.values() for unit in record["units"]]
        kept = {name: (record, self._records.get(name, record)) for name, record in records.items()}
        self._records = records
        holds = {
            "a trial has the name of its number": all(
                name == f"{KEY[1]}-{record['number']}" for name, record in records.items()
            ),
            "at most maxTrials": len(jobs) <= spec["maxTrials"],
            "at most parallelTrials at once": sum(is_busy(job) for job in jobs) <= spec["parallelTrials"],
            "one decision a unit": len(units) == len(set(units)),
            "parameters stay": all(new["parameters"] == old["parameters"] for new, old in kept.values()),
            "decisions stay": all(new["units"][: len(old["units"])] == old["units"] for new, old in kept.values()),
        }
        for what, held in holds.items():
            if not held and not self.broken:
                self.note(f"broken: {what}")
                self.broken = what

    # Trials and people.

    async def _training(self) -> None:
        """Let trials train at any pace, lose their pods, and be deleted by hand."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._tick()
            for job in self.world.trials():
                name = job["metadata"]["name"]
                how = self.weather.draw(f"train {name}", ("preempted", "preempted", "deleted"), 0.3)
                if how == "deleted" and self._most == FIRST_TRIALS:  # what is decided again knows the raised limit
                    self.note(f"{name} is deleted by hand")
                    self.world.delete("trainingjobs", name)
                elif how == "preempted" and job.get("status", {}).get("state") == "Running":
                    self.world.edit("trainingjobs", name, preempted)
                else:
                    percents = self.weather.random(f"pace {name}").choice([0, 4, 10, 35, 100])
                    self.world.edit("trainingjobs", name, lambda job, now=percents: self.world.advance(job, now))

    async def _people(self) -> None:
        """Suspend the sweep now and then."""
        while True:
            await asyncio.sleep(self.weather.random("people").choice([60.0, 600.0, 3000.0]))
            if self.weather.draw("suspend", ("suspend",), 3.0):
                self._edit(suspend=True)
                await asyncio.sleep(self.weather.random("suspended").choice([0.1, 5.0, 900.0]))
                self._edit(suspend=False)

    # Operators: one after the other.

    async def _operators(self) -> None:
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
        """One operator: lists, perhaps of former days, then watches, and compares every minute."""
        caches: dict[str, Any] = {}
        controller = None

        def changed(_key: Any) -> None:
            if controller is not None:
                controller.enqueue(KEY)

        caches = {"trainingjobs": Jobs(changed=changed), "trainingsweeps": Sweeps(changed=changed)}
        controller = self.world.controller(caches["trainingjobs"], caches["trainingsweeps"], self)  # type: ignore[arg-type]
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
        """Let something happen before the server has received a request, or instead."""
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
        with contextlib.suppress(NotFound, errors.Conflict, Rejected):
            await self.world.request(verb, path, body=body, params=params)
            self.note(f"late {verb} {path.rpartition('/')[2]} was done after all")

    async def _list(self, name: str, path: str, params: Any) -> bytes:
        how = self.weather.draw(name, OF_LISTS, 2.0)
        if how == "old":
            objects, self.world.objects = self.world.objects, self._as_of(self._listed_at(name))
            try:
                return await self.world.request("GET", path, params=params)
            finally:
                self.world.objects = objects
        if how:
            await self._before(how, "GET", path, None, params)
        return await self.world.request("GET", path, params=params)

    async def _killed(self) -> None:
        """Kill the process that asks: it receives no answer and executes nothing more."""
        self._away = self.weather.random("away").choice(AWAY_SECONDS)
        self._down.set()
        await asyncio.Event().wait()


def is_busy(job: Mapping[str, Any]) -> bool:
    """Whether a trial has processes, or is to have some."""
    state = job.get("status", {}).get("state", "")
    return state in {"Running", "Recovering"} or not (job["spec"].get("suspend") or state in {"Succeeded", "Failed"})


def preempted(job: dict[str, Any]) -> None:
    """Set a trial back to its last checkpoint, which its values at rungs are part of."""
    job["status"] |= {"state": "Recovering", "progress": {"percent": max(0.0, percent_of(job) - 3.0)}}


def ending(status: Mapping[str, Any], world: World) -> Any:
    """What a sweep came to: all decisions with their outcomes, and what its status says."""
    said = {name: status.get(name) for name in ("state", "reason", "trials", "best", "columns")}
    return {**world.decisions(), "status": said}


def play(seed: int) -> tuple[Life, list[Any], list[Any]]:
    """Play both lives of a seed; return the disturbed one and what both came to."""
    state = random.getstate()
    random.seed(seed)  # for the jitter of the queue
    found: list[Any] = []

    async def both() -> None:
        life = Life(seed)
        found.extend([life, await life.undisturbed(), await life.disturbed()])

    try:
        in_virtual_time(both)
    finally:
        random.setstate(state)
    return tuple(found)  # type: ignore[return-value]


def main(first: int, last: int) -> int:
    """Play the lives of these seeds; return how many were different."""
    logging.disable()
    seen, wrong = Counter[str](), 0
    for seed in range(first, last):
        try:
            life, calm, wild = play(seed)
        except Exception as error:  # noqa: BLE001 -- whatever it is, the other seeds are played
            print(f"seed {seed}:", *traceback.format_exception(error), flush=True)
            wrong += 1
            continue
        seen += life.weather.seen
        if calm != wild or life.broken:
            wrong += 1
            print(f"seed {seed}: {life.broken or 'other decisions'}", flush=True)
    print(f"{last - first} lives, {wrong} wrong; faults: {dict(seen)}")
    return wrong


if __name__ == "__main__":
    sys.exit(bool(main(int(sys.argv[1]), int(sys.argv[2]))))
