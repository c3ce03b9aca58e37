"""Calls of tools in completions, in the format in which the chat template writes them, and the answers of tools.

The format is read off the template: it renders two calls with marks, and what stands around names and arguments is what
calls are recognized by. Arguments are JSON, or each stands between tags of its own; a template that writes them in
another way cannot be used with tools.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torchyard_trainers.core.data.rows import BadRecordError
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.lm.chat.calls import form_of
from torchyard_trainers.lm.chat.messages import ASSISTANT, Message

_NAMES = ("Zq3Jx", "Zq4Jx")
_KEY, _VALUES = "zq5jx", ("Zq6Jx", "Zq7Jx")
_KEYS = (_KEY, "zq2jx")
_QUESTION: Message = {"role": "user", "content": "Zq8Jx"}
_ANSWER = "Zq9Jx"
_DECODER = json.JSONDecoder()
_FAILED = "trainer.params.tools: the chat template "
_FIX = "; use a template with calls as JSON, such as that of Qwen, in chat_template.jinja"

Render = Callable[[Sequence[Message], bool], str]


class ToolCall(NamedTuple):
    """A function that a completion calls."""

    name: str
    arguments: Mapping[str, Any]


class _Split(NamedTuple):
    """How one call is written: literal texts around its name and the JSON of its arguments."""

    before: str
    between: str


class _Whole(NamedTuple):
    """How calls are written as objects of JSON: texts before the first and between two, and the keys of an object."""

    before: str
    between: str
    name: str
    arguments: str


class _Tagged(NamedTuple):
    """How one call is written with tags: literal texts around its name, and around the key and value of an argument."""

    before: str
    first: str  # between the name and the first key
    middle: str  # between a key and its value
    close: str  # behind a value
    following: str  # between that and the next key


class ToolFormat:
    """How a chat template writes calls of tools and their answers."""

    def __init__(self, render: Render, tools: Sequence[Mapping[str, Any]], end_texts: Sequence[str]) -> None:
        """Read the format off a template.

        Args:
            render: renders messages, and whether the prompt of generation follows.
            tools: descriptions of the functions, which the template writes.
            end_texts: of the tokens at which a turn of the assistant is over.

        Raises:
            ConfigError: the template does not write the tools, their calls or their answers.
        """
        self._render, self._end_texts = render, tuple(end_texts)
        self._names = {tool["function"]["name"] for tool in tools}
        self._texts = {
            (tool["function"]["name"], key)
            for tool in tools
            for key, each in tool["function"].get("parameters", {}).get("properties", {}).items()
            if each.get("type") == "string"
        }
        asked = self._rendered([_QUESTION], opens=True, what="takes no tools")
        if missing := sorted(each for each in self._names if each not in asked):
            raise ConfigError(f"{_FAILED}does not write the tools ({missing[0]} is missing in its prompt){_FIX}")
        self._calls = [
            {
                "type": "function",
                "id": f"callcall{number}",
                "function": {"name": name, "arguments": {_KEY: value}},
            }
            for number, (name, value) in enumerate(zip(_NAMES, _VALUES, strict=True))
        ]
        try:
            messages = [_QUESTION, {"role": ASSISTANT, "tool_calls": self._calls[:1]}]
            self._form = form_of(messages, lambda each: render(each, False))
        except BadRecordError as error:
            raise ConfigError(f"{_FAILED}takes no calls of functions: {error.problem}{_FIX}") from error
        self._format = self._read()

    def calls(self, text: str) -> list[ToolCall]:
        """Return the calls in a turn of the assistant, its special tokens included; [] if it is an answer.

        What does not have the format of a call is no call, and neither is what stands in thoughts. Whether there is
        such a function is not checked.
        """
        text = text.rpartition("</think>")[2]
        read = {_Whole: self._whole, _Split: self._split, _Tagged: self._tagged}
        return read[type(self._format)](text)

    def answer(self, calls: Sequence[ToolCall], answers: Sequence[str], end: str | None) -> str:
        """Return the text between a turn that calls tools and the next turn of the assistant.

        Args:
            calls: of the turn.
            answers: of the tools.
            end: text of the token that ended the turn; None: it ended without one, which the text then begins with.

        Raises:
            ConfigError: the template does not render it.
        """
        said = [
            {**self._calls[0], "id": f"callcall{number}", "function": {"name": each.name, "arguments": each.arguments}}
            for number, each in enumerate(calls)
        ]
        results = [
            {"role": "tool", "name": each.name, "tool_call_id": f"callcall{number}", "content": answer}
            for number, (each, answer) in enumerate(zip(calls, answers, strict=True))
        ]
        turn = [_QUESTION, *self._form.applied([{"role": ASSISTANT, "tool_calls": said}])]
        short = self._rendered(turn, opens=False, what="does not render a call")
        long = self._rendered([*turn, *results], opens=True, what="does not render the answer of a tool")
        begin = _shared(short, long)
        # The end of the turn: the last of its tokens in the text that both share, or the first behind it.
        ends = [match for each in self._end_texts for match in re.finditer(re.escape(each), long)]
        arguments = max((short.rfind(text) for text in _written(calls[-1])), default=0)
        after = sorted((match for match in ends if match.start() >= arguments), key=lambda match: match.start())
        if after:
            return long[after[0].end() :] if end is not None else long[after[0].start() :]
        return long[begin:]

    def _rendered(self, messages: Sequence[Message], *, opens: bool, what: str) -> str:
        try:
            return self._render(messages, opens)
        except BadRecordError as error:
            raise ConfigError(f"{_FAILED}{what}: {error.problem}{_FIX}") from error

    def _read(self) -> "_Whole | _Split | _Tagged":
        """Return how calls are written."""
        one, two = (self._turn(self._calls[:count]) for count in (1, 2))
        first = _object_around(one, one.find(_NAMES[0]))
        if first is not None and isinstance(first[2], dict) and _VALUES[0] in json.dumps(first[2]):
            begin, end, found = first
            keys = [next((key for key, value in found.items() if each(value)), None) for each in (_is_name, _is_given)]
            second = _object_around(two, two.find(_NAMES[1])) if two else None
            between = one[end:] + one[:begin] if second is None else two[end : second[0]]
            if all(keys):
                return _Whole(one[:begin], between, str(keys[0]), str(keys[1]))
        at = one.find(_NAMES[0])
        given = _object_around(one, one.find(_VALUES[0]))
        if at >= 0 and given is not None and given[2] == {_KEY: _VALUES[0]}:
            before = one[:at]
            return _Split(before, one[at + len(_NAMES[0]) : given[0]])
        tagged = self._read_tags()
        if tagged is None:
            raise ConfigError(f"{_FAILED}does not write the calls of functions as JSON or between tags{_FIX}")
        return tagged

    def _read_tags(self) -> _Tagged | None:
        """Return how a call with two arguments is written with tags; None: in another way."""
        arguments = dict(zip(_KEYS, _VALUES, strict=True))
        call = {**self._calls[0], "function": {"name": _NAMES[0], "arguments": arguments}}
        text, parts = self._turn([call]), []
        for mark in (_NAMES[0], _KEYS[0], _VALUES[0], _KEYS[1], _VALUES[1]):
            before, found, text = text.partition(mark)
            if not found:
                return None
            parts.append(before)
        before, first, middle, between, _ = parts
        shared = between[: _shared(between, text)]
        close = shared[: shared.rfind(">") + 1]
        if not (before.strip() and middle.strip() and close) or _NAMES[0] in first:
            return None
        return _Tagged(before, first, middle, close, between[len(close) :])

    def _turn(self, calls: Sequence[Message]) -> str:
        """Return what a turn says that calls functions: behind the prompt of generation, as far as they are equal."""
        turn = self._form.applied([{"role": ASSISTANT, "tool_calls": list(calls)}])
        try:
            text = self._render([_QUESTION, *turn], False)
        except BadRecordError:  # several calls in a turn are too many for some templates
            if len(calls) == 1:
                raise
            return ""
        prompt = self._render([_QUESTION], True)
        text = text[_shared(prompt, text) :]
        # An empty content leaves space, and an empty thought its tokens; a call begins behind them.
        return text.rpartition("</think>")[2].lstrip()

    def _whole(self, text: str) -> list[ToolCall]:
        form = self._format
        assert isinstance(form, _Whole)
        found: list[ToolCall] = []
        at = _after(text, form.before, 0, anywhere=bool(form.before.strip()))
        while at is not None:
            value, end = _json_at(text, at)
            call = _call_of(value, form)
            if call is None:
                break
            found.append(call)
            following = _after(text, form.between, end, anywhere=False)
            at = following if following is not None else _again(text, form.before, end)
        return found

    def _split(self, text: str) -> list[ToolCall]:
        form = self._format
        assert isinstance(form, _Split)
        found: list[ToolCall] = []
        pattern = re.compile(_loose(form.before) + r"([\w.-]{1,128})" + _loose(form.between))
        at = 0
        while (match := pattern.search(text, at)) is not None:
            value, at = _json_at(text, match.end())
            if not isinstance(value, dict):
                break
            found.append(ToolCall(match[1], value))
        return found

    def _tagged(self, text: str) -> list[ToolCall]:
        form = self._format
        assert isinstance(form, _Tagged)
        found: list[ToolCall] = []
        begins = re.compile(_loose(form.before) + r"([\w.-]{1,128})")
        one = re.compile(r"([^\s<>=]{1,128})" + _loose(form.middle) + "(.*?)" + _loose(form.close), re.DOTALL)
        at = 0
        while (match := begins.search(text, at)) is not None:
            name, at, arguments, key = match[1], match.end(), {}, form.first
            while (place := _after(text, key, at, anywhere=False)) is not None:
                argument = one.match(text, place)
                if argument is None:
                    break
                arguments[argument[1]] = self._value(name, argument[1], argument[2])
                at, key = argument.end(), form.following
            found.append(ToolCall(name, arguments))
        return found

    def _value(self, name: str, key: str, text: str) -> Any:
        """Return the value of an argument: texts are written as they are, other values as JSON."""
        if (name, key) in self._texts:
            return text
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text


def _is_name(value: Any) -> bool:
    return value == _NAMES[0]


def _is_given(value: Any) -> bool:
    return value in ({_KEY: _VALUES[0]}, json.dumps({_KEY: _VALUES[0]}))


def _call_of(value: Any, form: _Whole) -> ToolCall | None:
    if not isinstance(value, dict) or not isinstance(value.get(form.name), str):
        return None
    arguments = value.get(form.arguments, {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return None
    return ToolCall(value[form.name], arguments) if isinstance(arguments, dict) else None


def _written(call: ToolCall) -> list[str]:
    """Return texts that a rendered call ends with, of which one occurs in it."""
    return [call.name, *(json.dumps(call.arguments, ensure_ascii=each)[-40:] for each in (True, False))]


def _object_around(text: str, at: int) -> tuple[int, int, Any] | None:
    """Return begin, end and value of the smallest object of JSON around a place in a text."""
    begin = text.rfind("{", 0, at) if at >= 0 else -1
    while begin >= 0:
        value, end = _json_at(text, begin)
        if end > at:
            return begin, end, value
        begin = text.rfind("{", 0, begin)
    return None


def _json_at(text: str, at: int) -> tuple[Any, int]:
    """Return the value of JSON that begins at a place, and where it ends; None and the place if there is none."""
    begin = at + len(text[at:]) - len(text[at:].lstrip())
    try:
        return _DECODER.raw_decode(text, begin)
    except (ValueError, RecursionError):
        return None, at


def _after(text: str, literal: str, at: int, *, anywhere: bool) -> int | None:
    """Return where a literal ends that follows a place, or stands anywhere behind it; spaces may differ."""
    pattern = re.compile(_loose(literal))
    match = pattern.search(text, at) if anywhere else pattern.match(text, at)
    return match.end() if match is not None else None


def _again(text: str, literal: str, at: int) -> int | None:
    return _after(text, literal, at, anywhere=True) if literal.strip() else None


def _loose(literal: str) -> str:
    """Return a pattern of a literal with any space, or none, where it has some."""
    return r"\s*".join(["", *map(re.escape, literal.split()), ""])


def _shared(first: str, second: str) -> int:
    return next(
        (at for at, (one, other) in enumerate(zip(first, second, strict=False)) if one != other),
        min(len(first), len(second)),
    )
