"""Which features of a LeRobot dataset are the state of the robot and its action."""

from collections.abc import Mapping

from torchyard_trainers.core.data.lerobot import LeRobot
from torchyard_trainers.core.exits import DataError

STATE, ACTION = "observation.state", "action"
# Keys of `fields` -> LeRobot's names.
_USUAL = {"state": STATE, "action": ACTION}


def robot_features(dataset: LeRobot, fields: Mapping[str, str]) -> dict[str, str]:
    """Return the features that are STATE and ACTION: those of `fields` (`state`, `action`), else of the same name.

    Raises:
        DataError: the dataset has no such feature, or it is not a vector of numbers.
    """
    named = {ours: fields.get(ours, usual) for ours, usual in _USUAL.items()}
    missing = [ours for ours, name in named.items() if name not in dataset.features]
    if missing:
        raise DataError(f"{dataset.folder}: no feature {named[missing[0]]!r}; {_suggested(dataset, fields, missing)}")
    for name in named.values():
        dataset.width(name)
    return {usual: named[ours] for ours, usual in _USUAL.items()}


def lacking(dataset: LeRobot) -> list[str]:
    """Return what a dataset lacks to learn from it: a camera, a state and actions, with what to do."""
    found = [] if dataset.cameras else [no_camera(dataset)]
    try:
        robot_features(dataset, {})
    except DataError as error:
        found.append(str(error))
    return found


def no_camera(dataset: LeRobot) -> str:
    """Return the error about a dataset without images."""
    return f"{dataset.folder}: no feature is an image or a video; the model needs at least one camera"


def _suggested(dataset: LeRobot, fields: Mapping[str, str], missing: list[str]) -> str:
    """Return what to set for names that a dataset does not have, as `state` and `actions` of openpi's."""
    there = [name for name, each in dataset.features.items() if len(each["shape"]) == 1]
    likely = {ours: next((name for name in there if ours in name.rpartition(".")[2]), "...") for ours in missing}
    pairs = ", ".join(f"{ours}: {name}" for ours, name in {**fields, **likely}.items())
    return f"set trainer.params.fields: {{{pairs}}}; the features are {', '.join(dataset.features)}"
