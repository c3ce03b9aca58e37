"""Parameters of the built-in trainers, checked against the schema each of them publishes (docs/protocol.md)."""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from torchyard.api.check import Report, check
from torchyard.api.schema import Schema, structural
from torchyard.api.yaml_tree import At


@cache
def params_schema(trainer: str) -> Schema | None:
    """Schema of `trainer.params`; None for a trainer that publishes none."""
    resource = files("torchyard.api") / "params" / f"{trainer}.json"
    return structural(json.loads(resource.read_text("utf-8"))) if resource.is_file() else None


def params_faults(trainer: str, params: Mapping[str, Any]) -> list[str]:
    """Return what a built-in trainer would reject in its parameters: path, fault and fix, one text each."""
    found: list[str] = []
    tree = _tree(params)

    def report(path: str, _at: At, what: str, fix: str) -> None:
        found.append(f"{path}: {what}: {fix}")

    check_params(trainer, tree, report)
    return found


def _tree(value: Any) -> At:
    """Return a value as if it had been read from YAML."""
    if isinstance(value, Mapping):
        return At(value={name: _tree(child) for name, child in value.items()}, line=0)
    if isinstance(value, list):
        return At(value=[_tree(child) for child in value], line=0)
    return At(value=value, line=0)


def check_params(trainer: str, params: At, report: Report) -> None:
    """Report every parameter the trainer would refuse."""
    schema = params_schema(trainer)
    if schema is not None:
        check(schema, params, "spec.trainer.params", report)
