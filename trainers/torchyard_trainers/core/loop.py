"""The training loop. Everything else in `core` exists so that this stays one page."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchyard_trainers.core import curves, finish, preempt
from torchyard_trainers.core.batching import split
from torchyard_trainers.core.cadence import Cadence
from torchyard_trainers.core.checkpoint import Checkpoints
from torchyard_trainers.core.config import Config
from torchyard_trainers.core.exits import DivergedError, PreemptedError
from torchyard_trainers.core.order import samples_of_step
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.resume import Progress, record_of, restore
from torchyard_trainers.core.shards import capture
from torchyard_trainers.core.workload import MicroBatch, Session, Workload
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
    checkpoints = Checkpoints(run.checkpoint_dir, world, round_number=run.round_number, job=run.job_uid)
    progress = restore(work, session, optimizer, checkpoints, run.config)
    if finish.is_finished(run.checkpoint_dir, world, work.total_steps):
        return progress.metrics
    log = curves.Curves(run.checkpoint_dir, tensorboard=run.config.logging.tensorboard) if world.leads else None
    speed = curves.Speed(work.global_batch)
    cadence = Cadence(run.config.checkpoint.interval, step=progress.step, now=time.monotonic())

    if progress.fresh:
        reporter.phase("eval")
        progress.metrics |= work.begin(session)
        reporter.metrics(progress.metrics)
    for step in range(progress.step, work.total_steps):
        reporter.phase("step")
        done = step + 1
        set_learning_rate(optimizer, work.learning_rate(step))
        asked = preempt.requested(run.run_dir) and run.config.checkpoint.on_preempt
        due = world.leads and (cadence.due(done, time.monotonic()) or done == work.total_steps)
        first = step == progress.step
        totals = optimize(work, session, optimizer, step, {"preempt": asked, "save": due}, rehearse=first)
        values = {**totals.metrics, "learningRate": work.learning_rate(step)} | work.after_step(session, done)
        progress = Progress(done, progress.metrics | values)
        reporter.metrics(values)
        reporter.throughput(pace := speed.tick(time.monotonic()))
        reporter.progress(done, work.total_steps)
        if log is not None and (done % work.log_every == 0 or done == work.total_steps):
            log.add(done, values | pace)
            curves.say(curves.line(done, work.total_steps, values | pace))
        if totals.flags["preempt"] or totals.flags["save"]:
            reporter.phase("save")
            state = capture(session.parallel.module, optimizer, work.state())
            record = record_of(work, session, progress, checkpoints.round_number)
            saved = checkpoints.save(done, state, record, keep=run.config.checkpoint.keep_last)
            cadence.saved(done, time.monotonic(), saved.seconds)
            reporter.checkpoint(saved.report())
        if totals.flags["preempt"] and done < work.total_steps:
            preempt.mark_saved(run.run_dir, world.rank, done)
            world.barrier()
            raise PreemptedError(f"asked to stop: step {done} of {work.total_steps} is saved")
    if log is not None:
        log.close()
    finish.finish(work, session, progress.metrics, run.checkpoint_dir)
    return progress.metrics


@dataclass(frozen=True)
class Totals:
    """What all ranks together saw in one step: the same values on each of them."""

    metrics: dict[str, float]
    flags: dict[str, bool]


def optimize(
    work: Workload,
    session: Session,
    optimizer: torch.optim.Optimizer,
    step: int,
    flags: Mapping[str, bool],
    *,
    rehearse: bool = False,
) -> Totals:
    """Do one optimizer step. One reduction carries loss, statistics and flags (true if any rank says so).

    DDP lays out its gradient buckets anew after its first backward pass, and for three or more ranks the layout decides
    the order of summation. `rehearse` does that first pass on work that is thrown away, so that a step has the same
    bits after a restart.
    """
    world, parallel, precision = session.world, session.parallel, session.precision
    ids = samples_of_step(step, work.global_batch)
    micro_batches = split(work.global_batch, world.size, world.rank, session.micro_batch)
    if rehearse and parallel.strategy == "ddp" and world.size > 2:
        _accumulate(work, session, ids, micro_batches[-1:])
        optimizer.zero_grad(set_to_none=True)
    sums = _accumulate(work, session, ids, micro_batches)
    norm = precision.clip(parallel.module, optimizer, work.max_grad_norm)
    facts = torch.stack(
        [*(value.double() for value in sums.values()), *(norm.new_tensor(flag).double() for flag in flags.values())]
    )
    *totals, grad_norm = torch.cat([world.total(facts), norm.double().reshape(1)]).tolist()
    metrics = {name: total / work.global_batch for name, total in zip(sums, totals, strict=False)}
    if not math.isfinite(metrics["loss"]) or not (math.isfinite(grad_norm) or precision.overflows):
        raise DivergedError(
            f"step {step + 1}: loss {metrics['loss']}, gradient norm {grad_norm}; lower params.lr or use fp32"
        )
    precision.step(optimizer)
    optimizer.zero_grad(set_to_none=True)
    said = dict(zip(flags, (total > 0 for total in totals[len(sums) :]), strict=True))
    return Totals(metrics | {"gradNorm": grad_norm}, said)


def _accumulate(work: Workload, session: Session, ids: list[int], micro_batches: list[Any]) -> dict[str, torch.Tensor]:
    """Run forward and backward over this rank's micro-batches; give the sums of loss and statistics."""
    device, world_size = session.world.device, session.world.size
    sums: dict[str, torch.Tensor] = {}
    for slots in micro_batches:
        batch = MicroBatch(
            torch.tensor([ids[position] for position in slots.positions], device=device),
            torch.tensor(slots.weights, device=device),
        )
        with session.parallel.accumulating(last=slots is micro_batches[-1]):
            with session.precision.forward():
                terms = work.loss(session, batch)
            assert terms.loss.shape == (), f"a loss is one number, not {tuple(terms.loss.shape)}"
            session.precision.backward(terms.loss * (world_size / work.global_batch))
        for name, value in {"loss": terms.loss.detach(), **terms.statistics}.items():
            sums[name] = sums[name] + value.double() if name in sums else value.double()
    return sums


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = rate
