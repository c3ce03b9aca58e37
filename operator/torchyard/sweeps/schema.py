"""Structural schemas of a sweep, made from its models; the schema of all files that users write."""

from functools import cache
from typing import Any

from torchyard.api.editor_schema import editor_schema
from torchyard.api.profiles.resource import KIND as PROFILE_KIND
from torchyard.api.profiles.resource import object_schema as profile_schema
from torchyard.api.resource import KIND as JOB_KIND
from torchyard.api.schema import ANY, FORM, Schema, described, object_of, structural
from torchyard.api.schema import object_schema as job_schema
from torchyard.api.validation.schema_check import published_parameters
from torchyard.api.values import BUILT_IN, DNS_LABEL_PATTERN
from torchyard.sweeps.resource import KIND, MAX_SWEEP_NAME
from torchyard.sweeps.spec import MAX_PARAMETERS, TrainingSweepSpec

_SCALAR = "a text, a number, true or false; for settings that belong together use conditions"
_VALUE: Schema = {ANY: True, "nullable": True, "maxLength": 256, "maxItems": 0, "maxProperties": 0, FORM: _SCALAR}


@cache
def spec_schema() -> Schema:
    """Return the schema of `spec`; shared, do not change it."""
    schema = structural(described(TrainingSweepSpec))
    parameter = schema["properties"]["parameters"]["items"]["properties"]
    parameter["choice"]["items"] = dict(_VALUE)
    parameter["conditions"]["items"]["properties"]["values"]["items"] = dict(_VALUE)
    point = {"type": "object", "additionalProperties": dict(_VALUE), "maxProperties": MAX_PARAMETERS}
    schema["properties"]["firstTrials"]["items"] = point
    return schema


@cache
def object_schema() -> Schema:
    """Return the schema of the whole object as people write it."""
    name = {"type": "string", "minLength": 1, "maxLength": MAX_SWEEP_NAME, "pattern": DNS_LABEL_PATTERN}
    return object_of(KIND, {**name, "description": "the name of the sweep"}, spec_schema())


def file_schema() -> dict[str, Any]:
    """Return the JSON Schema of files of jobs, sweeps and profiles, for editors."""
    parameters = {name: published_parameters(name) or {} for name in BUILT_IN}
    objects = {JOB_KIND: job_schema(), KIND: object_schema(), PROFILE_KIND: profile_schema()}
    return editor_schema(objects, parameters)
