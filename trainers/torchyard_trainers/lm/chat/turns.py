"""Where in a rendered conversation the assistant speaks, found by comparing renderings; no tokenizer, no template.

A turn is what follows the prompt of generation. Where that prompt begins the whole text, and the conversation up to the
turn does, too, the turn lies between them. Many templates write the past in another way than the present: without
thoughts, with another token at the end, in another order. There, the content of one message at a time is exchanged for
a mark: what changes is the content, and what surrounds it is compared with the prompt of generation before it, and with
the conversation that ends with the turn.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torchyard_trainers.core.data.rows import BadRecordError

Message = Mapping[str, Any]
# Renders messages, with the prompt of generation behind them or without.
Render = Callable[[Sequence[Message], bool], str]
REASONING = ("reasoning_content", "thinking", "reasoning")
_WAY_OUT = "mark the turns in chat_template.jinja with {% generation %}, or set trainOn: all"


class Span(NamedTuple):
    """Characters of a text, from `begin` up to `end`."""

    begin: int
    end: int


class Rendering(NamedTuple):
    """A conversation as text."""

    messages: Sequence[Message]
    opens: bool  # the prompt of generation follows
    text: str


class Turns:
    """Finds turns in one conversation."""

    def __init__(self, messages: Sequence[Message], render: Render, special: Sequence[str]) -> None:
        """Render a conversation.

        Args:
            messages: of the conversation.
            render: by the chat template.
            special: texts of the tokens that the tokenizer never divides.
        """
        self._messages, self._render = messages, render
        longest_first = sorted(filter(None, special), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._whole = self._rendered(len(messages), opens=False)
        self.text = self._whole.text

    def span(self, number: int) -> Span:
        """Return where a turn of the assistant is in `text`, with what ends it.

        Raises:
            BadRecordError: the text does not show it.
        """
        until = self._rendered(number + 1, opens=False)
        before = self._prompt(number)
        if before is not None and self.text.startswith(before.text) and self.text.startswith(until.text):
            span = Span(len(before.text), len(until.text))
            if self._says(span, number) or self._content(self._whole, number) is not None:
                return span
        content = self._content(self._whole, number)
        if content is None:
            raise _hidden(number, "leaves its content out")
        begin = self._begin(number, before, content)
        return Span(begin, self._end(number, before, until, content))

    def _says(self, span: Span, number: int) -> bool:
        """Return whether a turn is written as it is; thoughts before the answer may be left out."""
        message = self._messages[number]
        said = str(message.get("content") or next((message[name] for name in REASONING if message.get(name)), ""))
        return bool(message.get("tool_calls")) or said.rpartition("</think>")[2].strip() in self.text[slice(*span)]

    def _prompt(self, number: int) -> Rendering | None:
        """Return what is rendered before a turn; None: the template renders nothing without messages."""
        try:
            return self._rendered(number, opens=True)
        except BadRecordError:
            if number:
                raise
            return None

    def _begin(self, number: int, before: Rendering | None, content: Span) -> int:
        """Return where what the model says begins: behind the part of the prompt of generation that the text has."""
        if before is None:
            opening = self._opening_of_first()
            at = self.text.rfind(opening, 0, content.begin)
            if not opening or at < 0:
                raise _hidden(number, "does not begin as the prompt of generation says")
            return at + len(opening)
        here, there = next(self._anchors(number, before, content), (0, 0))
        between = self.text[here : content.begin]
        shared = self._common(between, before.text[there:])
        opening_at = self._opening_at(number, before)
        if there + shared == len(before.text) or there + shared > opening_at:
            return here + shared
        opening = before.text[opening_at:]  # behind a question that is written in another way when it is the last
        if opening.strip() and between.count(opening) == 1:
            return here + between.index(opening) + len(opening)
        raise _hidden(number, f"begins it otherwise than {opening[:40]!r}, as answers begin")

    def _end(self, number: int, before: Rendering | None, until: Rendering, content: Span) -> int:
        """Return where a turn ends: what follows its content is equal whatever comes next."""
        if number == len(self._messages) - 1:
            return len(self.text)
        behind = self.text[content.end :]
        here = self._content(until, number)
        if here is None:
            raise _hidden(number, "leaves its content out")
        ending = until.text[here.end :]
        if behind.startswith(ending):
            return content.end + len(ending)
        asked = self._rendered(number + 1, opens=True)
        there = self._content(asked, number)
        opening = before.text[self._opening_at(number, before) :] if before is not None else self._opening_of_first()
        if there is not None and opening and asked.text.endswith(opening):
            middle = asked.text[there.end : len(asked.text) - len(opening)]
            if middle.strip() and behind.startswith(middle):
                return content.end + len(middle)
        shared = self._common(behind, ending)
        if not self._special.search(behind[:shared]):
            raise _hidden(number, "ends it in another way when others follow")
        return content.end + shared

    def _opening_at(self, number: int, before: Rendering) -> int:
        """Return where the prompt of generation itself begins, behind the messages."""
        try:
            plain = self._rendered(number, opens=False).text
        except BadRecordError:  # some templates take no conversation without an answer
            return 0
        return self._common(before.text, plain)

    def _opening_of_first(self) -> str:
        asked, plain = (self._rendered(1, opens=opens).text for opens in (True, False))
        return asked[len(plain) :] if asked.startswith(plain) else ""

    def _anchors(self, number: int, before: Rendering, content: Span) -> Iterator[tuple[int, int]]:
        """Yield where earlier messages end, in the whole text and in the prompt of a turn; the nearest first."""
        for other in range(number - 1, -1, -1):
            here, there = self._content(self._whole, other), self._content(before, other)
            if here is not None and there is not None and here.end <= content.begin:
                yield here.end, there.end

    def _content(self, rendering: Rendering, number: int) -> Span | None:
        """Return where the content of a message is; None: nowhere, or its change changes the text elsewhere.

        Raises:
            BadRecordError: the content of a turn is there more than once.
        """
        mark = _mark(rendering.text)
        exchanged, count = _exchanged(rendering.messages[number], mark)
        messages = [*rendering.messages[:number], exchanged, *rendering.messages[number + 1 :]]
        try:
            marked = self._render(messages, rendering.opens)
        except BadRecordError:  # whatever this message says, the template needs it
            return None
        if marked.count(mark) > count:
            raise _hidden(number, "writes its content more than once")
        if not count or marked.count(mark) < count:
            return None
        begin = shared_length(rendering.text, marked)
        most = min(len(rendering.text), len(marked)) - begin
        behind = min(shared_length(rendering.text[::-1], marked[::-1]), most)
        return Span(begin, len(rendering.text) - behind)

    def _rendered(self, count: int, *, opens: bool) -> Rendering:
        messages = self._messages[:count]
        return Rendering(messages, opens, self._render(messages, opens))

    def _common(self, first: str, second: str) -> int:
        """Return how much two texts begin with in common; no special token is divided."""
        return undivided_length(first, second, self._special)


def _hidden(number: int, does: str) -> BadRecordError:
    return BadRecordError(
        "messages", f"has a turn {number + 1} whose place is not certain: the chat template {does}; {_WAY_OUT}"
    )


def _mark(text: str) -> str:
    """Return a text that is not in another one; letters and digits pass all filters of templates."""
    return next(mark for mark in (f"Zq{number}Jx" for number in range(len(text) + 1)) if mark not in text)


def _exchanged(message: Message, mark: str) -> tuple[Message, int]:
    """Return a message that says a mark in place of its content, and the number of marks."""
    if isinstance(message.get("content"), str) and message["content"].strip():
        return {**message, "content": mark}, 1
    if calls := message.get("tool_calls"):
        return {**message, "tool_calls": [_answering(call, mark) for call in calls]}, len(calls)
    if name := next((name for name in REASONING if message.get(name)), None):
        return {**message, name: mark}, 1
    return message, 0


def _answering(call: Message, mark: str) -> Message:
    """Return a call of the same function with another argument."""
    function = call["function"] if isinstance(call.get("function"), Mapping) else call
    arguments = {"value": mark}
    is_text = isinstance(function.get("arguments"), str)
    function = {**function, "arguments": json.dumps(arguments) if is_text else arguments}
    return {**call, "function": function} if "function" in call else function


def shared_length(first: str, second: str) -> int:
    """Return how many characters two texts begin with in common."""
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if first[low:middle] == second[low:middle] else (low, middle)
    return low


def undivided_length(first: str, second: str, special: "re.Pattern[str]") -> int:
    """Return how many characters two texts begin with in common, without a part of a special token."""
    length = shared_length(first, second)
    while True:
        inside = [
            each.start()
            for text in (first, second)
            for each in special.finditer(text)
            if each.start() < length < each.end()
        ]
        if not inside:
            return length
        length = min(inside)
