"""Calls of functions in the form that a chat template takes.

Most templates write the arguments of a call as JSON, so they take an object; a few write them as they are, so they take
JSON as text. A turn that only calls has no content, which some templates want missing, some empty and some null. The
wrong form is often no error: arguments are encoded twice, written as Python, or left out with their call.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torchyard_trainers.core.data.rows import BadRecordError
from torchyard_trainers.lm.chat.messages import Message, arguments_of, parsed_arguments, with_arguments

_MISSING = object()


class Form(NamedTuple):
    """How messages with calls are given to a template."""

    as_text: bool  # arguments as JSON text
    content: Any  # of a turn that only calls

    def applied(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages in this form."""
        return [self._message(each) if each.get("tool_calls") else each for each in messages]

    def _message(self, message: Message) -> Message:
        calls = [with_arguments(call, self._arguments(arguments_of(call))) for call in message["tool_calls"]]
        content = {} if "content" in message or self.content is _MISSING else {"content": self.content}
        return {**message, **content, "tool_calls": calls}

    def _arguments(self, arguments: Any) -> Any:
        if not self.as_text:
            return parsed_arguments(arguments)
        return arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)


# A form that a template takes without a mistake is used; the usual ones come first.
FORMS = [Form(as_text, content) for as_text in (False, True) for content in (_MISSING, "", None)]


def form_of(messages: Sequence[Message], render: Callable[[Sequence[Message]], str]) -> Form:
    """Return the form of calls that a template writes all of.

    Args:
        messages: with calls.
        render: renders messages.

    Raises:
        BadRecordError: the template takes none.
    """
    errors: list[BadRecordError] = []
    leaves_out = False
    for form in FORMS:  # always in this order: a record is encoded alike whatever was encoded before
        marked, marks = _marked(form.applied(messages))
        try:
            text = render(marked)
        except BadRecordError as error:
            errors.append(error)
            continue
        contents = "\0".join(str(each.get("content")) for each in messages)
        wrong = any(text.count(each) > contents.count(each) for each in _miswritten(messages))
        if all(mark in text for mark in marks) and not wrong:
            return form
        leaves_out = True
    if errors and not leaves_out:
        raise errors[0]
    raise BadRecordError(
        "messages",
        "has calls of functions that the chat template leaves out, or does not write as JSON; correct "
        "chat_template.jinja, or leave out records with tool_calls",
    )


def _marked(messages: Sequence[Message]) -> tuple[list[Message], list[str]]:
    """Return messages whose calls have functions of unique names, and the names."""
    marks: list[str] = []

    def renamed(call: Message) -> Message:
        marks.append(f"Zq{len(marks)}Jx")
        function = call.get("function")
        return {**call, "function": {**function, "name": marks[-1]}} if function else {**call, "name": marks[-1]}

    marked = [
        {**each, "tool_calls": [renamed(call) for call in each["tool_calls"]]} if each.get("tool_calls") else each
        for each in messages
    ]
    return marked, marks


def _miswritten(messages: Sequence[Message]) -> list[str]:
    """Return what a text has if arguments are written as Python, or encoded twice."""
    every = [arguments_of(call) for each in messages for call in each.get("tool_calls") or ()]
    objects = [each for each in map(parsed_arguments, every) if each]
    texts = [each for each in every if isinstance(each, str)] + [
        json.dumps(each, ensure_ascii=False) for each in objects
    ]
    twice = [json.dumps(each, ensure_ascii=ascii_only) for each in texts for ascii_only in (False, True)]
    return [*map(repr, objects), *(each for each in twice if '\\"' in each)]
