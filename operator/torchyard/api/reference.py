"""`docs/reference/trainingjob.md`, as `make generate` writes it."""

from collections.abc import Iterator

from torchyard.api.backends import ONLY
from torchyard.api.resource import API_VERSION, KIND
from torchyard.api.schema import ANY, INT_OR_STRING, Schema, spec_schema, status_schema
from torchyard.api.validation.changes import FIX, FIXED, FREE, OF_A_ROUND
from torchyard.api.validation.parse import RULES
from torchyard.api.validation.problems import shown
from torchyard.api.values import FORMS

_INTRODUCTION = f"""\
# TrainingJob

`apiVersion: {API_VERSION}`, `kind: {KIND}`, short name `tj`. Generated from the models; every field is listed.
A field marked *on a cluster only* is ignored by `torchyard run`, with a warning.
"""


def reference_markdown() -> str:
    """Return the whole page: one table a section, then the rules between fields."""
    parts = [_INTRODUCTION]
    for title, path, schema in (("Spec", "spec", spec_schema()), ("Status", "status", status_schema())):
        parts.append(f"## {title}\n\n{schema['description']}\n")
        parts.extend(sections(path, schema))
    parts += [_rules(), _changes()]
    return "\n".join(parts)


def sections(path: str, schema: Schema) -> Iterator[str]:
    """Yield the table of a section, then those of the sections inside it."""
    required = schema.get("required", ())
    rows = [_row(path, name, field, name in required) for name, field in schema["properties"].items()]
    yield f"### `{path}`\n\n| Field | Type | Default | Meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    for name, field in schema["properties"].items():
        if "properties" in field:
            yield from sections(f"{path}.{name}", field)
        elif "properties" in field.get("items", {}):
            yield from sections(f"{path}.{name}[]", field["items"])


def _row(path: str, name: str, field: Schema, required: bool) -> str:
    default = "required" if required else f"`{shown(field['default'])}`" if _has_plain_default(field) else ""
    meaning = field.get("description", "") + _note(f"{path}.{name}".removeprefix("spec."))
    return f"| `{name}` | {type_text(field)} | {default.replace(chr(39), '')} | {meaning.replace('|', chr(92) + '|')} |"


def _has_plain_default(field: Schema) -> bool:
    return "default" in field and "properties" not in field


def _note(field: str) -> str:
    if field in ONLY:
        return " *On a cluster only.*" if ONLY[field] == "cluster" else " *On this machine only.*"
    return ""


def type_text(field: Schema) -> str:
    """Return a description of the values of a field."""
    if "type" not in field and field.get(ANY):
        return "value"
    if field.get("pattern") in FORMS:
        return FORMS[field["pattern"]][0].removeprefix("a ").removeprefix("an ")
    if field.get(INT_OR_STRING):
        return f"number {field['minimum']} to {field['maximum']}, or {field['pattern'].strip('^()$')}"
    if "enum" in field:
        return ", ".join(word or '""' for word in field["enum"])
    if field["type"] == "array":
        return f"list of {type_text(field['items'])}" + (
            f", at most {field['maxItems']}" if "maxItems" in field else ""
        )
    if "additionalProperties" in field:
        values = field["additionalProperties"]
        kinds = ", ".join(map(type_text, values.get("anyOf", [values])))
        return "mapping" if values.get(ANY) else f"map to {kinds}"
    if field["type"] in {"integer", "number"}:
        return ("whole number" if field["type"] == "integer" else "number") + _bounds(field)
    return {"object": "section", "boolean": "true, false"}.get(field["type"], "text")


def _bounds(field: Schema) -> str:
    low, above, high = (field.get(name) for name in ("minimum", "exclusiveMinimum", "maximum"))
    if low is not None and high is not None:
        return f" {low} to {high}"
    parts = {"of at least": low, "above": above, "up to": high}
    return "".join(f" {words} {bound}" for words, bound in parts.items() if bound is not None)


def _rules() -> str:
    rows = [
        f"- `{'.'.join(part for part in ('spec', rule.scope, rule.field) if part)}`: "
        f"{rule.what.replace('{value}', 'the value')}: {rule.fix}."
        for rule in RULES
    ]
    return "## Rules between fields\n\nWhat is rejected, and what to write instead.\n\n" + "\n".join(rows) + "\n"


def _changes() -> str:
    never = ", ".join(f"`{fixed.field}`" for fixed in FIXED if not fixed.unless_suspended)
    suspended = ", ".join(f"`{fixed.field}`" for fixed in FIXED if fixed.unless_suspended)
    of_a_round = ", ".join(f"`{field}`" for field in OF_A_ROUND)
    return (
        "## Changing a job that exists\n\n"
        f"- At any time: {', '.join(f'`{field}`' for field in FREE)}.\n"
        f"- With the next round, which then follows at once, if code travels with the job: {of_a_round}.\n"
        f"- While `suspend` is true, or together with setting it to false: {suspended}.\n"
        f"- Never: {never}; {FIX}.\n"
    )
