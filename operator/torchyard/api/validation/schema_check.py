"""Walk a value along its structural schema: report every fault, return a copy of what is sound.

Parameters of built-in trainers are checked against the schema that each of them publishes (docs/protocol.md).

"""

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from torchyard.api.schema import ANY, FORM, INT_OR_STRING, LIST_KEYS, Schema, structural
from torchyard.api.validation.other_names import meant_by
from torchyard.api.validation.problems import nearest, shown
from torchyard.api.validation.yaml_tree import At
from torchyard.api.values import FORMS, MAX_DEPTH, TEXT_PATTERN

Report = Callable[[str, At, str, str], None]  # path, where, what is wrong, how to fix it

# Marks an invalid value, which its parent leaves out.
UNSOUND: Any = object()
_TYPES = {
    "string": ("text", str),
    "integer": ("a whole number", int),
    "number": ("a number", int | float),
    "boolean": ("true or false", bool),
    "array": ("a list", list),
    "object": ("a mapping", dict),
}
MAX_LISTED = 12
# A whole word that a pattern allows: ^(tabletop|MODULE:CLASS as a pattern)$.
_WORD_OF_PATTERN = re.compile(r"(?<=[(|])[a-z]\w*(?=\|)")


def check(schema: Schema, at: At, path: str, report: Report) -> Any:
    """Report every fault of `at` and its children; return the sound part as plain values, UNSOUND if nothing is."""
    if not schema:
        return at.plain
    if schema.get(ANY):
        return _check_any(schema, at, path, report)
    if schema.get(INT_OR_STRING):
        return _check_int_or_string(schema, at, path, report)
    noun, python_type = _TYPES[schema["type"]]
    if not isinstance(at.value, python_type) or (isinstance(at.value, bool) and python_type is not bool):
        report(path, at, f"expected {noun}, got {_described(at.plain)}", _retyped(schema, at))
        return UNSOUND
    if schema["type"] == "object":
        return _check_object(schema, at, path, report)
    if schema["type"] == "array":
        return _check_list(schema, at, path, report)
    return _check_scalar(schema, at, path, report)


def _check_int_or_string(schema: Schema, at: At, path: str, report: Report) -> Any:
    if isinstance(at.value, int) and not isinstance(at.value, bool):
        return _check_scalar(schema, at, path, report)
    if schema["pattern"] in FORMS:
        noun, fix = FORMS[schema["pattern"]]
        if isinstance(at.value, str):
            return _check_scalar(schema, at, path, report)
        report(path, at, f"expected {noun}, got {_described(at.plain)}", fix)
        return UNSOUND
    words = schema["pattern"].strip("^()$").split("|")
    if at.value in words:
        return at.value
    bounds = f"a whole number{_bounds(schema)}"
    report(
        path,
        at,
        f"expected {' or '.join(words)} or {bounds}, got {_described(at.plain)}",
        f"use {' or '.join(words)}, or {bounds}",
    )
    return UNSOUND


def _check_any(schema: Schema, at: At, path: str, report: Report) -> Any:
    """Check a value of any type against the limits of each type; a level that may hold nothing ends the nesting."""
    if isinstance(at.value, dict | list) and at.value and not schema["maxItems"]:
        if schema.get(FORM):
            report(path, at, f"expected one value, got {_described(at.plain)}", f"use {schema[FORM]}")
        else:
            report(path, at, "nested too deeply", f"nest lists and mappings at most {MAX_DEPTH} deep")
        return UNSOUND
    if isinstance(at.value, dict):
        return _check_map(schema, at, path, report) if at.value else {}
    if isinstance(at.value, list):
        return _check_list(schema, at, path, report) if at.value else []
    return at.value if at.value is None else _check_scalar(schema, at, path, report)


def _check_object(schema: Schema, at: At, path: str, report: Report) -> Any:
    if "additionalProperties" in schema:
        return _check_map(schema, at, path, report)
    properties = schema["properties"]
    sound: dict[str, Any] = {}
    for name, child in at.value.items():
        if name not in properties:
            report(_join(path, name), _key(child), "unknown field", _meant(name, properties))
        elif child.value is not None:
            value = check(properties[name], child, _join(path, name), report)
            if value is not UNSOUND:
                sound[name] = value
    for name in schema.get("required", ()):
        if name not in at.value or at.value[name].value is None:
            report(_join(path, name), at, "missing", f"add it; {properties[name].get('description', 'it is required')}")
    return UNSOUND if any(name not in sound for name in schema.get("required", ())) else sound


