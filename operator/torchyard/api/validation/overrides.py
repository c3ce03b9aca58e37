"""`--set path=value` changes a job file before it is checked. `nodes` is short for `spec.nodes`."""

import re
from typing import Any

from torchyard.api.validation.problems import Problem
from torchyard.api.validation.yaml_tree import At, NotTextError, YamlError, read, tree_of_values

_ROOTS = {"apiVersion", "kind", "metadata", "spec"}
_PART = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)((?:\[[0-9]{1,5}\])*)")


class Override(str):
    """A change that no command line has: its path, its value, and the place that messages name instead of `--set`."""

    __slots__ = ("origin", "value")
    origin: str
    value: Any

    @classmethod
    def of(cls, path: str, value: Any, origin: str) -> "Override":
        """Return the change of a field to JSON values."""
        change = cls(path)
        change.origin, change.value = origin, value
        return change


def override(root: At, text: str) -> Problem | None:
    """Set one value in the tree; return the fault if the text or its path cannot be used.

    `nodes=2`, `spec.trainer.params.steps=100`, `env[0].value=x`, `preload=[numpy]`; `path=null` removes a field.
    """
    if isinstance(text, Override):
        origin, path, parts = text.origin, str(text), _parts(text)
        if not parts:
            return Problem(origin, 0, "", "not the path of a field", "write it like nodes or trainer.params.steps")
    else:
        origin = f"--set {text[:100]}"
        path, equals, written = text.partition("=")
        parts = _parts(path)
        if not equals or not parts:
            fix = "write it like nodes=2 or trainer.params.steps=100"
            return Problem(origin, 0, "", "not of the form path=value", fix)
    try:
        value = tree_of_values(text.value) if isinstance(text, Override) else _one_value(written)
    except NotTextError as error:
        return Problem(origin, 0, f"{path}{error.path}", error.what, error.fix)
    except YamlError as error:
        return Problem(origin, 0, path, error.what, error.fix)
    _mark(value, origin)
    return _put(root, parts, value, origin)


def _one_value(written: str) -> At:
    documents, repeated = read(written)
    if len(documents) > 1 or repeated:
        raise YamlError(0, "more than one value", "give one")
    return documents[0] if documents else At(value=None, line=0)


def _parts(path: str) -> list[str | int]:
    parts: list[str | int] = []
    for piece in path.strip().split("."):
        match = _PART.fullmatch(piece)
        if match is None:
            return []
        parts.append(match[1])
        parts.extend(int(index) for index in re.findall(r"[0-9]+", match[2]))
    return parts if parts[0] in _ROOTS else ["spec", *parts]


def _mark(at: At, origin: str) -> None:
    at.origin = origin
    at.line = at.key_line = 0
    for child in at.value.values() if isinstance(at.value, dict) else at.value if isinstance(at.value, list) else ():
        _mark(child, origin)


def _put(root: At, parts: list[str | int], value: At, origin: str) -> Problem | None:
    holder = root
    walked = ""
    for depth, part in enumerate(parts):
        container: dict[str, At] | list[At] = holder.value
        if not isinstance(container, list if isinstance(part, int) else dict):
            kind = "list" if isinstance(part, int) else "mapping"
            return Problem(origin, 0, walked or "the file", f"it is not a {kind}", "correct the path")
        walked += f"[{part}]" if isinstance(part, int) else f".{part}" if walked else part
        fresh = value if depth == len(parts) - 1 else _empty_for(parts[depth + 1], origin)
        if isinstance(container, dict):
            name = str(part)
            if depth == len(parts) - 1 or name not in container or container[name].value is None:
                container[name] = fresh
            holder = container[name]
            continue
        index = int(part)
        if index > len(container):
            return Problem(origin, 0, walked, f"the list has {len(container)} items", f"use at most [{len(container)}]")
        if index == len(container):
            container.append(fresh)
        elif depth == len(parts) - 1:
            container[index] = fresh
        holder = container[index]
    return None


def _empty_for(part: str | int, origin: str) -> At:
    return At(value=[] if isinstance(part, int) else {}, line=0, origin=origin)
