"""The rules as `x-kubernetes-validations`: put into a schema for the API server.

It judges every rule of a spec whenever a status is written, and makes a map of all fields of a section for each access
to one of them (docs/decisions/0017-cost-of-status-writes.md). So a rule is put as far down as it can be, but for
those of changes: at the object itself they can tell a status write, which changes no spec, by `lastUpdateTime`.
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from torchyard.api.schema import Schema
from torchyard.api.validation.changes import FIXED, Fixed
from torchyard.api.validation.parse import RULES

VALIDATIONS = "x-kubernetes-validations"
_ELASTIC = "has(self.spec.elastic) && has(oldSelf.spec.elastic)"
_CODE = " && ".join(
    f"has({each}.spec.code) && has({each}.spec.code.digest) && !has({each}.spec.code.git) "
    f"&& !has({each}.spec.code.image) && !has({each}.spec.code.claim)"
    for each in ("self", "oldSelf")
)
# An edit cannot touch the status, and a status write cannot touch the rest: two of one second are judged as edits.
_STATUS_WRITE = (
    "has(self.status) && has(self.status.lastUpdateTime) && (!has(oldSelf.status)"
    " || !has(oldSelf.status.lastUpdateTime) || self.status.lastUpdateTime != oldSelf.status.lastUpdateTime)"
)


def with_rules(spec_schema: Schema) -> Schema:
    """Return a copy of the schema of `spec` that carries every rule CEL can express."""
    schema = deepcopy(spec_schema)
    for rule in RULES:
        if rule.cel is not None:
            said = f"{rule.what.replace('{value}', 'the value')}: {rule.fix}"
            scope = _node(schema, rule.scope)
            if rule.on_field:
                _add(_node(scope, rule.field), rule.cel, said)
            else:
                _add_for(rule.field, scope, rule.cel, said)
    for leaf in _numbers(schema):
        # The API server compares whole numbers, such as 0, with the whole part of a bound.
        if not float(leaf.get("minimum", 0)).is_integer():
            _add(leaf, f"self >= {leaf['minimum']!r}", f"the value is too small: use at least {leaf['minimum']}")
    return schema


def _numbers(schema: Schema) -> Iterator[Schema]:
    if schema.get("type") == "number":
        yield schema
    for child in schema.get("properties", {}).values():
        yield from _numbers(child)


def change_rules(spec_schema: Schema) -> list[dict[str, str]]:
    """Return the rules, of the whole object, of what may change in a spec that exists.

    A rule for each field was the costliest part of a status write. So many fields are compared at once first, and the
    words, which name those that changed, are put together where a rule is broken.
    """
    kinds = ([each for each in FIXED if each.in_cel and each.unless_suspended is kind] for kind in (False, True))
    return [_unchanged(spec_schema, fields) for fields in kinds]


def _unchanged(schema: Schema, fields: list[Fixed]) -> dict[str, str]:
    same = {each.field: _same_or_free(schema, each) for each in fields}
    rule = " && ".join(f"({term})" for term in same.values())
    if fields[0].unless_suspended:
        rule = f"oldSelf.spec.suspend || self.spec == oldSelf.spec || ({rule})"
    said = f"{fields[0].what}: {fields[0].fix}"
    changed = " + ".join(f"({term} ? '' : ' spec.{field}')" for field, term in same.items())
    return {
        "rule": f"({_STATUS_WRITE}) || {rule}",
        "message": said,
        "messageExpression": f"'changed' + {changed} + ': {said}'",
        "fieldPath": ".spec",
    }


def _same_or_free(schema: Schema, fixed: Fixed) -> str:
    """CEL that a field is as it was, or that the kind of the job lets it change."""
    exceptions = [(fixed.unless_elastic, _ELASTIC), (fixed.unless_code, _CODE)]
    return "".join(f"({rule}) || " for applies, rule in exceptions if applies) + _same(schema, fixed.field)


def _add_for(field: str, node: Schema, rule: str, said: str) -> None:
    """Add a rule of a scope, whose breach is shown at this field of it; no field: at the scope itself."""
    _add(node, rule, said, **({"fieldPath": f".{field}"} if field else {}))


def _add(node: Schema, rule: str, said: str, **more: str) -> None:
    node.setdefault(VALIDATIONS, []).append({"rule": rule, "message": said, **more})


def _same(schema: Schema, fixed: str) -> str:
    """CEL that a field is as it was, absence included: `self.?a == oldSelf.?a` is estimated as too dear."""
    terms = [f"self.spec.{fixed} == oldSelf.spec.{fixed}"]
    for field in reversed(list(_optional(schema, fixed))):
        terms = [f"(!has(self.spec.{field}) || {' && '.join(terms)})"]
        terms.insert(0, f"has(self.spec.{field}) == has(oldSelf.spec.{field})")
    return " && ".join(terms)


def _optional(schema: Schema, field: str) -> Iterator[str]:
    """Yield the parts of a path that may be absent although the API server fills in defaults, outermost first."""
    node, walked = schema, ""
    for name in field.split("."):
        required = name in node.get("required", ())
        node = node["properties"][name]
        walked = f"{walked}.{name}" if walked else name
        if "default" not in node and not required:
            yield walked


def _node(schema: Schema, scope: str) -> Schema:
    node: Any = schema
    for part in scope.split(".") if scope else ():
        node = node["properties"][part.removesuffix("[]")]
        if part.endswith("[]"):
            node = node["items"]
    found: Schema = node
    return found
