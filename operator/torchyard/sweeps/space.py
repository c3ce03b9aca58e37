"""The search space: values of a parameter, points of a grid, and the job of one point (pure)."""

import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from torchyard.api.resource import sparse
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.validation.parse import Fault, broken_rules
from torchyard.api.values import decode, plural
from torchyard.sweeps.spec import ELEMENT_PATTERN, SWITCH_PATTERN, FloatRange, IntRange, Parameter, TrainingSweepSpec

Values = Mapping[str, Any]
"""Parameters of a trial by path."""


def applies(parameter: Parameter, values: Values) -> bool:
    """Return whether a trial with these values of the parameters before it has the parameter."""
    return all(
        condition.path in values and _key(values[condition.path]) in {_key(each) for each in condition.values}
        for condition in parameter.conditions
    )


def excluded(parameter: Parameter, values: Values) -> bool:
    """Return whether a condition of the parameter fails for values of other parameters, of which some may be absent."""
    return any(
        condition.path in values and _key(values[condition.path]) not in {_key(each) for each in condition.values}
        for condition in parameter.conditions
    )


def short_names(parameters: Iterable[Parameter]) -> dict[str, str]:
    """Return a name for each path: the last part of a field, or all of it where two would have the same one."""
    paths = [parameter.path for parameter in parameters]
    last = {path: path if path.endswith("]") else path.rpartition(".")[2] for path in paths}
    names = list(last.values())
    return {path: name if names.count(name) == 1 else path for path, name in last.items()}


def strange(parameter: Parameter, values: Iterable[Any]) -> list[Any]:
    """Return those of the values that the parameter cannot have."""
    bounds = parameter.float_ or parameter.int_
    if bounds is None:
        known = {_key(each) for each in parameter.choice}
        return [value for value in values if _key(value) not in known]
    return [value for value in values if not _is_within(bounds, value)]


def bound(parameter: Parameter, *, last: bool) -> Any:
    """Return the smallest or first, else the largest or last value of a parameter."""
    bounds = parameter.float_ or parameter.int_
    if bounds is None:
        return parameter.choice[-1 if last else 0]
    return bounds.max if last else bounds.min


def count(parameter: Parameter) -> int:
    """Return how many values a parameter has; 0 for a range without step."""
    bounds = parameter.float_ or parameter.int_
    if bounds is None:
        return len(parameter.choice)
    return 0 if bounds.step is None else math.floor(min((bounds.max - bounds.min) / bounds.step, 1e9) + 1e-9) + 1


def listed(parameter: Parameter) -> list[Any]:
    """Return all values of a parameter that has single ones, in order; empty for a range without step."""
    bounds = parameter.float_ or parameter.int_
    if bounds is None:
        return list(parameter.choice)
    if bounds.step is None:
        return []
    # Numbers as they are written: 0.1 + 2 * 0.1 is 0.3.
    return [round(bounds.min + position * bounds.step, 12) for position in range(min(count(parameter), 10**6))]


def grid_size(spec: TrainingSweepSpec) -> int:
    """Return the number of points of the grid, without making it."""
    return math.prod(count(parameter) for parameter in spec.parameters)


def wanted_trials(spec: TrainingSweepSpec) -> int:
    """Return how many trials a sweep makes, at most."""
    return min(spec.max_trials, grid_size(spec)) if spec.algorithm.name == "grid" else spec.max_trials


def grid_point(spec: TrainingSweepSpec, number: int) -> dict[str, Any]:
    """Return the values of one point; the last parameter changes fastest."""
    axes = [listed(parameter) for parameter in spec.parameters]
    (point,) = itertools.islice(itertools.product(*axes), number, number + 1)
    return {parameter.path: value for parameter, value in zip(spec.parameters, point, strict=True)}


def trial_spec(template: TrainingJobSpec, values: Values) -> TrainingJobSpec:
    """Return the template with these values in their fields.

    Raises:
        ValueError: the result is not the spec of a job.
    """
    document = sparse(template)
    switches: dict[tuple[str, str], Any] = {}
    for path, value in values.items():
        if (target := switch(path)) is not None:
            switches[target] = value
        else:
            _put(document, path, value)
    _turn(document, template, switches)
    try:
        return msgspec.convert(document, TrainingJobSpec, dec_hook=decode)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def fault_of(template: TrainingJobSpec, values: Values) -> Fault | None:
    """Return why the template with these values is no valid job; None: it is one."""
    try:
        return next(broken_rules(trial_spec(template, values)), None)
    except ValueError as error:
        return "spec", str(error), "correct the range"


def element(path: str) -> tuple[str, int | str] | None:
    """Return the list and the index or name of a path such as `args[1]` or `env[LR]`; None: it names a field."""
    match = re.fullmatch(ELEMENT_PATTERN, path)
    if match is None:
        return None
    return (match[1], int(match[2])) if match[1] else (match[3], match[4])


def switch(path: str) -> tuple[str, str] | None:
    """Return the list and the argument of a path such as `args[--amp]`; None: it names something else."""
    match = re.fullmatch(SWITCH_PATTERN, path)
    return (match[1], match[2]) if match is not None else None


def as_argument(value: Any) -> str:
    """Return the text that an argument or an environment variable gets: numbers and booleans as in JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def _turn(document: dict[str, Any], template: TrainingJobSpec, switches: Mapping[tuple[str, str], Any]) -> None:
    """Add the arguments that are switched on at the end, unless the template has them; remove those switched off."""
    for field in ("args", "command"):
        on = {argument: value for (of, argument), value in switches.items() if of == field}
        if on:
            before: list[str] = getattr(template, field)
            items = zip(document.get(field, []), before, strict=True)
            present = [item for item, former in items if on.get(former, True)]
            document[field] = [*present, *(each for each, value in on.items() if value and each not in before)]


def _put(document: dict[str, Any], path: str, value: Any) -> None:
    found = element(path)
    if found is None:
        holder = document
        *outer, last = path.split(".")
        for name in outer:
            holder = holder.setdefault(name, {})
        holder[last] = value
        return
    field, key = found
    items: list[Any] = document.setdefault(field, [])
    text = as_argument(value)
    if isinstance(key, str):
        items[:] = [*(each for each in items if each["name"] != key), {"name": key, "value": text}]
    elif key < len(items):
        items[key] = text
    else:
        raise ValueError(f"{path}: {field} has {plural(len(items), 'item')}")


def _is_within(bounds: FloatRange | IntRange, value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not bounds.min <= value <= bounds.max:
        return False
    return bounds.step is None or _whole((value - bounds.min) / bounds.step)


def _key(value: Any) -> Any:
    """Return what is equal for values that are the same in JSON: true is not 1, and 1 is 1.0."""
    if isinstance(value, bool):
        return (value,)
    return value if isinstance(value, int | float | str) else json.dumps([value])


def _whole(number: float) -> bool:
    return abs(number - round(number)) < 1e-6
