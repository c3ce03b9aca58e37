"""Plans: each is a life, one call or event of it, and what befalls that. They run in lanes, side by side."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from plans.faults import KILLS, OF_NEWS, OF_WRITES, UNNOTICED, Fault, Recorder
from plans.lives import LIVES
from plans.stage import EndedError, Lane, Stage, lane
from plans.verdict import Outcome, Reference

from torchyard.cluster.kube.client import Api

QUIET_SECONDS = 0.3
LAST_NEWS_SECONDS = 2.0
TRIES = 2  # to reach a call or event: two that come at once may come in another order, or be told by a list
CONVERGES_WITHIN = 30.0
NOTICED_WITHIN = 95.0  # what nobody told is found by the next look at everything, which comes once a minute
REFERENCE_WITHIN = 60.0
MADE = ("create ",)


class Plan(NamedTuple):
    """One fault."""

    life: str
    target: str
    fault: str

    @property
    def name(self) -> str:
        return f"{self.life}: {self.target}: {self.fault}"


class Result(NamedTuple):
    """How a plan went. `wrong`: what was not as it should be, a sentence each."""

    plan: Plan
    seconds: float
    reached: bool
    wrong: list[str]

    @property
    def passed(self) -> bool:
        return self.reached and not self.wrong


class Suite:
    """References of lives, and plans against them.

    Args:
        evidence: folder for what a failing plan leaves.
    """

    def __init__(self, evidence: Path) -> None:
        self.references: dict[str, Reference] = {}
        self._evidence, self._number = evidence, 0

    async def learn(self, here: Lane, life: str) -> list[Plan]:
        """Play a life twice without a fault; all plans for it."""
        outcomes, recorders, seconds = [], [], 0.0
        for _ in range(2):
            begun = time.monotonic()
            recorder = Recorder(self._name(), here.past)
            stage = Stage(here, recorder.job, REFERENCE_WITHIN)
            async with self._played(here, recorder):
                await stage.begin(LIVES[life].spec)
                await LIVES[life].story(stage)
                seconds = max(seconds, time.monotonic() - begun)
                await _rests(stage, recorder, 1.5)
                outcomes.append(Outcome(stage.record, recorder))
            recorders.append(recorder)
            if broken := stage.record.broken + stage.record.needless():
                raise AssertionError(f"{life} without a fault: {broken}")
        one, other = recorders
        writes = [each for each in one.writes if each in other.writes]
        heard = [each for each in one.heard if each in other.heard]
        self.references[life] = Reference(*outcomes, writes, heard, seconds)
        plans = [Plan(life, target, fault) for target in writes for fault in OF_WRITES if _applies(target, fault)]
        return plans + [Plan(life, target, fault) for target in heard for fault in OF_NEWS]

    async def run(self, here: Lane, plan: Plan) -> Result:
        """Play a life with one fault in it."""
        reference, wrong, ended = self.references[plan.life], list[str](), ""
        fault = Fault(self._name(), here.past, plan.target, plan.fault, restart=here.restart, ask=here.proxy.ask)
        within = (NOTICED_WITHIN if plan.fault in UNNOTICED else CONVERGES_WITHIN) + reference.seconds
        stage, begun = Stage(here, fault.job, within), time.monotonic()
        async with self._played(here, fault):
            await stage.begin(LIVES[plan.life].spec)
            try:
                await LIVES[plan.life].story(stage)
                wrong += await _settles(stage, fault, reference, begun + within)
            except EndedError as error:
                ended = str(error)
            except (TimeoutError, KeyError) as error:
                wrong.append(f"{type(error).__name__}: {error}")
            if ended and not _is_due(plan, ended):
                wrong.append(ended)
            wrong += stage.record.broken + stage.record.needless() + here.kubelet.overlaps[fault.job]
            result = Result(plan, time.monotonic() - begun, fault.at is not None, wrong)
            if not result.passed:
                self._keep(here, stage, fault, result)
        if plan.fault in KILLS | UNNOTICED or not result.passed:
            if plan.fault not in KILLS:
                await here.restart()  # it knows too little, or too much
            await here.ready()
        return result

    def _name(self) -> str:
        self._number += 1
        return f"job{self._number}"

    @contextlib.asynccontextmanager
    async def _played(self, here: Lane, recorder: Recorder) -> AsyncIterator[None]:
        here.proxy.tamper = recorder
        try:
            yield
        finally:
            assert here.stage is not None
            await here.stage.delete_job()
            here.proxy.requests.clear()

    def _keep(self, here: Lane, stage: Stage, fault: Fault, result: Result) -> None:
        folder = self._evidence / "".join(each if each.isalnum() else "-" for each in result.plan.name)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "requests.log").write_text("\n".join(fault.log))
        (folder / "wrong.txt").write_text("\n".join([result.plan.name, fault.job, *result.wrong]))
        (folder / "statuses.json").write_text(json.dumps(stage.record.history, indent=1))
        (folder / "operator.log").write_bytes(here.operator.log.read_bytes()[-100_000:])
        for name, now in (("job", stage.record.job), ("pods", stage.record.pods)):
            (folder / f"{name}.json").write_text(json.dumps(now, indent=1))


def _applies(target: str, fault: str) -> bool:
    return fault != "exists" or target.startswith(MADE)


def _is_due(plan: Plan, ended: str) -> bool:
    """Whether this fault has to end a job: what the API server calls invalid stays so."""
    return plan.fault == "422" and plan.target.startswith("create ") and ended.startswith("Failed/PodInvalid")


async def _rests(stage: Stage, recorder: Recorder, seconds: float = QUIET_SECONDS) -> None:
    """Wait until nothing is written about the job for a moment and its pods came to their end."""
    while time.monotonic() - recorder.changed < seconds or any(  # noqa: ASYNC110 -- of two sources of news
        each["status"].get("phase") not in {"Succeeded", "Failed"} for each in stage.record.pods.values()
    ):
        await asyncio.sleep(0.05)


async def _settles(stage: Stage, fault: Fault, reference: Reference, deadline: float) -> list[str]:
    """What still differs from the reference when everything has come to rest, or had the time to."""
    while True:
        wrong = reference.differences(Outcome(stage.record, fault), unseen=fault.unseen)
        # Who plays last may be told after everything else is as it should be.
        quiet = time.monotonic() - fault.changed >= (QUIET_SECONDS if fault.at is not None else LAST_NEWS_SECONDS)
        if (quiet and not wrong) or time.monotonic() > deadline:
            return wrong
        await asyncio.sleep(0.05)


async def play(
    api: Api,
    *,
    node: str,
    tls: Path,
    folder: Path,
    lives: Iterable[str],
    lanes: int,
    chosen: Callable[[Plan], bool] = lambda _plan: True,
    every: int = 1,
    told: Callable[[Result | str], None] = lambda _news: None,
    evidence: Path,
) -> list[Result]:
    """Play lives and all chosen plans for them.

    Args:
        api: the server.
        node: whose pods are simulated.
        tls: folder of certificates.
        folder: for logs.
        lives: names of them.
        lanes: how many plans run side by side.
        chosen: says which plans.
        every: of the chosen ones, each so-many-th.
        told: told every result, and what was learned.
        evidence: folder for what failing plans leave.
    """
    suite, results = Suite(evidence), list[Result]()
    ready: asyncio.Queue[str | Plan] = asyncio.Queue()
    for life in lives:
        ready.put_nowait(life)
    pending = ready.qsize()
    seen = 0

    async def work(number: int) -> None:
        nonlocal pending, seen
        async with lane(api, node, tls, folder / f"lane-{number}") as here:
            while pending:
                try:
                    task = ready.get_nowait()
                except asyncio.QueueEmpty:
                    await asyncio.sleep(0.1)  # others may still find plans
                    continue
                try:
                    if isinstance(task, Plan):
                        for _ in range(TRIES):
                            result = await suite.run(here, task)
                            if result.reached or result.wrong:
                                break
                        results.append(result)
                        told(result)
                        continue
                    plans = [each for each in await suite.learn(here, task) if chosen(each)]
                    told(f"{task}: {suite.references[task].seconds:.1f} s, {len(plans)} plans")
                    for each in sorted(plans):
                        seen += 1
                        if seen % every == 0:
                            pending += 1
                            ready.put_nowait(each)
                finally:
                    pending -= 1

    async with asyncio.TaskGroup() as group:
        for number in range(lanes):
            group.create_task(work(number))
    return results
