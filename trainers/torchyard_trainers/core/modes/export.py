"""Mode `export`, and the export at the end of training."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from torchyard_trainers import registry
from torchyard_trainers.core import loop
from torchyard_trainers.core.config import Export
from torchyard_trainers.core.export import hf
from torchyard_trainers.core.export.publish import EXPORTS, MANIFEST, export, report_export
from torchyard_trainers.core.loop import Run
from torchyard_trainers.core.modes.finish import finish_reading
from torchyard_trainers.core.modes.load import load_chosen
from torchyard_trainers.core.workload import Session, Workload


def export_checkpoint(work: Workload, session: Session, run: Run) -> dict[str, float]:
    """Export the chosen checkpoint, with metrics of these weights.

    Raises:
        CheckpointError: there is no checkpoint.
        ExportError: a format does not hold what the model is.
    """
    record, _folder = load_chosen(work, session, run)
    session.reporter.phase("eval")
    metrics = work.evaluate(session)
    session.reporter.metrics(metrics)
    _export(session, run, record["step"], metrics, formats_of(run.config.export))
    finish_reading(run, record["step"], metrics)
    return metrics


def train(work: Workload, session: Session, run: Run) -> Mapping[str, float]:
    """Train, then write the requested formats; report again those that an earlier round has written.

    Raises:
        ExportError: a format does not match the model; the weights and DONE are written.
        TrainerError: and others that carry their exit code.
    """
    metrics = loop.train(work, session, run)
    if run.config.export is None:
        return metrics
    formats = formats_of(run.config.export)
    missing = session.world.from_leader(
        lambda: [name for name in formats if not _reported_again(run, name, work.total_steps)]
    )
    if missing:
        _export(session, run, work.total_steps, metrics, missing)
    return metrics


def formats_of(settings: Export | None) -> list[str]:
    """Return the formats to write: the weights as safetensors are always among them, as `hf` has them too."""
    asked = settings.formats if settings is not None else []
    return list(dict.fromkeys([*([] if set(asked) & set(hf.FORMATS) else ["safetensors"]), *asked]))


def _export(session: Session, run: Run, step: int, metrics: Mapping[str, float], formats: Sequence[str]) -> None:
    config = run.config
    facts: dict[str, Any] = {
        "job": config.job.name,
        "trainer": {"name": config.trainer.name, "params": config.trainer.params},
        "step": step,
        "metrics": dict(metrics),
    }
    verify = config.export is None or config.export.verify
    export(lambda: registry.build(config), session, run.checkpoint_dir, formats, facts, verify=verify)


def _reported_again(run: Run, name: str, step: int) -> bool:
    """Whether an earlier round exported these weights; if so, report the export again."""
    try:
        manifest = json.loads((run.checkpoint_dir / EXPORTS / name / MANIFEST).read_text())
    except (FileNotFoundError, ValueError):
        return False
    if not isinstance(manifest, dict) or manifest.get("step") != step:
        return False
    report_export(run.checkpoint_dir, name, manifest, run.reporter)
    return True
