"""The control loop of sweeps: take a key, read sweep and trials from the caches, plan, write.

Nothing is kept between two visits but the last problem of a sweep, and which specs of trials were compared. Parameters
come from a process of their own (`sweeps.sampler`); while it thinks, other sweeps and all jobs go on.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from torchyard.api.resource import TrainingJob
from torchyard.api.validation.parse import InvalidJob
from torchyard.api.values import Time
from torchyard.kubernetes.client.api import Api
from torchyard.kubernetes.client.errors import Gone, NotFound, Rejected
from torchyard.kubernetes.sweeps import (
    NameTakenError,
    PredecessorError,
    Sweeps,
    Trials,
    delete_sweep,
    replace_sweep_status,
)
from torchyard.reconcile.loop.controller import Closed, WorkQueue
from torchyard.reconcile.ports import Conflict, Key, Unavailable
from torchyard.sweeps.decide import Action, Create, Finish, Promote, Resume, Stop
from torchyard.sweeps.events import SweepEvent, of_change, of_write
from torchyard.sweeps.outcomes import Trial
from torchyard.sweeps.parse import InvalidSweep
from torchyard.sweeps.plan import Problem, Suspend, SweepView, invalid, plan
from torchyard.sweeps.resource import TrainingSweep, TrialRecord, trial_name
from torchyard.sweeps.sampler import Sampler, SamplerError
from torchyard.sweeps.sampling import MissingLibraryError, past_before
from torchyard.sweeps.status import SweepReason, TrainingSweepStatus
from torchyard.sweeps.trials import edited_fields, fingerprint, trial_of

WORKERS = 16
SUGGEST_SECONDS = 120.0
NICENESS = 10
"""Of the sampler: the operator, which answers agents, comes first."""
RESYNC_SECONDS = 300.0
DEBOUNCE_SECONDS = 0.05
MAX_COMPARED = 16384
_log = logging.getLogger(__name__)
_decisions = logging.getLogger("torchyard.decisions")


class SweepController:
    """Controls all sweeps of the cluster, from one event loop.

    Args:
        api: for writes, on this side of the lease's fence.
        sweeps: cache of sweeps.
        trials: of those.
        record: called with events for people; returns at once.
        clock: unix seconds.
        sampler: suggests parameters; None: a new process does.
    """

    def __init__(
        self,
        api: Api,
        sweeps: Sweeps,
        trials: Trials,
        *,
        record: Callable[[TrainingSweep, SweepEvent], None],
        clock: Callable[[], float] = time.time,
        sampler: Sampler | None = None,
    ) -> None:
        self._api, self._sweeps, self._trials, self._record, self._clock = api, sweeps, trials, record, clock
        self._sampler = sampler or Sampler(limit=SUGGEST_SECONDS, niceness=NICENESS)
        self._queue: WorkQueue[Key] = WorkQueue()
        self._problems: dict[Key, Problem] = {}
        self._edits = Edits()

    def enqueue(self, key: Key, after: float = DEBOUNCE_SECONDS) -> None:
        """Queue a visit of a sweep after `after` seconds, to debounce bursts of events."""
        self._queue.add_after(key, after)

    @property
    def depth(self) -> int:
        """Return the number of queued sweeps."""
        return len(self._queue)

    async def run(self) -> None:
        """Work until cancelled or closed."""
        for key in self._sweeps.keys():  # noqa: SIM118 -- it is no mapping
            self._queue.add(key)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(WORKERS):
                    group.create_task(self._work())
        finally:
            await self._sampler.close()

    async def close(self) -> None:
        """Take no more keys; `run` ends after the visits in progress."""
        self._queue.close(drop=True)

    async def visit(self, key: Key) -> float | None:
        """Visit one sweep once; return the seconds until the next time, None: it is gone.

        Raises:
            Conflict, Unavailable, Rejected, NotFound, Gone: a write failed; the next visit goes on.
        """
        sweep = self._sweeps.find(key)
        if sweep is None or sweep.metadata.deletion_timestamp is not None:
            self._problems.pop(key, None)
            self._trials.forget(key)
            return None
        if isinstance(sweep, InvalidSweep):
            fault = Problem(SweepReason.INVALID_SPEC, sweep.problem)
            after = invalid(sweep.status, fault, generation=sweep.metadata.generation, now=self._clock())
            await self._write(sweep, after)
            return RESYNC_SECONDS
        await self._trials.settle(sweep)
        jobs = self._trials.of(sweep)
        known = await _read(sweep, jobs, self._edits)
        problem = known if isinstance(known, Problem) else self._problems.get(key)
        trials = [] if isinstance(known, Problem) else known
        decided = plan(SweepView(sweep=sweep, trials=trials, now=self._clock(), problem=problem))
        if decided.delete:
            await delete_sweep(self._api, sweep)
            return None
        if any(not isinstance(action, Finish) for action in decided.actions):
            signed = await self._with_our_key(sweep)
            if signed is not sweep:
                sweep = signed
                decided = plan(SweepView(sweep=sweep, trials=trials, now=self._clock(), problem=problem))
        failed = await self._carry_out_all(sweep, decided.actions, jobs, trials)
        found = _problem(failed, sweep)
        if found != self._problems.get(key):
            if found is None:
                del self._problems[key]
            else:
                self._problems[key] = found
                _log.warning("sweep %s/%s: %s: %s", *key, found.reason, found.message)
            if not isinstance(known, Problem):
                decided = plan(SweepView(sweep=sweep, trials=trials, now=self._clock(), problem=found))
        await self._write(sweep, decided.status)
        for event in of_change(sweep, decided.status, trials):
            self._record(sweep, event)
        if failed is not None:
            self._queue.fail(key)
            return None
        self._queue.succeed(key)
        return min(RESYNC_SECONDS, decided.due if decided.due is not None else RESYNC_SECONDS)

    async def _carry_out_all(
        self,
        sweep: TrainingSweep,
        actions: Sequence[Action | Suspend],
        jobs: Mapping[int, TrainingJob | InvalidJob],
        trials: Sequence[Trial],
    ) -> Exception | None:
        """Execute actions in order; return the error that a user has to fix, after which none is tried."""
        newest = dict(jobs)  # a trial may be stopped, and proved good by the results of others, in one pass
        for action in actions:
            try:
                await self._carry_out(sweep, action, newest)
            except (MissingLibraryError, SamplerError, NameTakenError, PredecessorError, Rejected, ValueError) as error:
                return error
            if not isinstance(action, Finish):
                _log_decision(sweep, sweep.status, _phrase(sweep, action))
            self._report_write(sweep, action, trials)
        return None

    def _report_write(self, sweep: TrainingSweep, action: Action | Suspend, trials: Sequence[Trial]) -> None:
        trial = next((each for each in trials if each.record.number == getattr(action, "number", None)), None)
        event = of_write(sweep, action, trial) if trial is not None and not isinstance(action, Suspend) else None
        if event is not None:
            self._record(sweep, event)

    async def _carry_out(
        self, sweep: TrainingSweep, action: Action | Suspend, jobs: dict[int, TrainingJob | InvalidJob]
    ) -> None:
        """Write what an action asks for; of a trial that was edited `jobs` has what it is now."""
        if isinstance(action, Finish):
            return
        if isinstance(action, Create):
            record = TrialRecord(
                number=action.number,
                parameters=await self._suggested(sweep, action, jobs),
                units=[action.unit],
                spec=fingerprint(sweep.spec),
            )
            await self._trials.create(sweep, record)
            return
        job = jobs[action.number]
        assert isinstance(job, TrainingJob), "a sweep with an invalid trial decides nothing"
        after = await self._trials.edit(
            sweep,
            job,
            suspend=isinstance(action, Stop | Suspend) or (isinstance(action, Promote) and not action.resumes),
            unit=action.unit if isinstance(action, Promote) else None,
            values=action.values if isinstance(action, Stop) else None,
        )
        if after is not None:
            jobs[action.number] = after

    async def _suggested(
        self, sweep: TrainingSweep, action: Create, jobs: Mapping[int, TrainingJob | InvalidJob]
    ) -> dict[str, object]:
        current = {**jobs, **self._trials.of(sweep)}  # those that this visit created
        records = [trial_of(job).record for job in current.values() if isinstance(job, TrainingJob)]
        past = past_before(action.number, records)
        return await self._sampler.suggest(sweep.spec, action.number, action.unit.basis, action.history, past)

    async def _with_our_key(self, sweep: TrainingSweep) -> TrainingSweep:
        """Return the sweep once its status names the key of this process: no reader trusts a trial before."""
        keys = self._trials.keys_for(sweep)
        if keys == sweep.status.trial_keys:
            return sweep
        await self._write(sweep, replace(sweep.status, trial_keys=keys))
        written = self._sweeps.get(sweep.key)
        if written is None or written.metadata.uid != sweep.metadata.uid:
            raise Conflict(f"sweep {sweep.metadata.name} changed while its status was written")
        return written

    async def _write(self, sweep: TrainingSweep | InvalidSweep, status: TrainingSweepStatus) -> None:
        if status == sweep.status:
            return
        after = replace(status, last_update_time=Time.of(self._clock()))
        try:
            answer = await replace_sweep_status(self._api, sweep.metadata, after)
        except NotFound as error:
            self._sweeps.missed(sweep.key, sweep.metadata.uid, error)
            return
        if (status.state, status.reason) != (sweep.status.state, sweep.status.reason):
            _log_decision(sweep, status, f"{status.state}, {status.reason}: {status.message}")
        self._sweeps.put(answer)

    async def _work(self) -> None:
        while True:
            try:
                key = await self._queue.get()
            except Closed:
                return
            try:
                await self._process(key)
            finally:
                self._queue.done(key)

    async def _process(self, key: Key) -> None:
        try:
            due = await self.visit(key)
        except Conflict:
            self._queue.fail(key)  # there is news of it
        except Unavailable as error:
            self._queue.fail(key, at_least=error.retry_after)
        except (Rejected, NotFound, Gone) as error:
            delay = self._queue.fail(key)
            _log.warning("sweep %s/%s: its status cannot be written, retrying in %.1f s: %s", *key, delay, error)
        except Exception:  # noqa: BLE001 -- an error on one sweep must not affect others
            delay = self._queue.fail(key)
            _log.exception("sweep %s/%s: failed, retrying in %.1f s", *key, delay)
        else:
            if due is not None:
                self._queue.add_after(key, due)


_VERBS = {"Create": "created", "Promote": "continued", "Stop": "stopped", "Resume": "resumed", "Suspend": "suspended"}


def _log_decision(sweep: TrainingSweep | InvalidSweep, status: TrainingSweepStatus, text: str) -> None:
    """Write the line; in JSON sweep, state, reason and the decision are keys beside the message."""
    name = "/".join(sweep.key)
    known = {"sweep": name, "uid": sweep.metadata.uid, "state": status.state, "reason": status.reason}
    _decisions.info("%s: %s", name, text, extra=known | {"actions": [text]})


def _phrase(sweep: TrainingSweep, action: Create | Promote | Stop | Resume | Suspend) -> str:
    """Return what a write did, for the log."""
    of = f", unit {action.unit.number}" if isinstance(action, Create | Promote) else ""
    return f"{_VERBS[type(action).__name__]} trial {trial_name(sweep.metadata.name, action.number)}{of}"


class Edits:
    """Compares the specs of trials with what their sweep wrote, each generation once."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, int, str, int], tuple[str, ...]] = OrderedDict()

    async def of(self, sweep: TrainingSweep, trial: Trial, job: TrainingJob) -> tuple[str, ...]:
        """Return the fields that were edited. A comparison takes 0.2 ms, and others go on between two of them."""
        ours, its = sweep.metadata, job.metadata
        version = (ours.uid, ours.generation, its.uid, its.generation)
        if (found := self._known.get(version)) is None:
            await asyncio.sleep(0)
            found = self._known[version] = tuple(edited_fields(sweep.spec, trial.record, job))
            if len(self._known) > MAX_COMPARED:
                self._known.popitem(last=False)
        return found


