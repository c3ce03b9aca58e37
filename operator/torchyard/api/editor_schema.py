"""JSON Schema of job files for editors: completion, descriptions and mistakes while a file is written.

Draft 7, which the YAML language server understands. The parameters of a built-in workload follow from its name.
"""

from collections.abc import Mapping
from typing import Any

from torchyard.api.schema import INT_OR_STRING, Schema

_DIALECT = "http://json-schema.org/draft-07/schema#"
_TRAINER = {"name", "mode", "params"}
"""Fields of the section whose `params` depend on its `name`."""


def editor_schema(objects: Mapping[str, Schema], parameters: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the JSON Schema of a document that is one of several kinds.

    Args:
        objects: structural schema of an object as users write it, by kind.
        parameters: JSON Schema of the parameters of each built-in workload, with `$defs`, by name.
    """
    definitions: dict[str, Any] = {kind: _converted(schema, parameters) for kind, schema in objects.items()}
    for workload, document in parameters.items():
        for name, definition in document["$defs"].items():
            definitions[f"{workload}.{name}"] = _within(definition, workload)
    return {
        "$schema": _DIALECT,
        "title": f"{' or '.join(objects)} of TorchYard",
        "type": "object",
        "required": ["apiVersion", "kind"],
        "properties": {"kind": {"enum": list(objects)}},
        "allOf": [_where("kind", kind, {"$ref": f"#/definitions/{kind}"}) for kind in objects],
        "definitions": definitions,
    }


def _where(field: str, value: str, schema: Schema) -> Schema:
    return {"if": {"required": [field], "properties": {field: {"const": value}}}, "then": schema}


def _converted(node: Schema, parameters: Mapping[str, Any]) -> Schema:
    """Return a structural schema as JSON Schema, in which a field that is not declared is a mistake."""
    schema = {key: value for key, value in node.items() if not key.startswith("x-") and key != "nullable"}
    if node.get(INT_OR_STRING):
        schema["type"] = ["integer", "string"]
    if "properties" in node:
        optional = node["properties"].keys() - set(node.get("required", ()))
        fields = {name: _converted(child, parameters) for name, child in node["properties"].items()}
        schema["properties"] = {name: _or_null(field) if name in optional else field for name, field in fields.items()}
        schema["additionalProperties"] = False
        if node["properties"].keys() >= _TRAINER:
            schema["allOf"] = [
                _where("name", name, {"properties": {"params": {"$ref": f"#/definitions/{name}.Params"}}})
                for name in parameters
            ]
    elif isinstance(node.get("additionalProperties"), dict):
        schema["additionalProperties"] = _converted(node["additionalProperties"], parameters)
    if isinstance(node.get("items"), dict):
        schema["items"] = _converted(node["items"], parameters)
    return schema


def _or_null(schema: Schema) -> Schema:
    """Return a schema that accepts null, too, which means the same as no field."""
    if "type" not in schema:
        return schema
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    enum = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return schema | {"type": [*kinds, "null"]} | enum


def _within(node: Any, workload: str) -> Any:
    """Return a schema whose references lead to the definitions of a workload."""
    if isinstance(node, list):
        return [_within(each, workload) for each in node]
    if not isinstance(node, dict):
        return node
    references = {"$ref": f"#/definitions/{workload}.{node['$ref'].rpartition('/')[2]}"} if "$ref" in node else {}
    return {name: _within(child, workload) for name, child in node.items()} | references
