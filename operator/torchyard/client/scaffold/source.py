"""Read the source of a script, bounded, without running any of it."""

import ast
from pathlib import Path

from torchyard.api.files import read_bounded
from torchyard.client.errors import TorchYardError

MAX_BYTES = 2**20


def parsed(script: Path) -> ast.Module:
    """Return the syntax tree of a script.

    Raises:
        TorchYardError: it cannot be read, is larger than 1 MiB, or is not Python.
    """
    try:
        data = read_bounded(script, MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise TorchYardError(f"{script} cannot be read ({reason})", "give the path of a Python script") from error
    if len(data) > MAX_BYTES:
        what = f"{script} is larger than {MAX_BYTES // 1024} KiB"
        raise TorchYardError(what, f"`torchyard run {script} --save job.yaml` writes a job file without reading it")
    try:
        return ast.parse(data)
    except SyntaxError as error:
        raise TorchYardError(f"{script}:{error.lineno or 1}: {error.msg}", "correct the script") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise TorchYardError(
            f"{script} cannot be parsed: {error or 'nested too deeply'}", "correct the script"
        ) from error


def dotted(node: ast.expr) -> str:
    """Return `a.b.c` for a name or its attributes; empty for any other expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def literal(node: ast.expr | None) -> str | None:
    """Return a number, a text or a truth value as a text; None: the expression is another one, or there is none."""
    sign = ""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, node = "-", node.operand
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str | int | float):
        return None
    return sign + str(node.value)


def keywords(call: ast.Call) -> dict[str, ast.expr]:
    """Return the named arguments of a call."""
    return {each.arg: each.value for each in call.keywords if each.arg is not None}
