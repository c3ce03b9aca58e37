"""YAML as a tree that remembers lines. Never runs a tag, bounded in size and depth, strict about duplicate keys.

Scalars are read as kubectl reads them, so that `yes` and `y` are booleans here as there, and `1e-4` is a number.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml
from msgspec import Struct

from torchyard.api.yaml_text import readable_json

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 64
MAX_VALUES = 50_000

_TEXT_TAGS = {"!", "tag:yaml.org,2002:str"}
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "y", "Y", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "n", "N", "off", "Off", "OFF"), False),
}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,40})")
_BASED = re.compile(r"[-+]?0([xX][0-9a-fA-F]+|[oO][0-7]+|[bB][01]+)")
_OCTAL = re.compile(r"[-+]?0[0-7]+")
_FLOAT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,4})?")
_HINTS = (
    ("mapping values are not allowed", "quote a value that holds ': '"),
    ("could not find expected ':'", "end the key with ':'"),
    ("did not find expected key", "align the keys of a mapping"),
    ("control characters", "remove the character"),
    ("special characters", "remove the character"),
    ("invalid Unicode character escape code", r"write the character itself, or in double quotes \U0001F389"),
)
_TOO_DEEP = f"nested more than {MAX_DEPTH} deep", "no field of a job is that deep"
_TOO_MANY = (
    f"more than {MAX_VALUES} values",
    "a job holds far fewer; put data into a file of a volume, or look for aliases of aliases",
)
_HALF = re.compile("[\ud800-\udfff]")


class At(Struct):
    """A value and its position.

    Attributes:
        value: a scalar, a list of At or a dict of At.
        line: 1-based, or 0.
        size: number of values in it.
        key_line: of its key, or 0.
        origin: what messages name in place of a line.
        written: of a number, true, false or null: its text in the file.
    """

    value: Any
    line: int
    size: int = 1
    key_line: int = 0
    origin: str = ""
    written: str = ""

    @property
    def plain(self) -> Any:
        """The value without lines."""
        if isinstance(self.value, dict):
            return {key: child.plain for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain for child in self.value]
        return self.value


def tree_of_values(value: Any) -> At:
    """Return JSON values of a program as a tree without lines.

    Raises:
        NotTextError: a text or the name of a field in it has no form in UTF-8.
        YamlError: it is nested too deeply or holds too many values.
    """
    return _tree(value, "", 0)


def _tree(value: Any, path: str, depth: int) -> At:
    if depth > MAX_DEPTH:
        raise YamlError(0, *_TOO_DEEP)
    if isinstance(value, Mapping):
        for key in value:
            require_text(key, path)
        fields = {key: _tree(child, f"{path}.{key}" if path else key, depth + 1) for key, child in value.items()}
        return _sized(fields, fields.values())
    if isinstance(value, list):
        items = [_tree(child, f"{path}[{index}]", depth + 1) for index, child in enumerate(value)]
        return _sized(items, items)
    if isinstance(value, str):
        require_text(value, path)
        return At(value=value, line=0)
    return At(value=value, line=0, written=json.dumps(value))


def _sized(value: Any, children: Iterable[At]) -> At:
    size = 1 + sum(child.size for child in children)
    if size > MAX_VALUES:
        raise YamlError(0, *_TOO_MANY)
    return At(value=value, line=0, size=size)


class YamlError(ValueError):
    """What is wrong with the text, in which line (1-based), and how to correct it."""

    def __init__(self, line: int, what: str, fix: str) -> None:
        super().__init__(f"{line}: {what}: {fix}")
        self.line, self.what, self.fix = line, what, fix


class NotTextError(ValueError):
    """A text that has no form in UTF-8, and the path of the field that holds it."""

    def __init__(self, path: str, what: str, fix: str) -> None:
        super().__init__(f"{path}: {what}: {fix}")
        self.path, self.what, self.fix = path, what, fix


def require_text(text: str, path: str) -> None:
    """Check that UTF-8 can hold a text: an argument or a path of the operating system may have any bytes.

    Raises:
        NotTextError: it cannot.
    """
    if text.isascii() or (half := _HALF.search(text)) is None:
        return
    number, code = half.start() + 1, ord(half[0])
    if 0xDC80 <= code <= 0xDCFF:  # of `os.fsdecode`
        what, fix = f"character {number} is the byte 0x{code - 0xDC00:02x}, which is not UTF-8", "write it as UTF-8"
    else:
        what, fix = f"character {number} is U+{code:04X}, half of a surrogate pair", "write the whole character"
    raise NotTextError(path, what, fix)


def read(text: str) -> tuple[list[At], list[YamlError]]:
    """Return every document of the text that is not empty, and the keys that stand twice (the first one counts).

    Raises:
        YamlError: the first thing that is not YAML, or is YAML that no job needs.
    """
    try:
        require_text(text, "")
    except NotTextError as error:
        raise YamlError(1, error.what, error.fix) from None
    text = readable_json(text)
    repeated: list[YamlError] = []
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        documents = list(_documents(iter(yaml.parse(text, Loader=loader)), repeated))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _syntax(text, mark.line + 1 if mark else 1, error.problem or "it cannot be read") from error
    except yaml.YAMLError as error:
        line = text.count("\n", 0, getattr(error, "position", 0) or 0) + 1
        raise _syntax(text, line, str(error).partition("\n")[0]) from error
    return [document for document in documents if document.value is not None], repeated


def load(data: bytes) -> Any:
    """Return the value of the only document of YAML that a program wrote, as PyYAML reads it.

    libyaml composes recursively in C: text that is nested deeply would end the process, without an exception. A value
    behind an alias would be read as often as it is used.

    Raises:
        yaml.YAMLError: it is not YAML, or is nested too deeply, or has aliases.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for event in _shallow(data, loader):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError("it has aliases")
    return yaml.load(data, Loader=loader)  # noqa: S506 - both are safe


