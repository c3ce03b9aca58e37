"""Structural schemas of a sweep, made from its models."""

from functools import cache

import msgspec

from torchyard.api import free_form
from torchyard.api.forms import DNS_LABEL_PATTERN
from torchyard.api.resource import API_VERSION
from torchyard.api.schema import ANY, Schema, structural
from torchyard.sweep.resource import KIND, MAX_SWEEP_NAME
from torchyard.sweep.spec import TrainingSweepSpec

_VALUE: Schema = {ANY: True, "nullable": True, "maxLength": 256, "maxItems": 0, "maxProperties": 0}
_TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}


@cache
def spec_schema() -> Schema:
    """Schema of `spec`; shared, do not change it."""
    schema = structural(msgspec.json.schema(TrainingSweepSpec, schema_hook=free_form.schema))
    parameter = schema["properties"]["parameters"]["items"]["properties"]
    parameter["choice"]["items"] = dict(_VALUE)
    parameter["conditions"]["items"]["properties"]["values"]["items"] = dict(_VALUE)
    return schema


@cache
def object_schema() -> Schema:
    """Schema of the whole object as people write it."""
    name: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_SWEEP_NAME, "pattern": DNS_LABEL_PATTERN}
    metadata: Schema = {
        "name": {**name, "description": "the name of the sweep"},
        "namespace": {"type": "string", "minLength": 1, "maxLength": 63, "pattern": DNS_LABEL_PATTERN},
        "labels": _TEXTS,
        "annotations": _TEXTS,
        "generation": {"type": "integer"},
        **{key: {"type": "string"} for key in ("uid", "resourceVersion", "creationTimestamp", "deletionTimestamp")},
        **{key: {} for key in ("finalizers", "ownerReferences", "managedFields", "deletionGracePeriodSeconds")},
    }
    return {
        "type": "object",
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "properties": {
            "apiVersion": {"type": "string", "enum": [API_VERSION], "description": f"apiVersion: {API_VERSION}"},
            "kind": {"type": "string", "enum": [KIND], "description": f"kind: {KIND}"},
            "metadata": {
                "type": "object",
                "description": "metadata: {name: ...}",
                "required": ["name"],
                "properties": metadata,
            },
            "spec": spec_schema(),
        },
    }
