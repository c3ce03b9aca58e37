"""The reference page of the Python API, from its signatures and docstrings."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import torchyard

HEAD = """\
# Python API

Every name of `import torchyard as ty`, generated from signatures and docstrings. [python.md](../python.md) shows how
they are used. `torchyard.aio` has the same functions and the same `Job` as coroutines; what is a property of `Job` here
is a method there (`await job.status()`). The fields of `TrainingJobSpec` and `TrainingJobStatus` are those of
[trainingjob.md](trainingjob.md), in Python's spelling: `gpusPerNode` is `gpus_per_node`.
"""
WIDTH = 100
FIELDS_ELSEWHERE = {"TrainingJob", "TrainingJobSpec", "TrainingJobStatus", "ObjectMeta"}
KINDS = {
    "Functions": inspect.isfunction,
    "Classes": lambda value: inspect.isclass(value) and not issubclass(value, Exception),
    "Errors": lambda value: inspect.isclass(value) and issubclass(value, Exception),
}


def python_markdown() -> str:
    """Return the page: functions, classes with their public members, errors."""
    found = {name: getattr(torchyard, name) for name in torchyard.__all__}
    lines = [HEAD]
    for title, belongs in KINDS.items():
        lines += [f"## {title}", ""]
        for name, value in found.items():
            if belongs(value):
                lines += [f"### {name}", "", *_described(name, value)]
    return "\n".join(lines).rstrip() + "\n"


def _described(name: str, value: Any) -> Iterator[str]:
    if inspect.isfunction(value):
        yield from _code(f"{name}{_signature(value)}")
    yield from _text(value)
    if name in FIELDS_ELSEWHERE or not inspect.isclass(value):
        return
    fields = getattr(value, "__struct_fields__", None) or getattr(value, "_fields", ())
    if fields and "Attributes:" not in (value.__doc__ or ""):
        yield from (f"Fields: {', '.join(f'`{field}`' for field in fields)}.", "")
    for member, defined in vars(value).items():
        if member.startswith("_") or not (inspect.isfunction(defined) or isinstance(defined, property)):
            continue
        yield from (f"#### {name}.{member}", "")
        if inspect.isfunction(defined):
            yield from _code(f"{member}{_signature(defined)}")
        yield from _text(defined)


def _signature(value: Any) -> str:
    """Return parameters and result as they are written, which no version of Python prints differently."""
    node = ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    text = re.sub(r"(?<=[\w\])])=(?=\S)", " = ", ast.unparse(node.args)).removeprefix("self, ")
    text = "" if text == "self" else text
    if len(text) + len(result) < WIDTH:
        return f"({text}){result}"
    depth, broken = 0, ""
    for character in text:  # a line for each parameter; commas inside brackets part none
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(character, 0)
        broken += character + ("\n" if depth == 0 and character == "," else "")
    lines = "\n".join(f"    {line.strip()}" for line in broken.splitlines())
    return f"(\n{lines},\n){result}"


def _code(text: str) -> Iterator[str]:
    yield from ("```python", text, "```", "")


def _text(value: Any) -> Iterator[str]:
    """Yield a docstring; its sections become lists."""
    for line in (inspect.getdoc(value) or "").splitlines():
        section = re.fullmatch(r"(Args|Attributes|Raises|Returns):", line)
        item = re.fullmatch(r"    (\w+): (.*)", line)
        if section:
            yield from (f"{section[1]}:", "")
        elif item:
            yield f"- `{item[1]}`: {item[2]}"
        else:
            yield line if not line.startswith("    ") else f"  {line.strip()}"
    yield ""
