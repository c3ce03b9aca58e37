"""Forecasts, and what they are measured against: steps of real gangs, of a workload and sizes that tests share."""

import json
from functools import partial
from pathlib import Path

import torch
from little_lm import LittleLm, Sizes
from settled import OneThread, Settled
from torch.distributed import distributed_c10d as c10d
from torch.utils._pytree import tree_leaves

from torchyard_trainers import registry
from torchyard_trainers.core.config import Config, Parallelism, Trainer, convert
from torchyard_trainers.core.memory.forecast import forecast, imagined_world
from torchyard_trainers.core.memory.tracker import tracker_of
from torchyard_trainers.core.parallel import SHARDED, parallelize
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.step import optimize
from torchyard_trainers.core.weights import built, fill, is_deferred
from torchyard_trainers.core.workload import Session
from torchyard_trainers.core.world import join

SIZES = {"width": 64, "heads": 4, "layers": 2, "vocabulary": 200, "length": 48, "batch": 32}
# Of so few tokens that parameters take nearly all, and half of them are two large matrices.
WIDE = {"width": 128, "heads": 4, "layers": 2, "vocabulary": 2000, "length": 8, "batch": 4}


def make(sizes, settings):
    """The little language model of these sizes; or, if they name one, a built-in workload with these parameters."""
    if "name" not in sizes:
        return LittleLm(Sizes(**sizes))
    return registry.build(Config(trainer=Trainer(**sizes), parallelism=settings))


def forecast_usage(strategy, shape, options, sizes=SIZES, *, on_gpu=False):
    settings = convert(options, Parallelism, at="parallelism")
    with imagined_world(*shape) as world:
        return forecast(
            lambda: make(sizes, settings),
            world,
            strategy,
            settings=settings,
            precision=settings.precision,
            micro_batch=settings.micro_batch_size,
            real=sizes.get("name") == "vecrl",
            on_gpu=on_gpu,
        )


def measure(sizes, strategy, options, steps, file):
    """Make real steps in a real gang, the last one of a run, and write what they took, as the tracker counts.

    In the second one DDP lays out its buckets again, now under the tracker's eyes.
    """
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    from torch.distributed._tools.mem_tracker import MemTracker

    settings = convert(options, Parallelism, at="parallelism")
    work = make(sizes, settings)
    c10d.ProcessGroupGloo = OneThread
    with join("cpu", needs_group=strategy != "single") as world:
        model = built(work)
        precision = Precision(settings.precision, world.device, sharded=strategy in SHARDED)
        parallel = parallelize(
            model,
            work.blocks(model),
            strategy,
            settings=settings,
            precision=precision,
            world=world,
            fill=partial(fill, work, world=world) if is_deferred(work) else None,
        )
        reporter = Reporter(None, rank=world.rank, local_rank=0, round_number=0)
        session = Session(parallel, precision, world, reporter, settings.micro_batch_size)
        optimizer = work.optimizer(model)
        tracker = FSDPMemTracker(model, optimizer) if strategy in SHARDED else MemTracker()
        if settings.cpu_offload or "name" in sizes:  # there is no device but the host: what would be there is not added
            kinds = {"sharded": strategy in SHARDED, "offloads": settings.cpu_offload}
            tracker = tracker_of(model, optimizer, **kinds, on_gpu=True)
        if strategy not in SHARDED:
            state = [leaf for leaf in tree_leaves(work.state()) if isinstance(leaf, torch.Tensor)]
            tracker.track_external(model, optimizer, *state)
        if "name" not in sizes:  # a rollout is played before the loss, and its passes are not to be forgotten there
            loss = work.loss
            work.loss = lambda *given: (tracker.reset_mod_stats(), loss(*given))[1]
        with tracker, Settled():
            for step in range(work.planned_step, work.planned_step + steps):
                work.prepare(session, step)
                totals = optimize(work, session, optimizer, step, {})
                if step + 1 < work.planned_step + steps:
                    work.after_step(session, step + 1, totals.metrics)
            work.after_step(session, work.total_steps, totals.metrics)
        if world.is_main:
            Path(file).write_text(str(tracker._peak_mem[world.device]))


def gather(sizes, file):
    """Write what each rank of a sharded model takes at most while all weights are brought home, and the bytes of each.

    First to the host memory of rank 0, then into a plain network on each rank.
    """
    from torch.distributed._tools.mem_tracker import MemTracker

    settings = Parallelism(strategy="fsdp", precision="fp32")
    work = make(sizes, settings)
    with join("cpu", needs_group=True) as world:
        plain, model = work.build(), work.build()
        precision = Precision("fp32", world.device, sharded=True)
        parallel = parallelize(model, work.blocks(model), "fsdp", settings=settings, precision=precision, world=world)
        with torch.no_grad():
            plain.norm.weight.zero_()
        peaks = []
        for bring in (lambda: parallel.on_host(keep=world.is_main), lambda: parallel.copy_to(plain)):
            tracker = MemTracker()
            with tracker:
                bring()
            peaks.append(world.gather(tracker.get_tracker_snapshot("peak").get(world.device, {}).get("Total", 0)))
        fresh = work.build().state_dict()
        assert all(torch.equal(tensor, fresh[name]) for name, tensor in plain.state_dict().items())
        if world.is_main:
            told = {"host": peaks[0], "copied": peaks[1], "sizes": [tensor.nbytes for tensor in fresh.values()]}
            Path(file).write_text(json.dumps(told))
