"""Structural schemas, made from the models: what the CRD holds, `validate` walks and the reference page lists.

A structural schema is the subset of OpenAPI that the API server prunes, defaults and checks by: every node has a type
or is an int-or-string, no references, no unions.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import msgspec

from torchyard.api import values
from torchyard.api.names import MAX_JOB_NAME
from torchyard.api.reasons import Reason
from torchyard.api.resource import API_VERSION, KIND
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.status import TrainingJobStatus
from torchyard.api.values import DNS_LABEL_PATTERN, Model

Schema = dict[str, Any]

INT_OR_STRING = "x-kubernetes-int-or-string"
FORM = "x-form"
"""Of parameters of a trainer, beside a pattern: a description of the form."""
ANY = "x-kubernetes-preserve-unknown-fields"
LIST_TYPE = "x-kubernetes-list-type"
LIST_KEYS = "x-kubernetes-list-map-keys"
MAP_TYPE = "x-kubernetes-map-type"
_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_JOB_NAME, "pattern": DNS_LABEL_PATTERN}
_INT32 = 2**31 - 1
_KEPT = (
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "pattern",
    FORM,
    LIST_TYPE,
    LIST_KEYS,
)


@cache
def spec_schema() -> Schema:
    """Return the schema of `spec`; shared, do not change it."""
    return structural(described(TrainingJobSpec))


@cache
def status_schema() -> Schema:
    """Return the schema of `status`; shared, do not change it. The operator fills the defaults in, so it has none.

    It has one owner, the operator, and is owned as a whole: a list of all its fields and their owner would be a third
    of every object (docs/decisions/0017-cost-of-status-writes.md).
    """
    return status_of(TrainingJobStatus)


def status_of(model: type[msgspec.Struct]) -> Schema:
    """Return the schema of a status that the operator alone writes."""
    document = msgspec.json.schema(model, schema_hook=values.schema)
    if Reason.__name__ in document["$defs"]:
        document["$defs"][Reason.__name__] = {"type": "string"}  # other versions of the operator know other reasons
    return {**_without_defaults(structural(document)), MAP_TYPE: "atomic"}


@cache
def object_schema() -> Schema:
    """Schema of the whole object as people write it; the API server knows more of `metadata` and fills `status`."""
    schema = object_of(KIND, {**_NAME, "description": "the name of the job"}, spec_schema())
    return {**schema, "properties": {**schema["properties"], "status": {}}}


def object_of(kind: str, name: Schema, spec: Schema) -> Schema:
    """Return the schema of an object as users write it.

    Args:
        kind: of the object.
        name: schema of `metadata.name`.
        spec: schema of `spec`.
    """
    text_map = {"type": "object", "additionalProperties": {"type": "string"}}
    metadata: Schema = {
        "name": name,
        "namespace": {"type": "string", "minLength": 1, "maxLength": 63, "pattern": DNS_LABEL_PATTERN},
        "labels": text_map,
        "annotations": text_map,
        "generation": {"type": "integer"},
        **{key: {"type": "string"} for key in ("uid", "resourceVersion", "creationTimestamp", "deletionTimestamp")},
        **{key: {} for key in ("finalizers", "ownerReferences", "managedFields", "deletionGracePeriodSeconds")},
    }
    return {
        "type": "object",
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": {"type": "string", "enum": [API_VERSION], "description": f"apiVersion: {API_VERSION}"},
            "kind": {"type": "string", "enum": [kind], "description": f"kind: {kind}"},
            "metadata": {
                "type": "object",
                "description": "metadata: {name: ...}",
                "required": ["name"],
                "properties": metadata,
            },
            "spec": spec,
        },
    }


def described(model: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON Schema of a model of the spec; msgspec alone describes the defaults of plain values only."""
    document = msgspec.json.schema(model, schema_hook=values.schema)
    for section in _below(Model):
        properties = document["$defs"].get(section.__name__, {}).get("properties", {})
        for item in msgspec.structs.fields(section) if properties else ():
            default = item.default_factory() if item.default_factory is not msgspec.NODEFAULT else None
            if isinstance(default, values.Duration):
                properties[item.encode_name]["default"] = str(default)
    return document


