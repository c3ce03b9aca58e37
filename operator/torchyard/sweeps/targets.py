"""Which field of a job a parameter names, and whether its values fit there."""

from collections.abc import Callable, Iterator

from torchyard.api.schema import ANY, INT_OR_STRING, Schema
from torchyard.api.schema import spec_schema as job_schema
from torchyard.api.validation.parse import Fault
from torchyard.api.validation.problems import nearest, shown
from torchyard.api.validation.schema_check import check, params_schema
from torchyard.api.validation.yaml_tree import At
from torchyard.api.values import plural
from torchyard.sweeps.space import as_argument, element, switch
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


Written = Callable[[str], str]
"""How a number or a boolean is written in the file, by its path below `spec`; empty: it is JSON, or not known."""


def target_faults(
    path: str, parameter: Parameter, spec: TrainingSweepSpec, written: Written = lambda _path: ""
) -> Iterator[Fault]:
    """Yield what is wrong with the target: a field that does not exist, or values that it cannot have."""
    if any(parameter.path == name or parameter.path.startswith(f"{name}.") for name in NEVER_TUNED):
        yield f"{path}.path", f"{shown(parameter.path)} cannot differ between trials", "set it in jobTemplate.spec"
    elif (argument := switch(parameter.path)) is not None:
        yield from _switch_faults(path, parameter, argument, spec)
    elif (item := element(parameter.path)) is not None:
        yield from _element_faults(path, parameter, item, spec, written)
    else:
        yield from _field_faults(path, parameter, spec, written)


def _switch_faults(
    path: str, parameter: Parameter, target: tuple[str, str], spec: TrainingSweepSpec
) -> Iterator[Fault]:
    field, argument = target
    value = next((each for each in parameter.choice if not isinstance(each, bool)), None)
    if not parameter.choice:
        kind = "float" if parameter.float_ is not None else "int"
        what = f"{parameter.path} is a switch: an argument that the program has or lacks"
        yield (
            f"{path}.{kind}",
            what,
            "give choice: [true, false]; the value of an option is an argument such as args[1]",
        )
    elif value is not None:
        what = f"{parameter.path} is a switch, which cannot be {shown(value)}"
        yield f"{path}.choice", what, "give choice: [true, false]"
    for index, item in enumerate(getattr(spec.job_template.spec, field)):
        other = f"{field}[{index}]"
        if item == argument and any(each.path == other for each in spec.parameters):
            yield f"{path}.path", f"{argument} is {other}, another parameter", "leave one of the parameters out"


def _element_faults(
    path: str, parameter: Parameter, target: tuple[str, int | str], spec: TrainingSweepSpec, written: Written
) -> Iterator[Fault]:
    field, key = target
    size = len(getattr(spec.job_template.spec, field))
    if isinstance(key, int) and key >= size:
        fix = f"list it in jobTemplate.spec.{field}, with any value; the first one is {field}[0]"
        yield f"{path}.path", f"{field} has {plural(size, 'item')}, and none at {key}", fix
    for index, value in enumerate(parameter.choice):
        where = f"{path}.choice[{index}]"
        source = written(where)
        if source not in ("", as_argument(value)):
            # As in `args`: the program would get true for `yes`, 7 for `007` and 1000.0 for `1e3`.
            yield where, f"{parameter.path} would be {shown(as_argument(value))}, not {source}", f'quote it: "{source}"'


def _field_faults(path: str, parameter: Parameter, spec: TrainingSweepSpec, written: Written) -> Iterator[Fault]:
    trainer = spec.job_template.spec.trainer
    schema = field_schema(parameter.path, trainer.name if trainer is not None else None)
    if isinstance(schema, tuple):
        yield f"{path}.path", *schema
        return
    if schema is None:
        return  # a workload that publishes no schema
    if parameter.float_ is not None and schema.get("type") == "integer":
        yield f"{path}.float", f"{parameter.path} is a whole number", "give int in place of float"
        return
    values = {f"{path}.choice[{index}]": value for index, value in enumerate(parameter.choice)}
    for kind, bounds in (("float", parameter.float_), ("int", parameter.int_)):
        if bounds is not None:
            values |= {f"{path}.{kind}.min": bounds.min, f"{path}.{kind}.max": bounds.max}
    faults: list[Fault] = []

    def report(where: str, _at: At, what: str, fix: str) -> None:
        faults.append((where, f"{parameter.path}: {what}", fix))

    for where, value in values.items():
        check(schema, At(value=value, line=0, written=written(where)), where, report)
    yield from faults


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
    if of_job.startswith("env."):
        return f"did you mean env[{of_job.removeprefix('env.')}]?"
    if of_job.startswith("args."):
        return "name an argument by its place, args[1], or a switch, args[--amp]"
    if of_job != path and (_walk(job_schema(), of_job)[1] == of_job or of_job.startswith(PARAMS)):
        return f"did you mean {of_job}?"
    if trainer is not None and _walk(params_schema(trainer) or {}, path)[1] == path:
        return f"did you mean {PARAMS}{path}?"
    section = (PARAMS if path.startswith(PARAMS) else "") + (f"{walked}." if walked else "")
    meant = nearest(path.removeprefix(section).partition(".")[0], schema.get("properties", {}))
    return f"did you mean {section}{meant}?" if meant else "docs/reference lists the fields"
