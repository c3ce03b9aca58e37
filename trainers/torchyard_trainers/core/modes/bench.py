"""Mode `bench`: the speed of this job on this machine, measured with real steps that are not saved."""

import platform
import statistics
import time
from typing import Any, Protocol, runtime_checkable

import torch

from torchyard_trainers.core.checkpoints.commits import write_atomically
from torchyard_trainers.core.json_text import json_of
from torchyard_trainers.core.loop import Run
from torchyard_trainers.core.memory import micro_batches
from torchyard_trainers.core.metrics.curves import say
from torchyard_trainers.core.metrics.meter import Meter, device_peak, peak_memory, utilisation
from torchyard_trainers.core.modes.finish import finish_reading
from torchyard_trainers.core.optimizers import as_one
from torchyard_trainers.core.step import loader_of, optimize, set_learning_rate
from torchyard_trainers.core.workload import Session, Workload

# Compilers, allocators and caches settle in the first steps; the clock starts after them.
WARM_UP_STEPS = 5
MEASURED_STEPS = 20
MEASURED_SECONDS = 20.0


def bench(work: Workload, session: Session, run: Run) -> dict[str, float]:
    """Measure steps per second with new weights after a warm-up of 5 steps: at least 20 steps and 20 s.

    The parameter `steps` ends it earlier, but not before one step was measured.

    The figures go to the report, to stdout and, with the environment, to `bench.json`.
    """
    session.reporter.phase("eval")
    work.begin(session)
    work.prepare(session, 0)
    session = micro_batches.choose(work, session, run.checkpoint_dir, settings=run.config.parallelism, step=0)
    session.reporter.phase("compile")
    meter = Meter(work, session, 0, count=True)
    seconds, waited = _step_times(work, session)
    found = _figures(work, session, meter, seconds, waited)
    if isinstance(work, Measured):
        found |= work.measure(session)
    session.reporter.metrics({name: value for name, value in found.items() if name not in _THROUGHPUT})
    session.reporter.throughput({name: value for name, value in found.items() if name in _THROUGHPUT})
    made = WARM_UP_STEPS + len(seconds)
    session.reporter.progress(made, made)
    finish_reading(run, made, found)
    if session.world.is_main:
        facts = {"schema": 1, "figures": found, "environment": environment(work, session)}
        path = run.checkpoint_dir / "bench.json"
        write_atomically(path, json_of(facts, indent=1))
        session.reporter.artifact("bench.json", path)
        say(f"{found['stepsPerSecond']:.4g} steps/s, {found['samplesPerSecond']:.4g} samples/s, see {path}")
    return found


@runtime_checkable
class Measured(Protocol):
    """A workload with additional figures, which the median time of a step does not show."""

    def measure(self, session: Session) -> dict[str, float]:
        """Measure after the steps of a benchmark; the same names on every rank."""


_THROUGHPUT = frozenset({"stepsPerSecond", "samplesPerSecond", "mfu"})


def _step_times(work: Workload, session: Session) -> tuple[list[float], float]:
    """Return the seconds of each measured step, and the total seconds spent waiting for data."""
    optimizer = as_one(work.optimizer(session.parallel.module))
    session.reporter.phase("step")
    times: list[float] = []
    step, began, waited, enough = 0, time.monotonic(), 0.0, False
    with loader_of(work, session) as loader:
        while not enough:
            if step == WARM_UP_STEPS:
                began, waited = time.monotonic(), session.data_wait.seconds
            started = time.monotonic()
            set_learning_rate(optimizer, work.learning_rate(step))
            # Rank 0 decides by its clock; the decision is part of the step's reduction.
            long = len(times) + 1 >= MEASURED_STEPS and time.monotonic() - began >= MEASURED_SECONDS
            if step:
                work.prepare(session, step)
            flags = {"enough": session.world.is_main and long}
            data = loader.step(step, session.micro_batch)
            totals = optimize(work, session, optimizer, step, flags, rehearse=step == 0, data=data)
            work.after_step(session, step + 1, totals.metrics)
            if step >= WARM_UP_STEPS:
                times.append(time.monotonic() - started)
            step += 1
            session.reporter.progress(step, work.total_steps)
            enough = bool(times) and (totals.flags["enough"] or step >= work.total_steps)
    return times, session.data_wait.seconds - waited


def _figures(work: Workload, session: Session, meter: Meter, seconds: list[float], waited: float) -> dict[str, float]:
    """Return the figures. They use the median step time, so that an evaluation among the steps does not count."""
    median = statistics.median(seconds)
    samples = work.global_batch / median
    assert meter.flops is not None
    found = {
        "stepsPerSecond": 1 / median,
        "samplesPerSecond": samples,
        "stepSeconds": median,
        "stepSecondsP95": sorted(seconds)[int(0.95 * (len(seconds) - 1))],
        "measuredSteps": float(len(seconds)),
        "dataWaitShare": min(1.0, waited / sum(seconds)),
        "flopsPerSample": float(meter.flops),
        "flopsPerSecond": meter.flops * samples,
        "memoryPeakBytes": peak_memory(session.world.device),
    }
    peak = device_peak(session)
    if peak is not None:
        found["mfu"] = utilisation(meter.flops, samples, peak, session.world.size)
    return found


def environment(work: Workload, session: Session) -> dict[str, Any]:
    """Describe where and how the figures were measured."""
    device = session.world.device
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu",
        "world": session.world.size,
        "threads": torch.get_num_threads(),
        "strategy": session.parallel.strategy,
        "precision": session.precision.name,
        "globalBatch": work.global_batch,
        "microBatch": session.micro_batch,
        "microBatchTokens": session.packing.budget if session.packing is not None else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