def _check_map(schema: Schema, at: At, path: str, report: Report) -> dict[str, Any]:
    most = schema.get("maxProperties")
    if most is not None and len(at.value) > most:
        report(path, at, f"{len(at.value)} entries", f"use at most {most}")
    values = schema["additionalProperties"]
    # The API server leaves out nulls, except where it knows no type.
    kept = ((name, child) for name, child in at.value.items() if child.value is not None or values.get(ANY))
    checked = ((name, check(values, child, _join(path, name), report)) for name, child in kept)
    return {name: value for name, value in checked if value is not UNSOUND}


def _check_list(schema: Schema, at: At, path: str, report: Report) -> Any:
    most = schema.get("maxItems")
    if most is not None and len(at.value) > most:
        report(path, at, f"{len(at.value)} entries", f"use at most {most}")
    if not at.value and schema.get("minItems"):
        report(path, at, "empty", "give at least one entry")
        return UNSOUND
    checked = [check(schema["items"], child, f"{path}[{index}]", report) for index, child in enumerate(at.value)]
    for key in schema.get(LIST_KEYS, ()):
        _check_unique(key, at, path, report)
    # What follows an unsound item is left out as well: the rest keeps the index it has in the file.
    return list(itertools.takewhile(lambda value: value is not UNSOUND, checked))


def _check_unique(key: str, at: At, path: str, report: Report) -> None:
    first: dict[Any, int] = {}
    for index, child in enumerate(at.value):
        if isinstance(child.value, dict) and isinstance(child.value.get(key, child).value, str):
            name = child.value[key]
            if name.value in first:
                what = f"{shown(name.value)} occurs twice (first as {path}[{first[name.value]}])"
                report(f"{path}[{index}].{key}", name, what, "keep one of them")
            first.setdefault(name.value, index)


def _check_scalar(schema: Schema, at: At, path: str, report: Report) -> Any:
    fault = next(_scalar_faults(schema, at.value), None)
    if fault is None:
        return at.value
    report(path, at, *fault)
    return UNSOUND


def _scalar_faults(schema: Schema, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, bool):
        return
    if isinstance(value, int | float):
        yield from _number_faults(schema, value)
        return
    if "enum" in schema and value not in schema["enum"]:
        choices = [word for word in schema["enum"] if word]
        meant = nearest(value, choices)
        listed = f"use {_either(choices)}"
        yield f"{shown(value)} is not known", f"did you mean {meant}? {listed}" if meant else listed
    if len(value) > schema.get("maxLength", len(value)):
        yield f"{len(value)} characters", f"use at most {schema['maxLength']}"
    pattern = schema.get("pattern")
    if pattern == TEXT_PATTERN:
        if "\0" in value:
            yield f"character {value.index(chr(0)) + 1} is NUL", FORMS[pattern][1]
        pattern = None
    if len(value) < schema.get("minLength", 0) and pattern is None:
        yield "empty", "give a value or leave it out"
    # `$` of Go and of JSON Schema is the end of the text; Python's also allows a line break after it.
    if pattern is not None and (
        not re.search(pattern, value) or value.endswith("\n") or len(value) < schema.get("minLength", 0)
    ):
        form = schema.get(FORM, f"text of the form {pattern}")
        noun, fix = FORMS.get(pattern, (form, "write it in that form"))
        meant = nearest(value, _WORD_OF_PATTERN.findall(pattern))
        yield f"{shown(value)} is not {noun}", f"did you mean {meant}? {fix}" if meant else fix


def _number_faults(schema: Schema, value: float) -> Iterator[tuple[str, str]]:
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if (low is not None and value < low) or (above is not None and value <= above):
        yield f"{shown(value)} is too small", f"use a number{_bounds(schema)}"
    elif (high is not None and value > high) or (below is not None and value >= below):
        yield f"{shown(value)} is too large", f"use a number{_bounds(schema)}"
    elif isinstance(value, int) and abs(value) >= 2**63:
        yield f"{shown(value)} is too large", "use a number below 2^63"


