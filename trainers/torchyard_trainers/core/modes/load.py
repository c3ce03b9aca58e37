"""Loads the checkpoint for eval and export: the newest, the best, or a given one."""

from pathlib import Path
from typing import Any

from torchyard_trainers.core.checkpoints.checkpoint import FROZEN_BASE, MODEL_SHAPE, read_newest, resolve
from torchyard_trainers.core.checkpoints.resume import compare_elsewhere, identity_of
from torchyard_trainers.core.checkpoints.shards import Shards, fill_average, fill_weights, reader_of
from torchyard_trainers.core.exits import CheckpointError
from torchyard_trainers.core.loop import Run
from torchyard_trainers.core.workload import Session, Workload


def load_chosen(work: Workload, session: Session, run: Run) -> tuple[dict[str, Any], Path]:
    """Load the weights of a checkpoint; return its record and its folder. Collective.

    `checkpoint.resumeFrom` names it; the default is the newest of the job's folder. No checkpoint is changed.
    Of a workload with a moving average of the weights, that is loaded.
    The evaluation data may differ from the training data, the model may not. If the job's folder has no checkpoint and
    none is named, the weights are those that the workload starts from, of a Hugging Face folder.

    Raises:
        CheckpointError: there is no readable checkpoint.
        DataMismatchError: it holds another model.
    """
    session.reporter.phase("restore")
    wanted = run.config.checkpoint.resume_from
    root = Path(wanted) if wanted else run.checkpoint_dir

    identity = identity_of(work, session.parallel)
    names = (*work.architecture, *work.fingerprints, MODEL_SHAPE, FROZEN_BASE)
    session.world.from_leader(lambda: compare_elsewhere(root, identity, only=names))

    def fill(storage: Shards, folder: Path) -> None:
        fill_weights(session.parallel, storage, folder)
        if session.average is not None:
            fill_average(session.average, storage, folder)
            session.average.replace_weights()

    found = read_newest(root, session.world, reader_of(resolve(root).root, session.world), fill)
    if found.record is None and not found.skipped and wanted is None and work.pretrained is not None:
        return {"step": 0}, work.pretrained.folder
    if found.record is None or found.folder is None:
        raise CheckpointError(
            f"trainer.mode: {run.config.trainer.mode} needs a checkpoint, but {root} holds none; name the job or the "
            "folder that has one in checkpoint.resumeFrom"
        )
    for skipped in found.skipped:
        session.reporter.warn(f"checkpoint passed over: {skipped}")
    session.reporter.progress(found.record["step"], found.record["step"])
    return found.record, found.folder
