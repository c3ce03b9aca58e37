"""A TrainingSweep on one machine: executes its decisions on runs, several of which this process controls.

Only wiring: `sweeps.decide` decides, `local.controller.run_job` trains. Nothing is kept in memory only: a controller
that dies at any moment loses nothing, the next one reads the trials and goes on.
"""

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence

from torchyard.api.launch import local_procs
from torchyard.api.resource import TrainingJob
from torchyard.local.controller import run_job
from torchyard.local.run import Event, run_folder
from torchyard.local.sweeps import create_trial, edit_trial, trial_jobs
from torchyard.local.templates import Templates
from torchyard.sweeps.decide import Action, Create, Finish, Promote, Stop, decide
from torchyard.sweeps.outcomes import Trial
from torchyard.sweeps.resource import TrainingSweep, TrialRecord, trial_name
from torchyard.sweeps.sampler import Sampler
from torchyard.sweeps.sampling import past_before
from torchyard.sweeps.trials import trial_of

LOOK_SECONDS = 5.0

Jobs = Mapping[int, TrainingJob]
OnChange = Callable[[Jobs], None]


async def run_sweep(
    sweep: TrainingSweep,
    *,
    on_change: OnChange = lambda _jobs: None,
    stop: asyncio.Event | None = None,
    kill: asyncio.Event | None = None,
) -> Finish | None:
    """Control a sweep until it is over, or until `stop`: then its trials are saved and stopped.

    Args:
        sweep: one that this process controls (`control_sweep`).
        on_change: called in the event loop with the jobs of the trials, at first and whenever one changed.
        stop: once set, the trials are suspended.
        kill: once set as well, every process of the trials is killed now.

    Returns:
        How the sweep ended; None: it was stopped.

    Raises:
        ValueError: the parameters of a trial make no valid job, or a file was damaged.
        OSError: files cannot be written.
        SamplerError, MissingLibraryError: there is no suggestion.
    """
    running = _Sweep(sweep, on_change, stop or asyncio.Event(), kill or asyncio.Event())
    try:
        return await running.until_over()
    finally:
        await running.close()


class _Sweep:
    """The trials of one sweep, while this process controls them."""

    def __init__(self, sweep: TrainingSweep, on_change: OnChange, stop: asyncio.Event, kill: asyncio.Event) -> None:
        self.sweep, self.on_change, self.stop, self.kill = sweep, on_change, stop, kill
        self.sampler = Sampler()
        self.templates = Templates(for_any=True)
        self.jobs: dict[int, TrainingJob] = {}
        self.tasks: dict[int, asyncio.Task[TrainingJob]] = {}
        self.changed = asyncio.Event()
        spec = sweep.spec.job_template.spec
        ranks = sweep.spec.parallel_trials * spec.nodes * local_procs(spec)
        # Each trial would otherwise start a thread for every core.
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // ranks)))

    async def until_over(self) -> Finish | None:
        """Execute decisions until there are none any more."""
        self.jobs = await asyncio.to_thread(trial_jobs, self.sweep)
        self.on_change(self.jobs)
        stopping = asyncio.create_task(self.stop.wait())
        try:
            while not self.stop.is_set():
                self.changed.clear()
                self._reap()
                finish = await self._turn()
                if finish is not None:
                    return finish
                waiting = asyncio.create_task(self.changed.wait())
                await asyncio.wait({waiting, stopping}, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
        finally:
            stopping.cancel()
        return None

    async def close(self) -> None:
        """Save and stop the trials that run."""
        self.stop.set()
        await self.sampler.close()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        await self.templates.close()

    async def _turn(self) -> Finish | None:
        """Decide once, and execute the decision."""
        expiry = self.sweep.expiry
        expired = expiry is not None and time.time() >= expiry
        for action in decide(self.sweep.spec, self.trials(), expired=expired):
            if isinstance(action, Finish):
                return action
            if self.stop.is_set():
                return None
            self.jobs[action.number] = await self._carry_out(action)
            self.on_change(self.jobs)
        for trial in self.trials():
            if not trial.at_rest and trial.record.number not in self.tasks:
                self._control(trial.record.number)
        return None

    def trials(self) -> Sequence[Trial]:
        """Return the trials as decisions see them."""
        return [trial_of(job) for job in self.jobs.values()]

    async def _carry_out(self, action: Action) -> TrainingJob:
        assert not isinstance(action, Finish)
        folder = run_folder(trial_name(self.sweep.metadata.name, action.number))
        if isinstance(action, Create):
            parameters = await self._suggested(action)
            record = TrialRecord(number=action.number, parameters=parameters, units=[action.unit])
            return await asyncio.to_thread(create_trial, self.sweep, record)
        if isinstance(action, Stop):
            return await asyncio.to_thread(edit_trial, folder, suspend=True, values=action.values)
        if isinstance(action, Promote):
            return await asyncio.to_thread(edit_trial, folder, suspend=not action.resumes, unit=action.unit)
        return await asyncio.to_thread(edit_trial, folder, suspend=False)

    async def _suggested(self, action: Create) -> dict[str, object]:
        past = past_before(action.number, [each.record for each in self.trials()])
        return await self.sampler.suggest(self.sweep.spec, action.number, action.unit.basis, action.history, past)

    def _control(self, number: int) -> None:
        def seen(job: TrainingJob, _events: list[Event]) -> None:
            before, self.jobs[number] = self.jobs.get(number), job
            self.on_change(self.jobs)
            if before is None or _decisive_fields(before) != _decisive_fields(job):
                self.changed.set()

        folder = run_folder(trial_name(self.sweep.metadata.name, number))
        run = run_job(folder, on_change=seen, stop=self.stop, kill=self.kill, templates=self.templates)
        task = asyncio.create_task(run)
        task.add_done_callback(lambda _task: self.changed.set())
        self.tasks[number] = task

    def _reap(self) -> None:
        """Take in the trials whose control ended; raise what ended it."""
        for number in [number for number, task in self.tasks.items() if task.done()]:
            job = self.tasks.pop(number).result()
            if job.metadata.deletion_timestamp is not None or not run_folder(job.metadata.name).job_file.exists():
                self.jobs.pop(number, None)  # a trial that was removed is run again
            else:
                self.jobs[number] = job


def _decisive_fields(job: TrainingJob) -> object:
    return job.status.state, job.spec.suspend, job.status.metrics, job.status.non_finite_metrics