def _bounds(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    above = schema.get("exclusiveMinimum")
    if low is not None and high is not None:
        return f" from {low} to {high}"
    parts = (
        f"of at least {low}" if low is not None else "",
        f"above {above}" if above is not None else "",
        f"of at most {high}" if high is not None else "",
    )
    text = " and ".join(part for part in parts if part)
    return f" {text}" if text else ""


def _described(value: Any) -> str:
    """Quote a value by its kind; `2` and `'2'` must not look the same."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"{shown(value)} (true or false)"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return f"{'text' if isinstance(value, str) else 'the number'} {shown(value)}"


def _retyped(schema: Schema, at: At) -> str:
    wanted, value = schema["type"], at.plain
    if wanted == "string" and (isinstance(value, bool | int | float) or at.written):
        return f'quote it: "{at.written or shown(value)}"'
    if wanted == "array" and isinstance(value, str):
        return f"write it as a list: [{shown(', '.join(value.split()))[1:-1]}]"
    if wanted in {"integer", "number"} and isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value):
        return f"write {value} without quotes"
    if wanted == "boolean" and value in ("true", "false"):
        return f"write {value} without quotes"
    if wanted == "array" and "properties" in schema["items"]:
        return f"write it as a list: [{_outline(schema['items'])}]"
    if wanted == "object" and "properties" in schema and len(schema["properties"]) <= MAX_LISTED:
        return f"write it like {_outline(schema)}"
    return f"use {_TYPES[wanted][0]}"


def _outline(schema: Schema) -> str:
    names = schema.get("required") or list(schema["properties"])[:1]
    return "{" + ", ".join(f"{name}: ..." for name in names) + "}"


def _meant(name: str, properties: Schema) -> str:
    meant = nearest(name, properties)
    if meant is not None:
        return f"did you mean {meant}?"
    if known := meant_by(name, properties):
        return known
    inside = sorted(f"{field}.{name}" for field, child in properties.items() if name in child.get("properties", {}))
    if inside:
        return f"did you mean {_either(inside)}?"
    return f"use {_either(list(properties))}" if len(properties) <= MAX_LISTED else "remove it"


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _key(at: At) -> At:
    return At(value=at.value, line=at.key_line or at.line, origin=at.origin)


def _join(path: str, name: str) -> str:
    short = name if len(name) <= 60 else name[:57] + "..."
    return f"{path}.{short}" if path else short


MAX_PARAMS_DEPTH, MAX_LOOKED_AT = 2, 8


@cache
def params_schema(trainer: str) -> Schema | None:
    """Return the schema of `trainer.params`; None for a trainer that publishes none."""
    published = published_parameters(trainer)
    return structural(published) if published is not None else None


def trainer_metrics(trainer: str) -> tuple[str, ...]:
    """Return the metrics that a built-in trainer reports; () for a trainer that publishes none."""
    published = published_parameters(trainer)
    return tuple(published["x-metrics"]) if published is not None else ()


def conditional_metrics(trainer: str) -> Mapping[str, Mapping[str, str]]:
    """Return what metrics of a built-in trainer depend on: by metric, a pattern for the value of each parameter."""
    published = published_parameters(trainer)
    return published["x-metrics-with"] if published is not None else {}


@cache
def published_parameters(trainer: str) -> dict[str, Any] | None:
    """Return the JSON Schema of the parameters of a built-in trainer; None: it publishes none."""
    resource = files("torchyard.api") / "params" / f"{trainer}.json"
    if not resource.is_file():
        return None
    published: dict[str, Any] = json.loads(resource.read_text("utf-8"))
    return published


def params_faults(trainer: str, params: Mapping[str, Any]) -> list[str]:
    """Return what a built-in trainer would reject in its parameters: path, fault and fix, one text each.

    No more than a few values of a list or a mapping are checked: these may be 64 KiB of any user's JSON.
    """
    found: list[str] = []
    tree = At(value={name: _tree(child, MAX_PARAMS_DEPTH) for name, child in params.items()}, line=0)

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
