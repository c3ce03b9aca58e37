"""Parameters of the built-in trainers, checked against the schema each of them publishes (docs/protocol.md)."""

import json
from functools import cache
from importlib.resources import files

from torchyard.api.check import Report, check
from torchyard.api.schema import Schema, structural
from torchyard.api.yaml_tree import At


@cache
def params_schema(trainer: str) -> Schema | None:
    """Schema of `trainer.params`; None for a trainer that publishes none."""
    resource = files("torchyard.api") / "params" / f"{trainer}.json"
    return structural(json.loads(resource.read_text("utf-8"))) if resource.is_file() else None


def check_params(trainer: str, params: At, report: Report) -> None:
    """Report every parameter the trainer would refuse."""
    schema = params_schema(trainer)
    if schema is not None:
        check(schema, params, "spec.trainer.params", report)
