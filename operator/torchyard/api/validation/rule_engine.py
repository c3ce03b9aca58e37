"""Check a decoded spec against the rules between fields and against what this version does not implement.

A rule holds for a *scope*: the spec (""), a section (`checkpoint.interval`) or each item of a list (`env[]`). Sections
that are absent break no rule. The API server checks the same rules in CEL (`cel.py`). Constraints of one field alone
(type, range, pattern) are part of the models.
"""

from collections.abc import Collection, Iterator
from typing import Any

from msgspec import Struct

from torchyard.api.resource import plain, resolved
from torchyard.api.schema import spec_schema
from torchyard.api.spec import TrainingJobSpec
from torchyard.api.validation.problems import shown
from torchyard.api.validation.rules import GAPS, WHAT, Rule
from torchyard.api.validation.rules_pods import DURATIONS, PLACEMENT, RELIABILITY, SIZE
from torchyard.api.validation.rules_workload import PROGRAM, TRAINING

Fault = tuple[str, str, str]  # path, what is wrong, how to fix it

RULES: tuple[Rule, ...] = (*SIZE, *PROGRAM, *PLACEMENT, *TRAINING, *RELIABILITY, *DURATIONS)


def broken_rules(spec: TrainingJobSpec, faulty: Collection[str] = ()) -> Iterator[Fault]:
    """Yield every broken rule. What reads a path in `faulty`, known to be wrong already, is not judged."""
    yield from _unimplemented(spec, faulty)
    for rule in RULES:
        for path, subject in subjects(spec, rule.scope):
            if not any(_touch(read, known) for read in _reads(rule, path) for known in faulty):
                yield from _broken(rule, path, subject)


def subjects(spec: TrainingJobSpec, scope: str) -> Iterator[tuple[str, Any]]:
    """Yield the values a scope names, with their paths: none where a section is absent, one an item for `name[]`."""
    found: list[tuple[str, Any]] = [("spec", spec)]
    for part in scope.split(".") if scope else ():
        name = part.removesuffix("[]")
        below = [(f"{path}.{name}", _field(value, name)) for path, value in found]
        if part.endswith("[]"):
            below = [(f"{path}[{index}]", item) for path, items in below for index, item in enumerate(items)]
        found = [(path, value) for path, value in below if value is not None]
    yield from found


def _broken(rule: Rule, path: str, subject: Any) -> Iterator[Fault]:
    if rule.holds(subject):
        return
    value = subject
    for name in rule.field.split(".") if rule.field else ():
        value = _field(value, name)
    what = rule.what.replace("{value}", shown(plain(value))) if "{value}" in rule.what else rule.what
    yield (f"{path}.{rule.field}" if rule.field else path), what, rule.fix


def _unimplemented(spec: TrainingJobSpec, faulty: Collection[str]) -> Iterator[Fault]:
    asked = resolved(spec)
    for gap in GAPS:
        path = f"spec.{gap.field}"
        value = _get(asked, gap.field)
        if any(_touch(path, known) for known in faulty) or value is None:
            continue
        if value not in (gap.values or (_default(gap.field), [], {})):
            yield path, f"{shown(value)} is {WHAT}" if gap.values else WHAT, gap.fix


def _default(field: str) -> Any:
    node = spec_schema()
    for name in field.split("."):
        node = node["properties"][name]
    return node.get("default")


def _reads(rule: Rule, path: str) -> list[str]:
    names = rule.reads if not rule.field else (rule.field, *rule.reads)
    return [f"{path}.{name}" for name in names] or [path]


def _touch(one: str, other: str) -> bool:
    """Return whether two paths are the same or one lies within the other."""
    short, long = sorted((one, other), key=len)
    return long.startswith(short) and (len(long) == len(short) or long[len(short)] in ".[")


def _field(model: Struct, wire_name: str) -> Any:
    return getattr(model, model.__struct_fields__[model.__struct_encode_fields__.index(wire_name)])


def _get(document: Any, field: str) -> Any:
    for name in field.split("."):
        if not isinstance(document, dict):
            return None
        document = document[name]
    return document
