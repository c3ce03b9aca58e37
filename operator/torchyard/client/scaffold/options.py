"""The options of a script's command line, as argparse, click, typer and tyro declare them."""

import ast
import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from torchyard.client.scaffold.source import dotted, keywords, literal

MAX_OPTIONS = 200
_NAME = re.compile(r"-{0,2}[A-Za-z0-9][A-Za-z0-9_.-]*")


class Option(NamedTuple):
    """An option or a positional argument."""

    name: str
    """With its hyphens; without any, it is positional."""
    default: str | None
    """As it would be typed; None: there is none, or it is computed."""
    required: bool
    flag: bool
    """Whether it takes no value."""
    help: str

    @property
    def positional(self) -> bool:
        """Whether it is given by its place."""
        return not self.name.startswith("-")


def options_of(tree: ast.Module, packages: set[str]) -> tuple[str, tuple[Option, ...]]:
    """Return the library that parses the command line, and the options, at most 200 of them.

    Args:
        tree: the script.
        packages: that it imports.
    """
    readers = (
        ("argparse", _argparse(tree)),
        ("click", _click(tree)),
        ("HfArgumentParser", _of_classes(tree, "HfArgumentParser", separator="_")),
        ("tyro", _of_classes(tree, "cli", separator="-")),
        ("typer", _of_functions(tree)),
    )
    for library, options in readers:
        if library not in packages and library != "HfArgumentParser":
            continue
        found = tuple(islice((option for option in options if _NAME.fullmatch(option.name)), MAX_OPTIONS))
        if found:
            return library, found
    return "", ()


def _argparse(tree: ast.Module) -> Iterator[Option]:
    for call in _calls(tree):
        if not (isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument" and call.args):
            continue
        names = [text for each in call.args if (text := literal(each)) is not None]
        if not names:
            continue
        given = keywords(call)
        name = next((each for each in names if each.startswith("--")), names[0])
        action = literal(given.get("action")) or ""
        optional = literal(given.get("nargs")) in {"?", "*"}
        required = literal(given.get("required")) == "True" or not (name.startswith("-") or optional)
        flag = action.startswith("store_") or action in {"help", "version", "count"}
        if action not in {"help", "version"}:
            yield Option(name, _default(given), required, flag, literal(given.get("help")) or "")


def _click(tree: ast.Module) -> Iterator[Option]:
    for call in _calls(tree):
        kind = dotted(call.func).rpartition(".")[2]
        names = [text for each in call.args if (text := literal(each)) is not None]
        if kind not in {"option", "argument"} or not names:
            continue
        given = keywords(call)
        name = next((each for each in names if each.startswith("--")), names[0])
        flag = literal(given.get("is_flag")) == "True" or "/" in name
        default = _default(given)
        required = literal(given.get("required")) == "True" or (kind == "argument" and "default" not in given)
        yield Option(name.partition("/")[0], default, required, flag, literal(given.get("help")) or "")


def _of_classes(tree: ast.Module, parser: str, separator: str) -> Iterator[Option]:
    """Yield the fields of the classes, and the parameters of the functions, that are handed to a parser."""
    wanted: set[str] = set()
    for call in _calls(tree):
        if dotted(call.func).rpartition(".")[2] == parser and call.args:
            first = call.args[0]
            wanted |= {dotted(each) for each in (first.elts if isinstance(first, ast.Tuple | ast.List) else [first])}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name in wanted:
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    yield _field(field.target.id, field.annotation, field.value, separator)
        elif isinstance(node, ast.FunctionDef) and node.name in wanted:
            yield from _parameters(node, separator)


def _of_functions(tree: ast.Module) -> Iterator[Option]:
    """Yield the parameters of the functions that typer runs: a command, or the argument of `typer.run`."""
    run = {dotted(call.args[0]) for call in _calls(tree) if dotted(call.func) == "typer.run" and call.args}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and (node.name in run or any(map(_is_command, node.decorator_list))):
            for option in _parameters(node, "-"):
                positional = option.required and not option.flag
                yield option._replace(name=option.name.removeprefix("--")) if positional else option


def _is_command(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func).endswith((".command", ".callback"))


def _parameters(function: ast.FunctionDef, separator: str) -> Iterator[Option]:
    plain = function.args.args
    defaults: list[ast.expr | None] = [*[None] * (len(plain) - len(function.args.defaults)), *function.args.defaults]
    both = [*zip(plain, defaults, strict=True), *zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)]
    for argument, default in both:
        yield _field(argument.arg, argument.annotation, default, separator)


def _field(name: str, annotation: ast.expr | None, value: ast.expr | None, separator: str) -> Option:
    flag = isinstance(annotation, ast.Name) and annotation.id == "bool"
    help_text = ""
    if isinstance(value, ast.Call):  # field(default=..., metadata=...), typer.Option(...)
        given = keywords(value)
        help_text = literal(given.get("help")) or ""
        required = (
            False if given.keys() & {"default", "default_factory"} else not value.args or _is_ellipsis(value.args[0])
        )
        value = given.get("default") or next(iter(value.args), None)
    else:
        required = value is None
    return Option(f"--{name.replace('_', separator)}", literal(value), required, flag, help_text)


def _default(given: dict[str, ast.expr]) -> str | None:
    node = given.get("default")
    if isinstance(node, ast.Call) and len(node.args) == 1 and dotted(node.func).endswith("Path"):
        return literal(node.args[0])
    return literal(node)


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _calls(tree: ast.Module) -> Iterator[ast.Call]:
    """Yield the calls of a script in the order of its lines."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return iter(sorted(calls, key=lambda call: (call.lineno, call.col_offset)))
