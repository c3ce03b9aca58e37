"""Fields of a job and their values, for `--set PATH=VALUE`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchyard.api.values import BUILT_IN

Schema = Mapping[str, Any]
_MAX_BYTES = 2**20
_NAME, _PARAMS = "trainer.name", "trainer.params"
_WORDS = re.compile(r"\^\((\w+(?:\|\w+)*)\)\$")


def assignments(text: str, before: Sequence[str]) -> list[str]:
    """Return how an assignment may be completed: its path with the names of fields, and behind `=` with values.

    A field that has fields below it ends with a dot: `trainer.params.`.

    Args:
        text: the assignment as far as it is written.
        before: words of the command line before it, which name the trainer: a job file, or `trainer.name=...`.
    """
    from torchyard.api.schema import spec_schema

    root = "spec." if text.startswith("spec.") else ""
    path, equals, _ = text.removeprefix(root).partition("=")
    if equals:
        return [f"{root}{path}={value}" for value in _values(path, _at(spec_schema(), path, before))]
    parent = path.rpartition(".")[0]
    node = _at(spec_schema(), parent, before) if parent else spec_schema()
    prefix = f"{root}{parent}." if parent else root
    return [f"{prefix}{name}{_end(child, f'{parent}.{name}')}" for name, child in node.get("properties", {}).items()]


def _end(schema: Schema, path: str) -> str:
    return "." if schema.get("properties") or path == _PARAMS else "="


def _at(schema: Schema, path: str, before: Sequence[str]) -> Schema:
    """Return the schema of a field; empty: there is no such field."""
    node: Schema = schema
    for index, part in enumerate(parts := path.split(".")):
        node = node.get("properties", {}).get(part, {})
        if ".".join(parts[: index + 1]) == _PARAMS:
            node = _parameters(before)
    return node


def _values(path: str, schema: Schema) -> list[str]:
    if path == _NAME:
        return list(BUILT_IN)
    if schema.get("type") == "boolean":
        return ["true", "false"]
    if found := _WORDS.fullmatch(schema.get("pattern", "")):
        return found[1].split("|")
    return [str(value) for value in schema.get("enum", ())]


def _parameters(before: Sequence[str]) -> Schema:
    from torchyard.api.validation.schema_check import params_schema

    name = next(_trainers(before), None)
    return (params_schema(name) if name in BUILT_IN else None) or {}


def _trainers(before: Sequence[str]) -> Iterator[str]:
    """Yield the trainers that a command line names, the last word first: that one is in force."""
    for word in reversed(before):
        path, equals, value = word.removeprefix("spec.").partition("=")
        if equals and path == _NAME:
            yield value
    for word in before:
        if Path(word).suffix in {".yaml", ".yml", ".json"} and (name := _trainer_of(Path(word))) is not None:
            yield name


def _trainer_of(file: Path) -> str | None:
    """Return the trainer of a job file; None: it has none, or cannot be read."""
    import yaml

    from torchyard.api.validation import yaml_tree

    try:
        if file.stat().st_size > _MAX_BYTES:
            return None
        document = yaml_tree.load(file.read_bytes())
        name = document["spec"]["trainer"]["name"]
    except (OSError, yaml.YAMLError, KeyError, TypeError, RecursionError):
        return None
    return name if isinstance(name, str) else None
