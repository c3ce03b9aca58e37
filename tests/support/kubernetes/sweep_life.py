"""Lives of a sweep on virtual time, each drawn from a seed: what befalls calls, news, operators, trials and the spec.

    python -m tests.support.kubernetes.sweep_life FIRST LAST

plays the lives of these seeds and prints those that decided something else than the undisturbed life. With
PYTHONHASHSEED=0 a life is always the same.
"""

import asyncio
import functools
import json
import logging
import random
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.kubernetes.sweep_operators import DrawnSampler, Operators, Weather
from tests.support.kubernetes.sweep_world import KEY, World, noisy, percent_of
from tests.support.virtual_time import in_virtual_time

from torchyard.api.names import TRIAL

BEFALL = (*["preempted"] * 8, "deleted")
TICK_SECONDS = 20.0
MOST_SECONDS = 3 * 86400.0
FIRST_TRIALS, ALL_TRIALS = 9, 13


class Life(Operators):
    """One sweep, its operator, and what befalls both.

    Args:
        seed: of all that is drawn.
    """

    def __init__(self, seed: int) -> None:
        drawn = (weather := Weather(seed)).random("spec")
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
        self.lost = drawn.choice([0.0, 0.1])  # part of the parameters whose last value is not a finite number
        super().__init__(self._new(DrawnSampler(weather)), weather)
        self.world.changed.append(self._check)
        self._records: dict[str, dict[str, Any]] = {}
        self.broken = ""
        self._most = FIRST_TRIALS

    def _new(self, sampler: DrawnSampler) -> World:
        def score(lr: float, percent: int) -> float | None:
            return None if percent == 100 and lr * 1e3 % 1.0 < self.lost else noisy(lr, percent)

        world = World(score=score, sampler=sampler, **self.spec)
        world.fails, world.fail_at = self.fails, self.fail_at
        return world

    async def undisturbed(self) -> list[Any]:
        """What is decided where nothing happens, before and after the number of trials is raised."""
        world, found = self._new(DrawnSampler()), []
        for most in (FIRST_TRIALS, ALL_TRIALS):
            world.edit("trainingsweeps", KEY[1], lambda sweep, most=most: sweep["spec"].update(maxTrials=most))
            found.append(ending(await world.until_over(2000), world))
        return found

    async def disturbed(self) -> list[Any]:
        """The same of this life."""
        found = []
        async with asyncio.TaskGroup() as group:
            others = [group.create_task(each) for each in (self.run(), self._training(), self._people())]
            for most in (FIRST_TRIALS, ALL_TRIALS):
                self._most = most
                self._edit(maxTrials=most)
                await self._until(self._over)
                while len(self.world.trials()) < most and not self.broken:  # one was deleted at the very end
                    self._edit(maxFailed=self.world.sweep()["spec"]["maxFailed"] - 1)
                    await self._until(self._over)
                found.append(ending(self.world.sweep()["status"], self.world))
            for each in (*others, *self._late):
                each.cancel()
        return found

    async def _until(self, condition: Callable[[], bool]) -> None:
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
        """Check what holds at each moment, whatever the operator knows; the operator must not swallow the error."""
        jobs, spec = self.world.trials(), self.world.sweep()["spec"]
        records = {job["metadata"]["name"]: _decoded(job["metadata"]["annotations"][TRIAL]) for job in jobs}
        units = [unit["number"] for record in records.values() for unit in record["units"]]
        kept = {name: (record, self._records.get(name, record)) for name, record in records.items()}
        self._records = records
        busy = [job for job in jobs if is_busy(job) and job["metadata"]["name"] not in self.late_trials]
        holds = {
            "a trial has the name of its number": all(
                name == f"{KEY[1]}-{record['number']}" for name, record in records.items()
            ),
            "at most maxTrials": len(jobs) <= spec["maxTrials"],
            "at most parallelTrials at once": len(busy) <= spec["parallelTrials"],
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
        """Train trials at any pace; preempt and delete some of them."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._tick()
            for job in self.world.trials():
                name = job["metadata"]["name"]
                how = self.weather.draw(f"train {name}", BEFALL, 0.3)
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


@functools.lru_cache(1000)
def _decoded(record: str) -> dict[str, Any]:
    return json.loads(record)


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
    """Play the lives of these seeds and print what was in them, as JSON; return how many were different."""
    logging.disable()
    faults, kinds, wrong, promoted = Counter[str](), set[str](), 0, 0
    for seed in range(first, last):
        try:
            life, calm, wild = play(seed)
        except Exception as error:  # noqa: BLE001 -- whatever it is, the other seeds are played
            print(f"seed {seed}:", *traceback.format_exception(error), file=sys.stderr, flush=True)  # noqa: T201
            wrong += 1
            continue
        faults += life.weather.seen
        if calm != wild or life.broken:
            wrong += 1
            what = life.broken or "other decisions"
            print(f"seed {seed}: {what}", *life.notes[-40:], sep="\n", file=sys.stderr, flush=True)  # noqa: T201
            continue
        ends = [end for name, end in wild[-1].items() if name not in {"best", "status"}]
        kinds |= {outcomes[-1].kind for _, _, outcomes in ends}
        promoted += sum(len(units) > 1 for _, units, _ in ends)
    found = {"lives": last - first, "wrong": wrong, "promoted": promoted, "kinds": sorted(kinds), "faults": faults}
    print(json.dumps(found))  # noqa: T201
    return wrong


if __name__ == "__main__":
    sys.exit(bool(main(int(sys.argv[1]), int(sys.argv[2]))))
