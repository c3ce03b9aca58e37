"""The training loop. Everything else in `core` exists so that this stays one page."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchyard_trainers.core import curves, finish, preempt
from torchyard_trainers.core.best import Best
from torchyard_trainers.core.cadence import Cadence
from torchyard_trainers.core.checkpoint import Checkpoints
from torchyard_trainers.core.config import Config
from torchyard_trainers.core.exits import PreemptedError
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.resume import Progress, record_of, restore
from torchyard_trainers.core.saver import Saver
from torchyard_trainers.core.shards import capture
from torchyard_trainers.core.step import optimize, set_learning_rate
from torchyard_trainers.core.workload import Session, Workload
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
    reporter, world = session.reporter, session.world
    optimizer = work.optimizer(session.parallel.module.parameters())
    checkpoints = Checkpoints(run.checkpoint_dir, world.beside(), round_number=run.round_number, job=run.job_uid)
    progress = restore(work, session, optimizer, checkpoints, run.config)
    if finish.is_finished(run.checkpoint_dir, world, work.total_steps):
        return progress.metrics
    best = Best(run.config.checkpoint.keep_best, checkpoints.scores())
    speed = curves.Speed(work.global_batch)
    cadence = Cadence(run.config.checkpoint.interval, now=time.monotonic())
    saver = Saver(checkpoints, cadence, reporter, world.device)
    with curves.Curves(run.checkpoint_dir if world.leads else None, tensorboard=run.config.logging.tensorboard) as log:
        if progress.fresh:
            reporter.phase("eval")
            progress.metrics |= work.begin(session)
            reporter.metrics(progress.metrics)
        for step in range(progress.step, work.total_steps):
            reporter.phase("step")
            done, last, first = step + 1, step + 1 == work.total_steps, step == progress.step
            set_learning_rate(optimizer, work.learning_rate(step))
            asked = preempt.requested(run.run_dir) and run.config.checkpoint.on_preempt
            due = world.leads and (cadence.due(done, time.monotonic()) or last)
            flags = {"preempt": asked, "save": due, "saved": saver.ended}
            totals = optimize(work, session, optimizer, step, flags, rehearse=first)
            found = work.after_step(session, done)
            score = work.score(found)
            values = {**totals.metrics, "learningRate": work.learning_rate(step)} | found
            progress = Progress(done, progress.metrics | values)
            pace = speed.tick(time.monotonic())
            reporter.metrics(values)
            reporter.throughput(pace)
            reporter.progress(done, work.total_steps)
            if done % work.log_every == 0 or last:
                log.add(done, work.total_steps, values | pace)
            if totals.flags["saved"]:
                saver.settle()
            if totals.flags["preempt"] or totals.flags["save"] or best.admits(score):
                reporter.phase("save")
                state = capture(session.parallel.module, optimizer, work.state())
                record = record_of(work, session, progress, checkpoints.round_number, score)
                keep = run.config.checkpoint
                saver.begin(done, state, record, keep=keep.keep_last, best=keep.keep_best)
                best.add(score)
                log.flush()
            if totals.flags["preempt"] or last:
                saver.settle()
            if totals.flags["preempt"] and not last:
                preempt.mark_saved(run.run_dir, world.rank, done)
                world.barrier()
                raise PreemptedError(f"asked to stop: step {done} of {work.total_steps} is saved")
    finish.finish(work, session, progress.metrics, run.checkpoint_dir)
    return progress.metrics
