"""`checkpoint.initFrom`: a run that begins with the weights of another one, and with nothing else of it.

The other run may be of another workload, so its identity is not compared; the names and shapes of its weights are.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from torchyard_trainers.core.checkpoints.checkpoint import read_newest, resolve
from torchyard_trainers.core.checkpoints.shards import Shards, reader_of
from torchyard_trainers.core.exits import CheckpointError, DataMismatchError
from torchyard_trainers.core.hub import folder_fix
from torchyard_trainers.core.named_tensors import names_of
from torchyard_trainers.core.pretrained import FILE, INDEX, Pretrained, canonical, is_adapter, stream
from torchyard_trainers.core.workload import Session, Workload

FIELD = "checkpoint.initFrom"
_SHOWN = 5  # names in an error


def load_starting_weights(work: Workload, session: Session, path: Path) -> dict[str, Any]:
    """Fill the model from a checkpoint of any run, or from a Hugging Face folder. Collective.

    Args:
        work: its model is that of the session.
        session: the model to fill.
        path: a checkpoint folder, one of its checkpoints, or a folder of safetensors.

    Returns:
        What the weights are of, for run.json: a folder, and a step if it is a checkpoint.

    Raises:
        CheckpointError: there is no readable checkpoint.
        ConfigError: the folder has no safetensors.
        DataMismatchError: weights are missing, unexpected, or of another shape.
    """
    world, module = session.world, session.parallel.module
    if world.from_leader(lambda: (path / FILE).is_file() or (path / INDEX).is_file()):
        stream(_as_folder(work, module, path), module, world)
        return {"folder": str(path)}

    def fill(storage: Shards, folder: Path) -> None:
        wanted, left = match(names_of(module), storage.weights(folder), frozen_are_read=work.pretrained is not None)
        if left:
            session.reporter.warn(f"{FIELD}: {path} has no {', '.join(left)}: these parts have their initial weights")
        try:
            storage.load({"model": {name: tensor.detach() for name, tensor in wanted.items()}}, folder)
        except CheckpointError as error:
            raise DataMismatchError(f"{FIELD}: {error}") from error

    found = read_newest(path, world, reader_of(resolve(path).root, world), fill)
    for skipped in found.skipped:
        session.reporter.warn(f"{FIELD}: checkpoint passed over: {skipped}")
    if found.record is None:
        fix = "name a job that has trained here, its checkpoint folder, or the folder of a Hugging Face model"
        fix += f"; {folder_fix(str(path), 'model')}" if not path.exists() else ""
        raise CheckpointError(f"{FIELD}: {path} holds neither a checkpoint nor {FILE}; {fix}")
    return {"folder": str(found.folder), "step": found.record["step"]}


def match(
    held: Mapping[str, Tensor], there: Collection[str], *, frozen_are_read: bool
) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors to load by their names in a checkpoint, and the parts of the model that it lacks.

    A checkpoint of a whole model fills the base of one with adapters. Adapters, frozen weights that are read from
    pretrained files, and parts of the model of which the checkpoint has nothing (a new head) may be missing.

    Args:
        held: tensors of the model by name.
        there: names in the checkpoint.
        frozen_are_read: whether frozen parameters have been read from files already.

    Raises:
        DataMismatchError: naming other tensors that are missing or unexpected.
    """
    wanted: dict[str, Tensor] = {}
    missing: list[tuple[str, Tensor]] = []
    filled: set[int] = set()
    for name, tensor in held.items():
        source = next((each for each in (name, canonical(name)) if each in there), None)
        if source is None:
            missing.append((name, tensor))
        else:
            wanted[source] = tensor
            filled.add(id(tensor))
    parts_there = {_part(name) for name in there}
    parts_here = {_part(name) for name in held}
    lost, new = [], []
    for name, tensor in missing:
        read = isinstance(tensor, nn.Parameter) and not tensor.requires_grad and frozen_are_read
        if id(tensor) in filled or is_adapter(name) or read:  # a tied weight has several names
            continue
        (lost if _part(name) in parts_there else new).append(name)
    odd = [name for name in there if name not in wanted and _part(name) in parts_here]
    faults = {"missing": lost, "unexpected": odd}
    if not wanted:
        faults["missing"] = [*lost, *new]
    if any(faults.values()):
        listed = "; ".join(f"{len(names)} {kind}: {_some(names)}" for kind, names in faults.items() if names)
        raise DataMismatchError(f"{FIELD}: these are weights of another model: {listed}; name a run of this model")
    return wanted, sorted({_part(name) for name in new})


def _as_folder(work: Workload, module: nn.Module, path: Path) -> Pretrained:
    """Return the folder as weights of the part of the model that `Workload.pretrained` or transformers means."""
    if work.pretrained is not None:
        return replace(work.pretrained, folder=path, field=FIELD)
    names = (name for name, each in module.named_modules() if hasattr(each, "save_pretrained"))
    part = next(names, "")
    return Pretrained(path, f"{part}." if part else "", field=FIELD)


def _part(name: str) -> str:
    return name.partition(".")[0]


def _some(names: Collection[str]) -> str:
    shown = sorted(names)[:_SHOWN]
    return ", ".join(shown) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
