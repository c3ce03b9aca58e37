"""Restores a run from its checkpoint folder, and builds the record that a checkpoint stores."""

import hashlib
import math
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.optim import Optimizer

from torchyard_trainers.core.checkpoints.checkpoint import (
    FROZEN_BASE,
    MODEL_SHAPE,
    Checkpoints,
    Saved,
    compare_identity,
    resolve,
)
from torchyard_trainers.core.checkpoints.commits import read_commit
from torchyard_trainers.core.checkpoints.shards import Shards, fill_all
from torchyard_trainers.core.checkpoints.starting_weights import load_starting_weights
from torchyard_trainers.core.config import Config
from torchyard_trainers.core.exits import DataError, DivergedError
from torchyard_trainers.core.health.guard import ADVICE, Decision
from torchyard_trainers.core.json_text import number_of
from torchyard_trainers.core.parallel import Parallel
from torchyard_trainers.core.workload import Session, Workload, epochs, is_boundary, size_of


@dataclass
class Progress:
    """The progress of a run; `fresh` until its first step."""

    step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    fresh: bool = False
    guard: dict[str, Any] = field(default_factory=dict)  # state of the detector of spikes


def restore(
    work: Workload,
    session: Session,
    optimizer: Optimizer,
    checkpoints: Checkpoints,
    config: Config,
    *,
    before: int | None = None,
) -> Progress:
    """Load the newest readable checkpoint into model, optimizer and workload; without one, return step 0.

    At step 0 the model gets the weights of `checkpoint.initFrom`, if that is set. `before`: only checkpoints of earlier
    steps count.

    Raises:
        DataError: the checkpoint is of a step in the middle of a rollout: a last step, or of an earlier version.
    """
    reporter = session.reporter
    reporter.phase("restore")
    identity = identity_of(work, session.parallel)
    checkpoints.identify(msgspec.to_builtins(config), identity)
    elsewhere = Path(config.checkpoint.resume_from) if config.checkpoint.resume_from else None
    if elsewhere is not None:
        session.world.from_leader(lambda: compare_elsewhere(elsewhere, identity))
    if not checkpoints.shards.shared:
        reporter.warn(
            "checkpoints are on the own disk of rank 0's pod and lost with it; name a claim in checkpoint.volume"
        )

    def fill(storage: Shards, folder: Path) -> None:
        fill_all(session.parallel, optimizer, work.state(), storage, folder, average=session.average)

    found = checkpoints.restore(fill, also=elsewhere, before=before)
    checkpoints.sweep()
    for skipped in found.skipped:
        reporter.warn(f"checkpoint passed over: {skipped}")
    if found.record is None:
        if config.checkpoint.init_from:
            origin = load_starting_weights(work, session, Path(config.checkpoint.init_from))
            checkpoints.note_origin(origin)
        if session.average is not None:
            session.average.copy()
        return Progress(fresh=True)
    if not is_boundary(work, found.record["step"]):
        raise DataError(
            f"{found.folder}: step {found.record['step']} is in the middle of a rollout of {work.save_every} steps, "
            "from where no run can go on; start a new run, with checkpoint.initFrom to keep the weights"
        )
    session.precision.load_state(found.record["scaler"])
    metrics = {name: number_of(value) for name, value in found.record["metrics"].items()}
    known = {name: value for name, value in metrics.items() if value is not None}
    progress = Progress(found.record["step"], known, guard=found.record.get("guard") or {})
    reporter.progress(progress.step, work.total_steps)
    reporter.metrics(progress.metrics)
    assert found.folder is not None
    commit = session.world.from_leader(lambda folder=found.folder: read_commit(folder))
    size = sum(entry["bytes"] for entry in commit["files"].values())
    saved = Saved(progress.step, commit["time"], str(found.folder), size, commit["saveSeconds"])
    reporter.checkpoint(saved.report())
    return progress


def roll_back(
    work: Workload,
    session: Session,
    optimizer: Optimizer,
    checkpoints: Checkpoints,
    config: Config,
    *,
    decision: Decision,
) -> Progress:
    """Roll back to the newest checkpoint because of a fault, or to an older one.

    Raises:
        DivergedError: there is no checkpoint.
    """
    progress = restore(work, session, optimizer, checkpoints, config, before=decision.before)
    if progress.fresh:
        which = "any checkpoint" if decision.before is None else f"a checkpoint older than step {decision.before}"
        raise DivergedError(f"{decision.fault}, before {which} to roll back to; {ADVICE}")
    session.reporter.warn(f"{decision.fault}: rolled back to step {progress.step}")
    return progress


def record_of(
    work: Workload,
    session: Session,
    progress: Progress,
    round_number: int,
    score: float | None,
) -> dict[str, Any]:
    """Return the content of `state.json`: everything that is not a tensor."""
    return {
        "schema": 1,
        "step": progress.step,
        "samples": progress.step * work.global_batch,
        "epoch": epochs(work, progress.step),
        "time": time.time(),
        "world": session.world.size,
        "strategy": session.parallel.strategy,
        "precision": session.precision.name,
        "scaler": session.precision.state(),
        "round": round_number,
        "versions": {"torch": torch.__version__},
        "metrics": progress.metrics,
        "score": score if score is not None and math.isfinite(score) else None,
    }


def identity_of(work: Workload, parallel: Parallel) -> dict[str, Any]:
    """Return what a resumed run must have in common with the first one. Collective.

    That is the data, the seed, all weight shapes, and the values of the frozen parameters at the start.
    """
    shapes = "\n".join(f"{name} {tuple(tensor.shape)}" for name, tensor in parallel.module.state_dict().items())
    size, base = size_of(work), parallel.frozen_base.fingerprint
    finite = {} if size is None else {"datasetSize": size}
    source = {} if work.source is None else {"dataset": work.source.fingerprint}
    frozen = {FROZEN_BASE: base} if base else {}
    average = {} if work.average_decay is None else {"decay of the moving average": work.average_decay}
    shape = hashlib.sha256(shapes.encode()).hexdigest()[:16]
    return {**work.identity, **work.fingerprints, **finite, **source, **frozen, **average, MODEL_SHAPE: shape}


def compare_elsewhere(path: Path, identity: dict[str, Any], *, only: Collection[str] | None = None) -> None:
    """Compare a run with the run of the checkpoint at `path`, if that has a `run.json`.

    Args:
        path: a checkpoint folder, one of its step folders, or `best` below the former.
        identity: of this run.
        only: names to compare; None: all of them.

    Raises:
        DataMismatchError: they differ.
    """
    home = _home(path)
    if home is not None:
        compare_identity(home, identity, only=only)


def _home(path: Path) -> Path | None:
    """Find the run.json of a checkpoint folder or of one of its checkpoints."""
    home = resolve(path).root / "run.json"
    return home if home.is_file() else None
