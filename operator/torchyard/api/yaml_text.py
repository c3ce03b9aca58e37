"""Objects as YAML for people, which every reader of YAML takes for the same values, and JSON for readers of YAML."""

import json
import re
from typing import Any

import yaml

# Text that some readers of YAML take for something else: "1e-4", "007" and "12:30" are numbers, and `y` is true for Go.
_QUOTED = re.compile(r"[-+._]*[0-9][0-9a-fox_,.:+-]*|[-+]?\.(inf|nan)|[yn]|-.*", re.IGNORECASE)
_NOT_PRINTABLE = re.compile(r"[^\n\x20-\x7e]")

# In JSON, all of these are inside of strings. YAML rejects most of them, and folds those that it takes for line breaks.
_UNREADABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_KEY = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?')
_MAX_KEY = 1000  # characters: YAML needs a "? " before a longer key, and before one whose colon is on another line
_ESCAPE = re.compile(r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|.)")


def dumped(document: Any, *, width: int = 120) -> str:
    """Return JSON values as YAML, in the order of their fields; every character is printable or a line break.

    Args:
        document: JSON values.
        width: of a line, in characters.
    """
    text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=width)
    return text if text.isascii() else _NOT_PRINTABLE.sub(_escaped, text)


def comment(text: str) -> str:
    """Return a text as one line of comment, in which characters that are not printable are escapes."""
    shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    return f"# {shown}\n"


def readable_json(text: str) -> str:
    """Return JSON as text that YAML 1.1 reads as the same values, with the same lines; other text as it is.

    JSON writes a character outside the Basic Multilingual Plane as two escapes, and YAML as one; keys of JSON have any
    length, and JSON is indented with tabs, too.
    """
    value = text.lstrip()
    if not value.startswith(("{", "[")) or not _is_json(text):
        return text
    indent = text[: len(text) - len(value)].replace("\t", " ")
    return indent + _KEY.sub(_marked_key, _UNREADABLE.sub(_escaped, _ESCAPE.sub(_joined, value)))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _marked_key(string: re.Match[str]) -> str:
    colon = string[2]
    return f"? {string[0]}" if colon and (len(string[1]) > _MAX_KEY or "\n" in colon or "\r" in colon) else string[0]


def _joined(escape: re.Match[str]) -> str:
    high, low = escape.groups()
    if high is None:
        return escape[0]
    return chr(0x10000 + ((int(high, 16) & 0x3FF) << 10 | int(low, 16) & 0x3FF))


def _escaped(character: re.Match[str]) -> str:
    """Return the escape of a character of a text in double quotes: all that is not printable is inside of them."""
    code = ord(character[0])
    return character[0] if character[0].isprintable() else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as people do, and every value out: kubectl reads no aliases as well as people do."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Never use an anchor."""
        return True

    def text(self, value: str) -> yaml.ScalarNode:
        """Return the node of a text; YAML itself quotes what is no text without quotes, such as `yes`."""
        style = "|" if "\n" in value else None
        if not value.replace("\n", "").isprintable() or _QUOTED.fullmatch(value):
            style = '"'
        return self.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _Dumper.text)
