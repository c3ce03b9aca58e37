"""Types and functions shared by the parameters of all workloads. Does not import torch."""

from importlib import import_module
from types import ModuleType
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from torchyard_trainers.core.config import convert
from torchyard_trainers.core.exits import ConfigError

Count = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
Positive = Annotated[float, Meta(gt=0)]
P = TypeVar("P", bound=Struct)

METRICS = ("loss", "gradNorm", "learningRate", "skippedSteps", "dataWaitShare", "memoryPeakBytes")
"""Metrics of the training loop, which every workload has."""


def doc(text: str) -> Meta:
    """Describe a field; the text reaches the JSON Schema and the reference page."""
    return Meta(description=text)


# The fields of LoRA of all workloads.
LoraRank = Annotated[
    Annotated[int, Meta(ge=1, le=4096)] | None,
    doc("Rank of LoRA adapters, trained in place of the layers that have them; default: those of the preset, or none."),
]
LoraAlpha = Annotated[
    Positive | None,
    doc("The product of both adapters is multiplied by loraAlpha / loraRank; default: twice the rank."),
]
LoraTargets = Annotated[
    Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(max_length=64)] | None,
    doc("Names of the linear layers that get adapters, such as q_proj; default: all of the language model."),
]


def read(raw: dict[str, Any], kind: type[P]) -> P:
    """Check the `trainer.params` of a config.

    Raises:
        ConfigError: naming the field, the value and what is expected.
    """
    return convert(raw, kind, at="trainer.params")


def given(params: Struct) -> dict[str, Any]:
    """Return the fields that are set; the preset has the others."""
    return {name: value for name, value in msgspec.structs.asdict(params).items() if value is not None}


def module_of(path: str, at: str) -> ModuleType:
    """Import the module of a field that names code of the user's.

    Args:
        path: of the module.
        at: the field and its value, which an error begins with.

    Raises:
        ConfigError: there is no such module.
    """
    try:
        return import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise  # the module exists, and an import inside it fails
        where = "set workingDir to its folder, or add the folder to PYTHONPATH"
        raise ConfigError(f"{at}, but there is no module {error.name!r}; {where}") from error
