"""The texts of a spec in which users name folders: command, args, env and the parameters of a trainer."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from torchyard.api.spec import TrainingJobSpec
from torchyard.api.values import Params


def with_texts(spec: TrainingJobSpec, fill: Callable[[str], str], mark: bytes) -> TrainingJobSpec:
    """Return the spec with other texts.

    Args:
        spec: of a job.
        fill: returns the text in the place of another one.
        mark: bytes that the JSON of parameters has where `fill` changes one of them.
    """
    trainer = spec.trainer
    if trainer is not None and mark in trainer.params.json:
        trainer = replace(trainer, params=Params(_filled(trainer.params.decoded(), fill)))
    return replace(
        spec,
        command=[*map(fill, spec.command)],
        args=[*map(fill, spec.args)],
        env=[replace(each, value=fill(each.value)) for each in spec.env],
        trainer=trainer,
    )


def _filled(value: Any, fill: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return fill(value)
    if isinstance(value, Mapping):
        return {name: _filled(below, fill) for name, below in value.items()}
    return [_filled(below, fill) for below in value] if isinstance(value, list) else value