async def _read(
    sweep: TrainingSweep, jobs: Mapping[int, TrainingJob | InvalidJob], edits: Edits
) -> list[Trial] | Problem:
    """Return the trials as decisions see them, or what is wrong with one of them."""
    template = fingerprint(sweep.spec) if jobs else ""
    trials = []
    for number, job in jobs.items():
        name = trial_name(sweep.metadata.name, number)
        if isinstance(job, InvalidJob):
            what = f"trial {name} is invalid ({job.problem}). Delete it; it is then run again."
            return Problem(SweepReason.DAMAGED_TRIAL, what)
        try:
            trial = trial_of(job)
        except ValueError as error:
            return Problem(SweepReason.DAMAGED_TRIAL, f"{error}.")
        # If the template was changed, every trial differs from it; `plan` reports that.
        if trial.record.spec in {"", template} and (edited := await edits.of(sweep, trial, job)):
            what = f"trial {name} was changed (spec.{', spec.'.join(edited)}). Delete it; it is then run again."
            return Problem(SweepReason.DAMAGED_TRIAL, what)
        trials.append(trial)
    return trials


def _problem(error: Exception | None, sweep: TrainingSweep) -> Problem | None:
    """Return what a person has to do about an error."""
    if error is None:
        return None
    if isinstance(error, MissingLibraryError):
        return Problem(SweepReason.SAMPLER_MISSING, f"{error}.")
    if isinstance(error, SamplerError):
        return Problem(SweepReason.SAMPLER_FAILED, f"{error}. It is tried again.")
    if isinstance(error, PredecessorError):
        return Problem(
            SweepReason.PREDECESSOR_STOPPING, f"job {error} is being deleted; the trial of its name follows."
        )
    if isinstance(error, NameTakenError):
        what = (
            f"job {error} exists, and it is no trial that the operator created for this sweep, or its annotations were "
            "changed. Delete it, or create a sweep of another name."
        )
        return Problem(SweepReason.NAME_CONFLICT, what)
    what = f"the job of a trial is rejected: {error}. Correct that, or create a sweep {sweep.metadata.name}-2 instead."
    return Problem(SweepReason.TRIAL_REJECTED, what)
