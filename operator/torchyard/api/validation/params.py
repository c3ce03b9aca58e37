"""Parameters of the built-in trainers, checked against the schema each of them publishes (docs/protocol.md)."""

import itertools
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from torchyard.api.schema import Schema, structural
from torchyard.api.validation.check import Report, check
from torchyard.api.validation.yaml_tree import At

MAX_DEPTH, MAX_LOOKED_AT = 2, 8


@cache
def params_schema(trainer: str) -> Schema | None:
    """Schema of `trainer.params`; None for a trainer that publishes none."""
    published = _published(trainer)
    return structural(published) if published is not None else None


def trainer_metrics(trainer: str) -> tuple[str, ...]:
    """Return the metrics that a built-in trainer reports; () for a trainer that publishes none."""
    published = _published(trainer)
    return tuple(published["x-metrics"]) if published is not None else ()


@cache
def _published(trainer: str) -> dict[str, Any] | None:
    resource = files("torchyard.api") / "params" / f"{trainer}.json"
    if not resource.is_file():
        return None
    published: dict[str, Any] = json.loads(resource.read_text("utf-8"))
    return published


def params_faults(trainer: str, params: Mapping[str, Any]) -> list[str]:
    """Return what a built-in trainer would reject in its parameters: path, fault and fix, one text each.

    No more than a few values of a list or a mapping are looked at: these may be 64 KiB of any user's JSON.
    """
    found: list[str] = []
    tree = At(value={name: _tree(child, MAX_DEPTH) for name, child in params.items()}, line=0)

    def report(path: str, _at: At, what: str, fix: str) -> None:
        found.append(f"{path}: {what}: {fix}")

    check_params(trainer, tree, report)
    return found


def _tree(value: Any, depth: int) -> At:
    """Return a value as if it had been read from YAML, and had no more than a few items at each level."""
    few = MAX_LOOKED_AT if depth else 0
    if isinstance(value, Mapping):
        items = itertools.islice(value.items(), few)
        return At(value={name: _tree(child, depth - 1) for name, child in items}, line=0)
    if isinstance(value, list):
        return At(value=[_tree(child, depth - 1) for child in value[:few]], line=0)
    return At(value=value, line=0)


def check_params(trainer: str, params: At, report: Report) -> None:
    """Report every parameter the trainer would refuse."""
    schema = params_schema(trainer)
    if schema is not None:
        check(schema, params, "spec.trainer.params", report)