def _below(model: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for each in model.__subclasses__():
        yield each
        yield from _below(each)


def structural(document: Mapping[str, Any]) -> Schema:
    """Turn a JSON Schema as msgspec writes it into a structural one.

    Raises:
        ValueError: the schema uses a form that has no structural counterpart.
    """
    return _convert(document, document.get("$defs", {}))


def _convert(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    schema: Schema = {}
    if "description" in node:
        schema["description"] = node["description"]
    if "$ref" in node:
        target = _convert(definitions[node["$ref"].rpartition("/")[2]], definitions)
        return {**target, **schema, **_section_default(target)}
    if "anyOf" in node:
        return {**_union(node["anyOf"], definitions), **schema, **_default(node)}
    if ANY in node:
        return _any(node, definitions)
    if "enum" in node:
        return {**schema, "type": "string", "enum": list(node["enum"]), **_default(node)}
    if "type" not in node:
        return {**schema, "type": "object", ANY: True}
    schema["type"] = node["type"]
    schema.update({key: node[key] for key in _KEPT if key in node})
    if node["type"] == "integer":
        schema["format"] = "int32" if node.get("maximum", _INT32 + 1) <= _INT32 else "int64"
    if node["type"] == "array":
        schema["items"] = _convert(node.get("items", {}), definitions)
        schema["items"].pop("default", None)
        schema.setdefault(LIST_TYPE, "atomic")
    if node["type"] == "object":
        schema.update(_object(node, definitions))
    return {**schema, **_default(node)}


def _object(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    if "properties" in node:
        schema: Schema = {
            "properties": {name: _convert(child, definitions) for name, child in node["properties"].items()}
        }
        if node.get("required"):
            schema["required"] = list(node["required"])
        return schema
    return {"additionalProperties": _convert(node.get("additionalProperties", {}), definitions)}


def _any(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    """Return a value of any type, with limits for each type."""
    below = {key: _convert(node[key], definitions) for key in ("items", "additionalProperties") if key in node}
    return {ANY: True, "nullable": True, **{key: node[key] for key in _KEPT if key in node}, **below}


_SCALARS = ("boolean", "integer", "number", "string")


def _union(members: list[Mapping[str, Any]], definitions: Mapping[str, Any]) -> Schema:
    """Remove null from optional values (absent means the same); make a whole number or a text an int-or-string.

    Any of the plain types becomes any value that is no list and no mapping.
    """
    present = [member for member in members if member.get("type") != "null"]
    if len(present) == 1:
        schema = _convert(present[0], definitions)
        schema.pop("default", None)
        return schema
    if all(set(member) == {"type"} and member["type"] in _SCALARS for member in present):
        return {ANY: True, "maxItems": 0, "maxProperties": 0}
    numbers = [member for member in present if member.get("type") == "integer"]
    words = [member for member in present if "enum" in member]
    texts = [member for member in present if "pattern" in member]
    if len(words) == len(present):
        return {"type": "string", "enum": [word for member in words for word in member["enum"]]}
    if len(present) != 2 or len(numbers) != 1 or len(words) + len(texts) != 1:
        raise ValueError(f"no structural schema for the union {present}")
    bounds = {key: numbers[0][key] for key in ("minimum", "maximum") if key in numbers[0]}
    if texts:
        return {INT_OR_STRING: True, **bounds, **{key: texts[0][key] for key in _KEPT if key in texts[0]}}
    return {INT_OR_STRING: True, **bounds, "pattern": f"^({'|'.join(words[0]['enum'])})$"}


def _default(node: Mapping[str, Any]) -> Schema:
    """Return the default of a field, unless it is null or empty: an absent field means the same."""
    default = node.get("default")
    return {} if default in (None, [], {}) else {"default": default}


def _section_default(schema: Schema) -> Schema:
    """Return the default of a section that may be absent, written out: the API server applies the rules to it."""
    if "properties" not in schema or schema.get("required"):
        return {}
    fields = schema["properties"].items()
    return {"default": {name: field["default"] for name, field in fields if "default" in field}}


def _without_defaults(schema: Schema) -> Schema:
    slim = {key: value for key, value in schema.items() if key != "default"}
    if "properties" in slim:
        slim["properties"] = {name: _without_defaults(child) for name, child in slim["properties"].items()}
    for below in ("items", "additionalProperties"):
        if below in slim:
            slim[below] = _without_defaults(slim[below])
    return slim
