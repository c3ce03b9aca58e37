"""What ends a turn of the assistant, by a chat template."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from torchyard_trainers.core.data.rows import BadRecordError
from torchyard_trainers.lm.chat.calls import FORMS, form_of
from torchyard_trainers.lm.chat.messages import ASSISTANT, Message
from torchyard_trainers.lm.chat.turns import Render

_QUESTION, _SAID = "Zq1Jx", "Zq0Jx"
_ASKED: Message = {"role": "user", "content": _QUESTION}
_ANSWER: Message = {"role": ASSISTANT, "content": _SAID}
# Some templates want the numbers of calls, and of nine characters.
_CALL: Message = {"type": "function", "function": {"name": "f", "arguments": {"x": _SAID}}}
_CALLS: Sequence[Message] = [{**_CALL, "id": f"callcall{number}"} for number in range(2)]
_RETURNED: Message = {"role": "tool", "name": "f", "tool_call_id": "callcall0", "content": "1"}


class Ending(NamedTuple):
    """What follows what the assistant says.

    Attributes:
        text: that ends a turn; empty if only the beginning of the next one does.
        next_text: with which the next turn begins, where nothing else ends one; None: with no special token.
        tokens: texts of the special tokens at which an answer, and one that calls a function, is over.
        leaves_out: the text does not have the content of messages: the template expects parts, such as images.
    """

    text: str
    next_text: str | None
    tokens: tuple[str, ...]
    leaves_out: bool = False


def ending_of(render: Render, special: "re.Pattern[str]") -> Ending | None:
    """Return the ending of a template; None if it does not render the shortest conversation.

    Args:
        render: by the template.
        special: matches the tokens that the tokenizer never divides.
    """
    try:
        whole = render([_ASKED, _ANSWER], False)
    except BadRecordError:
        return None
    if _SAID not in whole or _QUESTION not in whole:
        return Ending("", None, (), leaves_out=True)
    text = _behind(whole)
    if text.strip():
        first = [each.group() for each in special.finditer(text)][:1]
        return Ending(text, None, tuple(dict.fromkeys([*first, *_of_calls(render, special)])))
    called = ([_ASKED, {"role": ASSISTANT, "tool_calls": calls}] for calls in (_CALLS, _CALLS[:1]))
    follows = [_next(render, special, [_ASKED, _ANSWER], _ASKED)]
    follows += [_next(render, special, each, _RETURNED) for each in called]
    return Ending("", follows[0], tuple(dict.fromkeys(each.strip() for each in follows if each is not None)))


def _of_calls(render: Render, special: "re.Pattern[str]") -> list[str]:
    """Return the token at which a turn that calls functions is over, if the template shows it."""
    for calls in (_CALLS, _CALLS[:1]):
        rendered = _rendered(render, [_ASKED, {"role": ASSISTANT, "tool_calls": calls}])
        if rendered is not None:
            return [each.group() for each in special.finditer(_behind(rendered))][-1:]
    return []


def _next(render: Render, special: "re.Pattern[str]", messages: Sequence[Message], following: Message) -> str | None:
    """Return the special token that follows a conversation if another message does, with the space before it."""
    short, long = (_rendered(render, each) for each in (messages, [*messages, following]))
    if short is None or long is None or not _behind(long).startswith(_behind(short)):
        return None
    match = re.match(rf"\s*(?:{special.pattern})", _behind(long)[len(_behind(short)) :])
    return match.group() if match is not None else None


def _rendered(render: Render, messages: Sequence[Message]) -> str | None:
    try:
        form = form_of(messages, lambda each: render(each, False)) if messages[1].get("tool_calls") else FORMS[0]
        return render(form.applied(messages), False)
    except BadRecordError:
        return None


def _behind(text: str) -> str:
    return text.rpartition(_SAID)[2]
