"""The training loop. Everything else in `core` exists so that this stays one page."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch.optim import Optimizer

from torchyard_trainers.core import finish, preempt
from torchyard_trainers.core.checkpoints.best import agreed
from torchyard_trainers.core.checkpoints.cadence import Cadence
from torchyard_trainers.core.checkpoints.checkpoint import Checkpoints
from torchyard_trainers.core.checkpoints.resume import Progress, record_of, restore, roll_back
from torchyard_trainers.core.checkpoints.saver import Saver
from torchyard_trainers.core.checkpoints.shards import capture
from torchyard_trainers.core.config import Config
from torchyard_trainers.core.health.spikes import Spikes
from torchyard_trainers.core.memory import micro_batches
from torchyard_trainers.core.metrics import curves
from torchyard_trainers.core.metrics.meter import Meter
from torchyard_trainers.core.metrics.milestones import milestones_of, with_milestones
from torchyard_trainers.core.optimizers import as_one
from torchyard_trainers.core.profiler import Profiler
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.step import loader_of, optimize, set_learning_rate
from torchyard_trainers.core.workload import Session, ShowsTable, Workload, epochs, is_boundary
from torchyard_trainers.core.world import World


@dataclass(frozen=True)
class Run:
    """Where and how to train."""

    config: Config
    world: World
    reporter: Reporter
    checkpoint_dir: Path
    run_dir: Path | None
    round_number: int | None
    job_uid: str


def train(work: Workload, session: Session, run: Run) -> Mapping[str, float]:
    """Train to the last step, from wherever the checkpoint folder is; give the final metrics.

    Raises:
        PreemptedError: asked to stop; everything is saved.
        DivergedError: loss or gradient norm is not finite.
        TrainerError: and others that carry their exit code.
    """
    reporter, world, settings = session.reporter, session.world, run.config
    optimizer = as_one(work.optimizer(session.parallel.module))
    checkpoints = Checkpoints(
        run.checkpoint_dir, world.with_own_group(), round_number=run.round_number, job=run.job_uid
    )
    progress = restore(work, session, optimizer, checkpoints, settings)
    if finish.is_finished(run.checkpoint_dir, world, reporter, work.total_steps):
        return _ended(session, progress)
    cadence = Cadence(settings.checkpoint.interval, now=time.monotonic(), save_every=work.save_every)
    saver = Saver(checkpoints, settings.checkpoint, cadence, reporter, world.device)
    spikes = Spikes(settings, progress.step, progress.guard)
    profiler = Profiler(run.run_dir, run.checkpoint_dir, world, reporter)
    with (
        curves.open_curves(settings, run.checkpoint_dir, reporter, is_main=world.is_main) as log,
        loader_of(work, session) as loader,
        profiler,
    ):
        prepared, begun = progress.step, _begin(work, session, progress)
        session = _sized(work, session, run, progress.step, optimizer)
        meter, rehearse = Meter(work, session, progress.step), True
        while (step := progress.step) < work.total_steps:
            if prepared != step:
                begun, prepared = work.prepare(session, step), step
            reporter.phase("step")
            done, last, boundary = step + 1, step + 1 == work.total_steps, is_boundary(work, step + 1)
            rate = set_learning_rate(optimizer, work.learning_rate(step))
            # True in `totals.flags` if they are on any rank: all ranks save, and stop, at the same step.
            flags = {
                "preempt": boundary and settings.checkpoint.on_preempt and preempt.requested(run.run_dir),
                "save": boundary and world.is_main and (cadence.due(done, time.monotonic()) or last),
                "saved": saver.ended,
            }
            with profiler.around(done):
                data = loader.step(step, session.micro_batch)
                totals = optimize(
                    work,
                    session,
                    optimizer,
                    step,
                    flags,
                    rehearse=rehearse,
                    data=data,
                    judge=spikes.judge,
                    probe=spikes.probe(session, step),
                )
            rehearse = False
            if (decision := spikes.after(work, session, done, totals, saver)).back:
                # What was prepared may be what was broken: prepare again.
                progress, prepared = roll_back(work, session, optimizer, checkpoints, settings, decision=decision), -1
                spikes.went_back(progress.step, progress.guard)
                continue
            found = _after_step(work, session, log, done, totals.metrics)
            values = (
                totals.metrics | {"learningRate": rate} | meter.metrics() | spikes.metrics | log.keep(begun | found)
            )
            progress = Progress(
                done, with_milestones(settings.milestones, progress.metrics | values, done, work.total_steps)
            )
            pace = meter.tick(time.monotonic(), values)
            reporter.made_step(
                done,
                work.total_steps,
                values | milestones_of(settings.milestones, progress.metrics),
                pace,
                epochs(work, done),
            )
            if done % work.log_every == 0 or last:
                log.add(done, work.total_steps, values | pace)
            stops, score = totals.flags["preempt"], agreed(work.score(found) if found else None, world)
            if totals.flags["saved"]:
                saver.wait()
            if stops or totals.flags["save"] or (boundary and saver.is_best(score)):
                reporter.phase("save")
                log.complete(done, work.total_steps, values | pace)
                record = record_of(work, session, progress, checkpoints.round_number, score)
                record["guard"] = spikes.before_save(session, done)
                saver.begin(done, capture(session.parallel, optimizer, work.state(), session.average), record)
            if stops or last:
                saver.wait()
            if stops and not last:
                preempt.stop(run.run_dir, world, done, work.total_steps)
    finish.finish(work, session, _ended(session, progress), run.checkpoint_dir)
    return progress.metrics


def _sized(work: Workload, session: Session, run: Run, step: int, optimizer: Optimizer) -> Session:
    """Choose the micro-batch before a step, and log where the run trains and how its batch is divided."""
    settings = run.config.parallelism
    session = micro_batches.choose(work, session, run.checkpoint_dir, settings=settings, step=step, optimizer=optimizer)
    share, passes = micro_batches.division(work, session)
    run.reporter.batch(share, work.global_batch, passes)
    if session.world.is_main:
        curves.say(micro_batches.describe(work, session, run.config.device))
    return session


def _ended(session: Session, progress: Progress) -> Mapping[str, float]:
    """Return the final metrics; the moving average becomes the model that is exported."""
    if session.average is not None:
        session.average.replace_weights()
    return progress.metrics


def _after_step(
    work: Workload, session: Session, log: curves.Curves, done: int, means: Mapping[str, float]
) -> dict[str, float]:
    """Run what follows a step; return its metrics, and show the table of an evaluation."""
    found = work.after_step(session, done, means)
    if found and isinstance(work, ShowsTable):
        log.show(done, work.table())
    return found


def _begin(work: Workload, session: Session, progress: Progress) -> dict[str, float]:
    """Run what precedes the first step of this round; return the metrics of `prepare`."""
    if progress.fresh:
        session.reporter.phase("eval")
        progress.metrics |= work.begin(session)
        session.reporter.metrics(progress.metrics)
    return work.prepare(session, progress.step)
