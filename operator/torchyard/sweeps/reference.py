"""`docs/reference/trainingsweep.md`, as `make generate` writes it."""

from typing import Any

from torchyard.api.reference import sections
from torchyard.api.resource import API_VERSION
from torchyard.api.schema import Schema, status_of
from torchyard.sweeps.resource import KIND, MAX_SWEEP_NAME
from torchyard.sweeps.schema import spec_schema
from torchyard.sweeps.status import TrainingSweepStatus
from torchyard.sweeps.targets import NEVER_TUNED

_INTRODUCTION = f"""\
# TrainingSweep

`apiVersion: {API_VERSION}`, `kind: {KIND}`, short name `ts`. Generated from the models; every field is listed.
`torchyard run sweep.yaml` runs one on this machine, `kubectl apply` on a cluster: see [sweeps.md](../sweeps.md).
The name of a sweep has at most {MAX_SWEEP_NAME} characters: its trials are jobs called `NAME-0`, `NAME-1` and so on.
"""
_NEVER = ", ".join(f"`{path}`" for path in NEVER_TUNED)
_PARAMETERS = f"""\
## Parameters

`parameters[].path` is any field of the job with a single value, with these exceptions: {_NEVER}.
It may also be one argument, `args[1]` or `command[3]`, an environment variable, `env[LR]`, or a switch, `args[--amp]`,
which a trial has with `true` and lacks with `false`. Ranges and values must lie within what the field allows.
`jobTemplate.spec` is the spec of a [TrainingJob](trainingjob.md).
"""


def reference_markdown() -> str:
    """Return the whole page: one table a section."""
    schema = _without_the_job(spec_schema())
    status = status_of(TrainingSweepStatus)
    return "\n".join(
        [
            _INTRODUCTION,
            f"## Spec\n\n{schema['description']}\n",
            *sections("spec", schema),
            _PARAMETERS,
            f"## Status\n\n{status['description']}\n",
            *sections("status", status),
        ]
    )


def _without_the_job(schema: Schema) -> Schema:
    """Return the schema without the fields of the job, which have a page."""
    properties: dict[str, Any] = dict(schema["properties"])
    template = properties["jobTemplate"]
    job = {"type": "object", "description": template["properties"]["spec"]["description"]}
    properties["jobTemplate"] = {**template, "properties": {"spec": job}}
    return {**schema, "properties": properties}
