"""The source of a decorated function, as a part of its job."""

import ast
import builtins
import importlib
import inspect
import symtable
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torchyard.api.backends import Backend
from torchyard.client.backend import Notice
from torchyard.client.errors import TorchYardError
from torchyard.client.scripts import modules_beside

_OF_MODULES = {"__name__", "__file__", "__doc__"}
"""Names that the module of the job has, too."""


def source_of_module(file: Path, function: str, backend: Backend, image: object, notice: Notice) -> str:
    """Read the module of a function.

    Args:
        file: of the module.
        function: its name, for messages.
        backend: where the job will run; on a cluster it has this module only.
        image: that the pods run, None for the operator's default.
        notice: called with warnings about what may fail in the pods.

    Raises:
        TorchYardError: the module needs other modules, which the job cannot contain.
    """
    try:
        source = file.read_text(encoding="utf-8-sig")
        tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError) as error:
        raise TorchYardError(
            f"{file}, the module of {function}, cannot be read: {error}", "save it as UTF-8"
        ) from error
    relative = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]
    fix = "build an image that holds your code and start it there: command: [torchrun, -m, package.module]"
    if relative:
        what = f"{file}:{relative[0].lineno}: a relative import, and only the module of {function} travels"
        raise TorchYardError(what, f"import by the full name from an image that has the package, or {fix}")
    beside = modules_beside(source, file, notice) if backend == "cluster" else []
    if beside:
        what = f"{file} imports {', '.join(beside)} from its folder, and only the module of {function} travels"
        if image is None:
            raise TorchYardError(what, fix)
        notice(f"torchyard: {what}: {image} must have {'it' if len(beside) == 1 else 'them'} installed")
    return source


def source_of_function(function: Callable[..., Any]) -> str:
    """Return the source of a notebook function without decorators, preceded by the imports that it needs.

    Raises:
        TorchYardError: it has no source, or uses names of the notebook that are not importable.
    """
    try:
        source = textwrap.dedent(inspect.getsource(function))
        tree = ast.parse(source)
    except (OSError, TypeError, SyntaxError) as error:
        fix = "define it in a module, or in a notebook cell without a magic such as %%time"
        raise TorchYardError(f"the source of {function.__name__} is not known: {error}", fix) from error
    node = tree.body[0]
    if not isinstance(node, ast.FunctionDef) or len(tree.body) != 1:
        raise TorchYardError(f"the source of {function.__name__} is not one `def`", "define it by itself in a cell")
    if hasattr(function, "__wrapped__"):
        what = f"{function.__name__} has a decorator beside torchyard.job, and only its own source travels"
        raise TorchYardError(what, "move both into a module, or call what the decorator does inside the function")
    lines = source.splitlines(keepends=True)
    body = "".join(lines[node.lineno - 1 :])
    imports: list[str] = []
    missing: list[str] = []
    for name in sorted(_free_names(node)):
        if name in function.__globals__:
            line = _import_of(name, function.__globals__[name])
            (imports if line else missing).append(line or name)
        elif not hasattr(builtins, name):
            missing.append(name)
    if missing:
        names = ", ".join(missing)
        what = f"{function.__name__} uses {names} of the notebook, and only its own source travels"
        raise TorchYardError(what, "import or define that inside the function, or pass it as an argument")
    return "\n".join(
        ["from __future__ import annotations", *imports, "", "", body if body.endswith("\n") else f"{body}\n"]
    )


def _import_of(name: str, value: object) -> str | None:
    """Return the statement that binds `name` to the same object elsewhere, None if no statement does."""
    if isinstance(value, types.ModuleType):
        return f"import {value.__name__} as {name}" if value.__name__ != "__main__" else None
    module, called = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(called, str) or module == "__main__" or "." in called:
        return None
    try:
        same = getattr(importlib.import_module(module), called, None) is value
    except ImportError:
        return None
    return f"from {module} import {called} as {name}" if same else None


class _Unannotated(ast.NodeTransformer):
    """Drops annotations and decorators, which are not a part of the job."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        node.decorator_list = [] if getattr(node, "outermost", False) else node.decorator_list
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node


def _free_names(node: ast.FunctionDef) -> set[str]:
    """Return the global names that the function refers to, except its own."""
    node.outermost = True  # type: ignore[attr-defined]
    text = ast.unparse(ast.fix_missing_locations(_Unannotated().visit(node)))
    whole = symtable.symtable(text, "<function>", "exec")
    found = {symbol.get_name() for symbol in whole.get_symbols() if symbol.is_referenced() and not symbol.is_assigned()}
    for table in _tables(whole):
        found |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() and symbol.is_referenced()}
    return found - {node.name} - _OF_MODULES


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for child in table.get_children():
        yield child
        yield from _tables(child)
