"""Which field of a job a parameter names, and whether its values fit there."""

from collections.abc import Iterator

from torchyard.api.schema import ANY, INT_OR_STRING, Schema
from torchyard.api.schema import spec_schema as job_schema
from torchyard.api.validation.parse import Fault
from torchyard.api.validation.problems import nearest, shown
from torchyard.api.validation.schema_check import check, params_schema
from torchyard.api.validation.yaml_tree import At
from torchyard.api.values import plural
from torchyard.sweeps.space import element
from torchyard.sweeps.spec import Parameter, TrainingSweepSpec

PARAMS = "trainer.params."
# What identifies a trial as the job of its sweep, or is the sweep's to decide.
# A service account is checked against the rights of the user who writes the sweep, so it stands in the template.
NEVER_TUNED = (
    "trainer.name",
    "trainer.mode",
    "suspend",
    "ttlAfterFinished",
    "activeDeadline",
    "metrics.milestones",
    "serviceAccountName",
)


def target_faults(path: str, parameter: Parameter, spec: TrainingSweepSpec) -> Iterator[Fault]:
    """Yield what is wrong with the target: a field that does not exist, or values that it cannot have."""
    if any(parameter.path == name or parameter.path.startswith(f"{name}.") for name in NEVER_TUNED):
        yield f"{path}.path", f"{shown(parameter.path)} cannot differ between trials", "set it in jobTemplate.spec"
        return
    if (found := element(parameter.path)) is not None:
        field, key = found
        size = len(getattr(spec.job_template.spec, field))
        if isinstance(key, int) and key >= size:
            fix = f"list it in jobTemplate.spec.{field}, with any value; the first one is {field}[0]"
            yield f"{path}.path", f"{field} has {plural(size, 'item')}, and none at {key}", fix
        return
    trainer = spec.job_template.spec.trainer
    known = field_schema(parameter.path, trainer.name if trainer is not None else None)
    if isinstance(known, tuple):
        yield f"{path}.path", *known
        return
    if known is None:
        return  # a workload that publishes no schema
    values = [value for bounds in (parameter.float_, parameter.int_) if bounds for value in (bounds.min, bounds.max)]
    where = "choice" if parameter.choice else "float" if parameter.float_ is not None else "int"
    for value in values or parameter.choice:
        said: list[tuple[str, str]] = []
        check(known, At(value=value, line=0), "", lambda _path, _at, what, fix, said=said: said.append((what, fix)))  # type: ignore[misc]
        if said:
            yield f"{path}.{where}", f"{parameter.path}: {said[0][0]}", said[0][1]
            return
    if parameter.float_ is not None and known.get("type") == "integer":
        yield f"{path}.float", f"{parameter.path} is a whole number", "give int in place of float"


def field_schema(path: str, trainer: str | None) -> Schema | tuple[str, str] | None:
    """Return the schema of a field of a job; of a field that does not exist, the fault and the fix; None: not known."""
    start, rest = job_schema(), path
    if path.startswith(PARAMS):
        if trainer is None:
            return f"{shown(path)}: the job has no trainer", "give jobTemplate.spec.trainer, or tune another field"
        published = params_schema(trainer)
        if published is None:
            return None
        start, rest = published, path.removeprefix(PARAMS)
    schema, walked = _walk(start, rest)
    if walked != rest:
        return f"the job has no field {shown(path)}", _meant(path, walked, schema, trainer)
    scalar = schema.get("type") in {"string", "integer", "number", "boolean"} or schema.get(INT_OR_STRING)
    if not scalar and not schema.get(ANY):
        fix = "give a field with one value"
        if path in {"args", "command", "env"}:
            fix = "name one element: env[NAME]" if path == "env" else f"name one element: {path}[1]"
        return f"{shown(path)} is a section or a list", fix
    return schema


def _walk(schema: Schema, path: str) -> tuple[Schema, str]:
    """Return the schema at a path, and the part of the path that exists."""
    walked: list[str] = []
    for part in path.split("."):
        fields = schema.get("properties", {})
        if part not in fields:
            break
        schema = fields[part]
        walked.append(part)
    return schema, ".".join(walked)


def _meant(path: str, walked: str, schema: Schema, trainer: str | None) -> str:
    """Return the fix for a path that does not exist: its section is missing, or stands there twice; or a misspelling.

    Args:
        path: as it was given.
        walked: the part of it that exists, below `trainer.params` for a parameter of a trainer.
        schema: of that part.
        trainer: of the job.
    """
    of_job = path.removeprefix("spec.").removeprefix("jobTemplate.spec.")
    if of_job != path and (_walk(job_schema(), of_job)[1] == of_job or of_job.startswith(PARAMS)):
        return f"did you mean {of_job}?"
    if trainer is not None and _walk(params_schema(trainer) or {}, path)[1] == path:
        return f"did you mean {PARAMS}{path}?"
    section = (PARAMS if path.startswith(PARAMS) else "") + (f"{walked}." if walked else "")
    meant = nearest(path.removeprefix(section).partition(".")[0], schema.get("properties", {}))
    return f"did you mean {section}{meant}?" if meant else "docs/reference lists the fields"
