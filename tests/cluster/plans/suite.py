"""Plays one plan after the other and judges them."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.cluster.plans.faults import Fault
from tests.cluster.plans.lane import Lane
from tests.cluster.plans.lives import LIVES
from tests.cluster.plans.outcome import Outcome, Reference
from tests.cluster.plans.plan import Plan, plans
from tests.cluster.plans.recorder import Recorder
from tests.cluster.plans.stage import EndedError, Stage

QUIET_SECONDS = 0.3
LAST_NEWS_SECONDS = 2.0
REFERENCE_WITHIN = 60.0


class Result(NamedTuple):
    """How a plan went. `wrong`: what was not as it should be, a sentence each."""

    plan: Plan
    seconds: float
    reached: bool
    wrong: list[str]
    reads: Sequence[str] = ()  # what was read after the fault

    @property
    def passed(self) -> bool:
        return self.reached and not self.wrong


class Suite:
    """References of lives, and plans against them.

    Args:
        evidence: folder for what a failing plan leaves.
        kinds: of plans.
    """

    def __init__(self, evidence: Path, kinds: Iterable[str]) -> None:
        self.references: dict[str, Reference] = {}
        self._evidence, self._kinds, self._number = evidence, tuple(kinds), 0

    async def learn(self, here: Lane, life: str) -> list[Plan]:
        """Play a life twice without a fault; all plans for it."""
        outcomes, recorders, seconds = [], [], 0.0
        for _ in range(2):
            await here.cast(1)
            begun = time.monotonic()
            recorder = Recorder(self._name(), here.memory)
            stage = Stage(here, recorder.job, REFERENCE_WITHIN)
            async with self._played(here, recorder):
                await _live(stage, life)
                seconds = max(seconds, time.monotonic() - begun)
                await _rests(stage, recorder, 1.5)
                outcomes.append(Outcome(stage.record, recorder))
            recorders.append(recorder)
            if broken := stage.record.broken + stage.record.needless() + recorder.broken:
                raise AssertionError(f"{life} without a fault: {broken}")
        one, other = recorders
        self.references[life] = Reference(*outcomes, seconds)
        asked = [each for each in one.asked if each in other.asked]
        heard = [each for each in one.heard if each in other.heard]
        return plans(life, asked, heard, self._kinds)

    async def run(self, here: Lane, plan: Plan) -> Result:
        """Play a life with what the plan has in it."""
        await here.cast(plan.operators)
        reference, wrong, ended = self.references[plan.life], list[str](), ""
        fault = Fault(self._name(), here.memory, plan.strikes, here)
        # On a busy machine the next start may take longer than those before.
        within, begun = reference.seconds + plan.seconds + 3 * plan.starts * here.starting, time.monotonic()
        stage = Stage(here, fault.job, within, lambda: fault.played or not plan.waits)
        async with self._played(here, fault):
            try:
                await _live(stage, plan.life)
                wrong += await _settles(stage, plan, fault, reference, begun + within)
                wrong += await here.deposed()
                wrong += reference.differences(Outcome(stage.record, fault), unseen=fault.unseen) if not wrong else []
            except EndedError as error:
                ended = str(error)
            except (TimeoutError, KeyError) as error:
                wrong.append(f"{type(error).__name__}: {error}")
            if ended and not _is_due(plan, ended):
                wrong.append(ended)
            wrong += stage.record.broken + stage.record.needless() + fault.broken + here.kubelet.overlaps[fault.job]
            wrong = _without_late_pod(plan, reference, Outcome(stage.record, fault), wrong)
            result = Result(plan, time.monotonic() - begun, fault.reached, wrong, fault.read_afterwards)
            if not result.passed:
                self._keep(here, stage, fault, result)
        if plan.spoils or not result.passed:
            await here.renew()
        return result

    def _name(self) -> str:
        self._number += 1
        return f"job{self._number}"

    @contextlib.asynccontextmanager
    async def _played(self, here: Lane, recorder: Recorder) -> AsyncIterator[None]:
        here.record(recorder)
        try:
            yield
        finally:
            assert here.stage is not None
            await here.stage.delete_job()

    def _keep(self, here: Lane, stage: Stage, fault: Fault, result: Result) -> None:
        folder = self._evidence / "".join(each if each.isalnum() else "-" for each in result.plan.name)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "requests.log").write_text("\n".join(fault.log))
        (folder / "wrong.txt").write_text("\n".join([result.plan.name, fault.job, *result.wrong]))
        (folder / "statuses.json").write_text(json.dumps(stage.record.history, indent=1))
        for name, log in here.logs.items():
            (folder / f"{name}.log").write_bytes(log.read_bytes()[-100_000:])
        for name, now in (("job", stage.record.job), ("pods", stage.record.pods)):
            (folder / f"{name}.json").write_text(json.dumps(now, indent=1))


async def _live(stage: Stage, life: str) -> None:
    await stage.begin(LIVES[life].spec, slow=LIVES[life].slow)
    await LIVES[life].story(stage)


def _is_due(plan: Plan, ended: str) -> bool:
    """Whether this fault has to end a job: what the API server calls invalid stays so."""
    last = plan.strikes[-1]
    return last.how == "422" and last.target.startswith("create ") and ended.startswith("Failed/PodInvalid")


def _without_late_pod(plan: Plan, reference: Reference, outcome: Outcome, wrong: list[str]) -> list[str]:
    """What is wrong, but for a pod that a late call makes when its name is free again: that cannot be prevented.

    It has to be sent away, or to come to its end with the job if that is over by then.
    """
    last = plan.strikes[-1]
    pod = last.target.removeprefix("create pod ")
    if last.how != "late" or pod == last.target or outcome.created[pod] != reference.one.created[pod] + 1:
        return wrong
    phases = json.loads(outcome.end["pods"])
    sent_away = outcome.created[pod] == outcome.deleted[pod]
    if not sent_away and phases.pop(pod, "") not in {"Succeeded", "Failed"}:
        return wrong
    job_pod = pod.replace("job", outcome.job, 1)
    excused = (f"{pod}: 2 instead of 1", "I1: ", f"I2: {job_pod} was created ")
    if json.dumps(phases, sort_keys=True) == reference.one.end["pods"]:
        excused += ("pods: ",)
    return [each for each in wrong if not each.startswith(excused)]


async def _rests(stage: Stage, recorder: Recorder, seconds: float = QUIET_SECONDS) -> None:
    """Wait until nothing is written about the job for a moment and its pods came to their end."""
    while time.monotonic() - recorder.changed < seconds or any(  # noqa: ASYNC110 -- of two sources of news
        each["status"].get("phase") not in {"Succeeded", "Failed"} for each in stage.record.pods.values()
    ):
        await asyncio.sleep(0.05)


async def _settles(stage: Stage, plan: Plan, fault: Fault, reference: Reference, deadline: float) -> list[str]:
    """What still differs from the reference when everything has come to rest, or had the time to."""
    while True:
        outcome = Outcome(stage.record, fault)
        wrong = _without_late_pod(plan, reference, outcome, reference.differences(outcome, unseen=fault.unseen))
        # Who plays last may be told after everything else is as it should be.
        quiet = time.monotonic() - fault.changed >= (QUIET_SECONDS if fault.reached else LAST_NEWS_SECONDS)
        over = fault.played or not fault.reached
        if (quiet and over and not wrong) or time.monotonic() > deadline:
            return wrong
        await asyncio.sleep(0.05)
