"""Read metrics from lines of output by regular expressions with named groups (pure).

A group may hold a part of a number: `[0-9.]+` finds 1 in `1,25`, in `1e-05` and in `1_000`, and 1.2 in `1.2k`. Such a
value would be wrong without a sign of it, so the line has none, unless the pattern itself says what stands beside it:
`(?P<seconds>[0-9.]+)s`. The same group does not find `nan` at all, and the value before it would stay: a pattern is
therefore matched as if digits stood there.
"""

from __future__ import annotations

import re
from typing import Dict, List, Match, NamedTuple, Optional, Pattern, Sequence, Set, Tuple

from torchyard_agent.telemetry.readings import number

_MOST_WARNINGS = 3
_QUOTED = 70  # characters of a line, and of a pattern
# What makes a number longer, after it: digits and letters; digits behind a decimal comma or between thousands.
_CONTINUES = re.compile(r"[A-Za-z]|\d|[.,·٫]\d|[_'’٬\u00a0\u2009\u202f]\d{3}(?!\d)")  # noqa: RUF001 - as they are printed
# And before it: digits; a sign that is not the hyphen of a word.
_PRECEDES = re.compile(r"(\d[.,·٫]?|(?:^|[\s=:(\[])[-\u2212])$")  # noqa: RUF001 - as they are printed
_NOT_FINITE = re.compile(r"(?<![\w.])[+-]?(?:nan|inf(?:inity)?)(?![\w.])", re.IGNORECASE)
_DIGITS = ("0.0000", "0.0", "0", "0.00", "0.000", "0.00000", "0.000000", "0.0000e+00", "0.00e+00", "0.000000e+00")


class Patterns:
    """The metric patterns of a job.

    Attributes:
        warnings: one for each of the first few groups that held something else than a plain number.
    """

    def __init__(self, patterns: Sequence[Pattern[str]]) -> None:
        self.warnings: List[str] = []
        self._patterns = patterns
        self._warned: Set[str] = set()
        self._expressions = {each: _expressions_beside(each) for each in patterns}

    def values(self, line: str) -> Dict[str, float]:
        """Return the value of each group that a line has a number for; of several patterns, the last one's."""
        values: Dict[str, float] = {}
        for pattern in self._patterns:
            reading = _read(pattern, line)
            if reading is None:
                continue
            for name, text in reading.match.groupdict().items():
                value = reading.not_finite.get(name, _number(text or ""))
                if value is not None and not self._is_part(reading.match, name):
                    values[name] = value
                elif text:
                    self._warn(reading.match, name)
        return values

    def _is_part(self, match: Match[str], name: str) -> bool:
        """Return whether a group holds a part of a longer number, without the pattern naming what stands beside it."""
        before, after = self._expressions[match.re][name]
        start, end = match.span(name)
        next_ = _CONTINUES.match(match.string, end)
        if next_ and not _begins_with(after, match.string[end]):
            return True
        previous = _PRECEDES.search(match.string[max(0, start - 3) : start])
        return bool(previous) and not _ends_with(before, match.string[start - 1])

    def _warn(self, match: Match[str], name: str) -> None:
        if name in self._warned or len(self._warned) == _MOST_WARNINGS:
            return
        self._warned.add(name)
        start = max(0, match.start(name) - _QUOTED // 2)
        line, pattern = match.string[start : start + _QUOTED].strip(), match.re.pattern
        shown = pattern if len(pattern) <= _QUOTED else pattern[:_QUOTED] + "..."
        self.warnings.append(
            f"metrics.patterns: no plain number for {name} in the line `{line}`, which is left out; print 1234.5 or "
            f"1.2e-05, or name what follows the number, such as its unit, in `{shown}`"
        )


class _Reading(NamedTuple):
    """A match, and the values of those of its groups that are not finite."""

    match: Match[str]
    not_finite: Dict[str, float]


def _read(pattern: Pattern[str], line: str) -> Optional[_Reading]:
    tokens = list(_NOT_FINITE.finditer(line))
    for digits in _DIGITS if tokens else ():
        replaced, at, spans = "", 0, {}
        for token in tokens:
            replaced += line[at : token.start()] + digits
            spans[len(replaced) - len(digits), len(replaced)] = float(token[0])
            at = token.end()
        match = pattern.search(replaced + line[at:])
        if match is not None:
            not_finite = {name: spans[match.span(name)] for name in pattern.groupindex if match.span(name) in spans}
            if not_finite:
                return _Reading(match, not_finite)
    match = pattern.search(line)
    return _Reading(match, {}) if match is not None else None


def _number(text: str) -> Optional[float]:
    """Return the value of a group, which may hold the punctuation after a number."""
    text = text.strip().rstrip(",;")
    value = number(text)
    return value if value is not None or not text.endswith(".") else number(text[:-1])


def _expressions_beside(pattern: Pattern[str]) -> Dict[str, Tuple[str, str]]:
    """Return what a pattern has before and after each of its named groups."""
    source = pattern.pattern
    found = {}
    for name in pattern.groupindex:
        start = source.find(f"(?P<{name}>")
        found[name] = (source[:start], source[_end_of_group(source, start) :])
    return found


def _end_of_group(source: str, start: int) -> int:
    """Return the place behind the parenthesis that closes the group which begins at `start`."""
    depth, at, in_class = 0, start, False
    while at < len(source):
        character = source[at]
        if character == "\\":
            at += 1
        elif in_class:
            in_class = character != "]"
        elif character == "[":
            in_class = True
            at += source.startswith(("]", "^]"), at + 1)  # a bracket that comes first is a member
        elif character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    return at


_ATOM = re.compile(r"(?:\\s|[ ])[*+?]?|\((?:\?:)?|(?P<atom>\\.|\[\^?\]?[^\]]*\]|[^\\(\[])", re.DOTALL)
_ANYTHING = frozenset({".", r"\D", r"\S", r"\W", "$"})


def _begins_with(expression: str, character: str) -> bool:
    """Return whether an expression names the character that it begins with, rather than allowing any."""
    at = 0
    while match := _ATOM.match(expression, at):
        atom = match["atom"]
        if atom is not None:
            return atom not in _ANYTHING and _matches(atom, character)
        at = match.end()
    return False


def _ends_with(expression: str, character: str) -> bool:
    """Return whether an expression ends with this character, or with a set that has it."""
    atom = re.search(r"(\\.|\[[^\[\]]*\]|.)[*+?]?$", expression, re.DOTALL)
    return atom is not None and atom[1] not in _ANYTHING and _matches(atom[1], character)


def _matches(atom: str, character: str) -> bool:
    try:
        return re.fullmatch(atom, character) is not None
    except re.error:  # a part of an expression that this does not understand
        return False