def require_shallow(data: bytes) -> None:
    """Check how deeply YAML is nested that a library will read, which may read it recursively.

    Raises:
        yaml.YAMLError: it is not YAML, or is nested too deeply.
    """
    for _ in _shallow(data, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        pass


def _shallow(data: bytes, loader: Any) -> Iterator[Any]:
    """Yield the events of YAML, which are parsed without recursion, up to the first that is too deep."""
    depth = 0
    for event in yaml.parse(data, Loader=loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise yaml.YAMLError(_TOO_DEEP[0])
        yield event


def scalar(text: str, line: int = 1) -> Any:
    """Return the value of a plain scalar.

    Raises:
        YamlError: a number that JSON cannot hold.
    """
    if text in _WORDS:
        return _WORDS[text]
    if text.lower().lstrip("+-") in {".inf", ".nan"}:
        raise YamlError(line, f"{text} is not a finite number", "use a number")
    digits = text.replace("_", "") if text[0] in "+-0123456789" else text
    if _INTEGER.fullmatch(digits):
        return int(digits)
    if _BASED.fullmatch(digits):
        return int(digits, 0)
    if _OCTAL.fullmatch(digits):
        return int(digits, 8)
    if _FLOAT.fullmatch(digits):
        number = float(digits)
        if number in {float("inf"), float("-inf")}:
            raise YamlError(line, f"{text[:40]} is too large a number", "give a smaller one")
        return number
    return text


def _syntax(text: str, line: int, problem: str) -> YamlError:
    shown = text.split("\n")[line - 1 : line]
    if shown and "\t" in shown[0][: len(shown[0]) - len(shown[0].lstrip())]:
        return YamlError(line, "a tab", "indent with spaces, YAML allows no tabs")
    fix = next((fix for sign, fix in _HINTS if sign in problem), "correct this line or the one before it")
    return YamlError(line, f"not YAML ({problem})", fix)


def _documents(events: Iterator[Any], repeated: list[YamlError]) -> Iterator[At]:
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            yield _Document(events, repeated).value(next(events), depth=0)


class _Document:
    """Composes one document from its events."""

    def __init__(self, events: Iterator[Any], repeated: list[YamlError]) -> None:
        self._events = events
        self._repeated = repeated
        self._anchors: dict[str, At] = {}
        self._count = 0

    def value(self, event: Any, depth: int) -> At:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event.anchor, line)
        if depth > MAX_DEPTH:
            raise YamlError(line, *_TOO_DEEP)
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event, line)
            node = At(value=value, line=line, written="" if isinstance(value, str) else _short(event.value))
        elif event.tag is not None and event.tag not in {"!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}:
            raise _tag(event.tag, line)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(line, depth)
        else:
            node = self._mapping(line, depth)
        self._grow(1, line)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _alias(self, name: str | None, line: int) -> At:
        target = self._anchors.get(name or "")
        if target is None:
            raise YamlError(line, f"alias *{name} has no finished anchor", "write the value out")
        self._grow(target.size, line)
        return At(value=target.value, line=line, size=target.size, written=target.written)

    def _grow(self, by: int, line: int) -> None:
        # Aliases are counted as often as they are used: a small file cannot unfold into a large one.
        self._count += by
        if self._count > MAX_VALUES:
            raise YamlError(line, *_TOO_MANY)

    def _sequence(self, line: int, depth: int) -> At:
        items: list[At] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self.value(event, depth + 1))
        return At(value=items, line=line, size=1 + sum(item.size for item in items))

    def _mapping(self, line: int, depth: int) -> At:
        fields: dict[str, At] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key_line = event.start_mark.line + 1
            if not isinstance(event, yaml.ScalarEvent):
                raise YamlError(key_line, "a key that is not plain text", "write the key as one word")
            key = event.value
            if key == "<<" and not event.style:
                raise YamlError(key_line, "merge keys (<<) are not read", "write the fields out")
            if not isinstance(self._scalar(event, key_line), str):
                # For kubectl, the key of `no: 1` is "false", and that of `010: 1` is "8".
                raise YamlError(key_line, f"the key {_short(key)} is not text", f'quote it: "{_short(key)}"')
            if key in fields:
                first = fields[key].key_line
                what = f"key {_short(key)} occurs twice (first on line {first})"
                self._repeated.append(YamlError(key_line, what, "keep one of them"))
            child = self.value(next(self._events), depth + 1)
            if key in fields:
                continue
            child.key_line = key_line
            fields[key] = child
        return At(value=fields, line=line, size=1 + sum(child.size for child in fields.values()))

    @staticmethod
    def _scalar(event: Any, line: int) -> Any:
        if event.tag is not None and event.tag not in _TEXT_TAGS:
            raise _tag(event.tag, line)
        if event.tag is None and not event.style:
            return scalar(event.value, line)
        return event.value


def _tag(tag: str, line: int) -> YamlError:
    return YamlError(line, f"the tag {_short(tag)} is not read", "remove it")


def _short(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
