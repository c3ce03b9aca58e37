"""The end of a run: weights for everyone, a summary, and DONE. Without DONE an exit code 0 means nothing."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from torchyard_trainers.core.checkpoints.commits import write_atomically
from torchyard_trainers.core.checkpoints.files import read_record
from torchyard_trainers.core.export.hf import MODEL
from torchyard_trainers.core.export.sharded import Entry, write_files
from torchyard_trainers.core.json_text import json_of
from torchyard_trainers.core.metrics.curves import say
from torchyard_trainers.core.named_tensors import whole
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.workload import Session, Workload, write_report
from torchyard_trainers.core.world import World


def finish(work: Workload, session: Session, metrics: Mapping[str, float], root: Path) -> None:
    """Write `final/model.safetensors`, `final/summary.json`, the workload's report, and DONE."""
    session.reporter.phase("export")
    write_report(work, session, root / "final", root / "metrics.jsonl")
    final, world = root / "final", session.world
    world.from_leader(lambda: final.mkdir(exist_ok=True))
    entries = _entries(session.parallel.module)
    files = write_files(entries, final, MODEL, world, shared=world.shares(root), verify=False)

    def publish() -> None:
        summary = work.summary(metrics)
        write_atomically(final / "summary.json", json_of(summary, indent=1))
        for name in files:
            session.reporter.artifact(name, final / name)
        mark_done(root, work.total_steps, metrics, artifacts=session.reporter.facts["artifacts"])
        say(summary["text"])

    session.world.from_leader(publish)
    _mark_on_every_node(root, session.world, work.total_steps, metrics)


def _entries(module: nn.Module) -> list[Entry]:
    """Return all weights by name; a tied weight has all its names."""
    return [
        Entry(name, tensor.numel() * tensor.element_size(), lambda tensor=tensor: whole(tensor))  # type: ignore[misc]
        for name, tensor in module.state_dict().items()
    ]


def mark_done(root: Path, step: int, metrics: Mapping[str, float], artifacts: Sequence[Mapping[str, Any]] = ()) -> None:
    """Write DONE, the last file of a run. `artifacts`: as they were reported, for a round that finds the run done."""
    facts = {"step": step, "time": time.time(), "metrics": dict(metrics), "artifacts": list(artifacts)}
    write_atomically(root / "DONE", json_of(facts))


def is_finished(root: Path, world: World, reporter: Reporter, total_steps: int) -> bool:
    """Whether an earlier round wrote DONE for at least as many steps; remove DONE of a shorter run.

    The artifacts of that round are reported again: its last report may have been lost with its node.
    """

    def look() -> bool:
        path = root / "DONE"
        try:
            done = read_record(path)
            if done["step"] >= total_steps:
                for artifact in done.get("artifacts", ()):
                    reporter.made(artifact)
                return True
        except (FileNotFoundError, ValueError, KeyError):
            pass
        path.unlink(missing_ok=True)
        return False

    done = world.from_leader(look)
    if done:
        _mark_on_every_node(root, world, total_steps, {})
    elif world.local_rank == 0:
        (root / "DONE").unlink(missing_ok=True)
    return done


def _mark_on_every_node(root: Path, world: World, step: int, metrics: Mapping[str, float]) -> None:
    """Write DONE on nodes whose checkpoint folder is local: their agents look for it there."""
    if world.local_rank == 0 and not (root / "DONE").exists():
        root.mkdir(parents=True, exist_ok=True)
        mark_done(root, step, metrics)
