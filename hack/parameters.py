"""The reference pages of the workloads' parameters, from their schemas and presets."""

import json
from collections.abc import Mapping
from typing import Any

from torchyard.api.reference import type_text
from torchyard_trainers.cvrp import params as cvrp
from torchyard_trainers.lm import params as lm
from torchyard_trainers.vecrl import params as vecrl
from torchyard_trainers.vla import params as vla
from torchyard_trainers.vlm import params as vlm

# Workload -> column of the table -> what a preset fills in, by the names of Python.
PRESETS: dict[str, Mapping[str, Mapping[str, Any]]] = {
    "cvrp": cvrp.PRESETS,
    "vecrl": {
        f"{preset}, {environment}": values
        for preset, environments in vecrl.PRESETS.items()
        for environment, values in environments.items()
    },
    "lm": {
        f"{preset}, {method}": values for preset, methods in lm.PRESETS.items() for method, values in methods.items()
    },
    "vla": vla.PRESETS,
    "vlm": vlm.PRESETS,
}

_CHOOSE = ("preset", "environment", "method")  # what chooses the column


def parameters_markdown(workload: str, schema_json: str) -> str:
    """Return the page of one workload: each parameter, its value in presets, its meaning."""
    definitions = json.loads(schema_json)["$defs"]
    schema = definitions["Params"]
    columns = PRESETS[workload]
    head = ["Field", "Type", *(f"`{name}`" for name in columns), "Meaning"]
    rows = [head, ["---"] * len(head)]
    properties = _without_references(schema["properties"], definitions)
    rows += [_row(name, field, columns) for name, field in properties.items()]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return (
        f"# Parameters of `{workload}`\n\n{schema['description']} Generated from the model: every field of "
        f"`spec.trainer.params`,\nand what stands for it in each preset.\n\n{table}\n"
    )


def _without_references(node: Any, definitions: Mapping[str, Any]) -> Any:
    """Return a part of a schema with definitions in place of references to them."""
    if isinstance(node, list):
        return [_without_references(each, definitions) for each in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        node = definitions[node["$ref"].rpartition("/")[2]] | {key: node[key] for key in node if key != "$ref"}
        node = {key: value for key, value in node.items() if key != "additionalProperties" or value}
    return {key: _without_references(value, definitions) for key, value in node.items()}


def _row(name: str, field: Mapping[str, Any], columns: Mapping[str, Mapping[str, Any]]) -> list[str]:
    own = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    default = field.get("default")
    values = [None if name in _CHOOSE else preset.get(own, default) for preset in columns.values()]
    kind = next((one for one in field.get("anyOf", ()) if one.get("type") != "null"), field)
    cells = ["" if value is None else f"`{value:g}`" if isinstance(value, float) else f"`{value}`" for value in values]
    return [f"`{name}`", type_text(kind), *cells, field["description"].replace("|", "\\|")]
