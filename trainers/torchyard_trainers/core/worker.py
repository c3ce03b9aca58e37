"""One worker from start to end: reads the environment, runs the loop, writes reports."""

import argparse
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from torchyard_trainers import registry
from torchyard_trainers.core import config as configuration
from torchyard_trainers.core import loop
from torchyard_trainers.core.collection import exempt_all
from torchyard_trainers.core.data.packing import packing_of
from torchyard_trainers.core.data.source import check_same_data
from torchyard_trainers.core.exits import ConfigError, HungError
from torchyard_trainers.core.export.formats import check_formats
from torchyard_trainers.core.memory.limits import hold_to, memory_of
from torchyard_trainers.core.memory.micro_batches import divisible
from torchyard_trainers.core.modes.bench import bench
from torchyard_trainers.core.modes.evaluate import evaluate
from torchyard_trainers.core.modes.export import export_checkpoint, formats_of, train
from torchyard_trainers.core.modes.preflight import preflight
from torchyard_trainers.core.parallel import SHARDED, choose_strategy, parallelize, state_bytes, strategy_by_memory
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.pretrained import check_holds
from torchyard_trainers.core.recompilations import warn_of_many_shapes
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.watchdog import Patience, Watchdog
from torchyard_trainers.core.weights import built, fill, is_deferred
from torchyard_trainers.core.workload import Session, average_of
from torchyard_trainers.core.world import device_name, join

MICRO_BATCH = "TORCHYARD_MICRO_BATCH"
# `preflight` is the one mode that needs no model.
MODES: dict[str, Callable[[loop.Workload, Session, loop.Run], object]] = {
    "train": train,
    "eval": evaluate,
    "bench": bench,
    "export": export_checkpoint,
}


def work(options: argparse.Namespace, *, on_hang: Callable[[HungError], None]) -> None:
    """Run the mode of the config; return when it is done.

    Args:
        options: from the command line.
        on_hang: ends the process; called on a thread when the main thread hangs.
    """
    source = options.config or os.environ.get("TORCHYARD_CONFIG")
    if not source:
        raise ConfigError("no config: set TORCHYARD_CONFIG or give --config FILE")
    config = configuration.load(Path(source))
    registry.check(config)
    run_dir = _path("TORCHYARD_RUN_DIR")
    if run_dir is not None:
        run_dir.mkdir(parents=True, exist_ok=True)
    round_text = os.environ.get("TORCHYARD_ROUND")
    reporter = Reporter(
        run_dir,
        rank=int(os.environ.get("RANK", "0")),
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        round_number=int(round_text or 0),
        saves=config.trainer.mode == "train" and config.checkpoint.on_preempt,
    ).start()
    watchdog = Watchdog(lambda: reporter.facts, Patience(config.health.stall_seconds), on_hang).start()
    try:
        task = registry.build(config)
        if config.export is not None or config.trainer.mode == "export":
            check_formats(task, formats_of(config.export))
        strategy = choose_strategy(config.parallelism, int(os.environ.get("WORLD_SIZE", "1")))
        settings = config.parallelism
        with (
            warn_of_many_shapes(reporter, settings),
            join(
                config.device,
                needs_group=strategy != "single",
                deterministic=settings.deterministic,
                matmul_precision=settings.matmul_precision,
            ) as world,
        ):
            reporter.device(device_name(world.device))
            run = loop.Run(
                config=config,
                world=world,
                reporter=reporter,
                checkpoint_dir=options.checkpoint_dir or _path("TORCHYARD_CHECKPOINT_DIR") or Path("checkpoints"),
                run_dir=run_dir,
                round_number=int(round_text) if round_text else None,
                job_uid=os.environ.get("TORCHYARD_JOB_UID", ""),
            )
            configured = settings.micro_batch_tokens or settings.micro_batch_size
            micro_batch = largest_micro_batch(configured, os.environ.get(MICRO_BATCH))
            mode = MODES.get(config.trainer.mode)
            if mode is None or (config.preflight and run.round_number in (None, 1)):
                preflight(run)
            if mode is not None:
                session = open_session(task, run, strategy, micro_batch)
                exempt_all()
                mode(task, session, run)
        reporter.phase("drain")
    finally:
        watchdog.stop()
        reporter.stop()


def open_session(task: loop.Workload, run: loop.Run, strategy: str, micro_batch: int | None) -> Session:
    """Build the model and distribute it over the ranks.

    Args:
        task: the workload.
        run: where and how to train.
        strategy: resolved, but for the choice by memory.
        micro_batch: the largest; in tokens, if the config counts them.

    Raises:
        ConfigError: the config counts tokens, and this workload cannot.
        DataError: ranks see different data.
    """
    world, settings = run.world, run.config.parallelism
    check_same_data(task.source, world)
    hold_to(world.device, settings.memory_fraction)
    model = built(task)
    if (folder := task.pretrained) is not None:
        world.agree(lambda: check_holds(folder, model))
    if settings.strategy == "auto" and strategy == "ddp":
        limit = min(world.gather(memory_of(world.device, world.local_size, settings.memory_fraction).limit))
        computes = Precision(settings.precision, world.device, sharded=False).name
        state = state_bytes(model, precision=computes, averaged=task.average_decay is not None)
        strategy = strategy_by_memory(state, limit, world.size, world.local_size)
    precision = Precision(settings.precision, world.device, sharded=strategy in SHARDED)
    blocks = task.blocks(model)
    parallel = parallelize(
        model,
        blocks,
        strategy,
        settings=settings,
        precision=precision,
        world=world,
        fill=(lambda empty: fill(task, empty, world)) if is_deferred(task) else None,
        entry_points=task.entry_points,
    )
    session = Session(parallel, precision, world, run.reporter, micro_batch, average=average_of(task, parallel))
    if settings.micro_batch_tokens is None:
        return session
    packing = packing_of(task.source, micro_batch, divisible=divisible(task, model))
    return replace(session, micro_batch=None, packing=packing)


def largest_micro_batch(configured: int | Literal["auto"], learned: str | None) -> int | None:
    """Return the largest micro-batch: the config's, or a smaller one that earlier rounds learned.

    Raises:
        ConfigError: `learned`, from the environment, is not a number of samples or tokens.
    """
    if learned is not None and not (learned.isdecimal() and int(learned) > 0):
        raise ConfigError(f"{MICRO_BATCH}: {learned!r} is not a number, 1 or more")
    limits = [] if configured == "auto" else [configured]
    return min([*limits, int(learned)] if learned is not None else limits, default=None)


def _path(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value) if value else None
