"""Which context of which files kubectl would take. Of several files the first one that says something wins.

The `kubernetes` package lets the last file's current context win, wants a current context even where another one is
asked for, refuses empty files, and passes over `as`: it would speak to another cluster, or as another user.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

Document = dict[str, Any]


class Chosen(NamedTuple):
    """A context, and what the package that loads credentials does not tell."""

    files: str = ""
    """Those that say anything, as $KUBECONFIG lists them."""
    context: str = ""
    namespace: str = "default"
    impersonation: tuple[tuple[str, str], ...] = ()
    """Headers of every request."""
    plugin: str = ""
    """Command that gives the user's credentials; empty: they are in the file."""
    hint: str = ""
    """What its installer says to who lacks it."""


def choose(files: str, context: str | None) -> Chosen:
    """Find the context that is asked for, else the current one.

    Args:
        files: as $KUBECONFIG lists them; those that are not there do not count.
        context: what --context says.

    Raises:
        ValueError: there is no such context.
        OSError, yaml.YAMLError, TypeError, KeyError, AttributeError: a file is no kubeconfig.
    """
    paths = [Path(file).expanduser() for file in files.split(os.pathsep) if file]
    found = {path: yaml.safe_load(path.read_text(encoding="utf-8")) for path in paths if path.exists()}
    documents = {path: document for path, document in found.items() if document is not None}
    if not documents:
        raise ValueError("no such file, or nothing in it")
    name = context or next((each["current-context"] for each in documents.values() if each.get("current-context")), "")
    if not name:
        raise ValueError("there is no current-context")
    chosen = _first(documents, "context", name)
    if chosen is None:
        raise ValueError(f"there is no context `{name}`")
    user = _first(documents, "user", chosen.get("user") or "") or {}
    plugin = user.get("exec") or {}
    return Chosen(
        files=os.pathsep.join(map(str, documents)),
        context=name,
        namespace=str(chosen.get("namespace") or "default"),
        impersonation=tuple(_impersonation(user)),
        plugin=str(plugin.get("command") or ""),
        hint=" ".join(str(plugin.get("installHint") or "").split()) or "run it by hand to see why",
    )


def _first(documents: dict[Path, Document], kind: str, name: str) -> Document | None:
    listed = (each for document in documents.values() for each in document.get(f"{kind}s") or ())
    return next((each.get(kind) or {} for each in listed if each["name"] == name), None)


def _impersonation(user: Document) -> Iterator[tuple[str, str]]:
    if user.get("as"):
        yield "Impersonate-User", str(user["as"])
    if user.get("as-uid"):
        yield "Impersonate-Uid", str(user["as-uid"])
    for group in user.get("as-groups") or ():
        yield "Impersonate-Group", str(group)
    for key, values in (user.get("as-user-extra") or {}).items():
        for value in values:
            yield f"Impersonate-Extra-{key}", str(value)
