"""The table of values in the chart's README, from values.schema.json and values.yaml."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

Keys = tuple[str, ...]
Field = Mapping[str, Any]

CHART = Path(__file__).resolve().parents[1] / "charts/torchyard"
README = CHART / "README.md"
HEADING = "\n## Values\n"
INTRODUCTION = "`values.schema.json` rejects every other name, and values outside of their range."
# Helm passes it to every chart that is a part of another one.
FOREIGN = ("global",)


def chart_readme() -> str:
    """Return the README with the table of values, its last section, written again."""
    written, heading, _ = README.read_text(encoding="utf-8").partition(HEADING)
    if not heading:
        raise ValueError(f"{README} has no section {HEADING.strip()!r}: add it as the last one, its table is generated")
    return f"{written}{heading}\n{INTRODUCTION}\n\n{values_table()}\n"


def values_table() -> str:
    """Return one row for each value: its path, its default, its description."""
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    rows = [
        f"| `{'.'.join(path)}` | `{json.dumps(_at(values, path))}` | {field['description']} |"
        for path, field in leaves(schema)
        if path[0] not in FOREIGN
    ]
    return "\n".join(["| Value | Default | Meaning |", "| -- | -- | -- |", *rows])


def leaves(schema: Field, path: Keys = ()) -> Iterator[tuple[Keys, Field]]:
    """Yield each value with its path; an object whose keys are the user's own is a value itself."""
    for name, field in schema["properties"].items():
        if "properties" in field:
            yield from leaves(field, (*path, name))
        else:
            yield (*path, name), field


def _at(values: Any, path: Keys) -> Any:
    for name in path:
        values = values[name]
    return values
