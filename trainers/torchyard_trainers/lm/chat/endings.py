"""What ends a turn of the assistant, by a chat template."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from torchyard_trainers.core.data.rows import BadRecordError
from torchyard_trainers.lm.chat.calls import FORMS, form_of
from torchyard_trainers.lm.chat.messages import ASSISTANT, Message
from torchyard_trainers.lm.chat.turns import Render, undivided_length

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
        first = _first_only(special, text, whole, _rendered(render, [_ASKED], opens=True))
        return Ending(text, None, tuple(dict.fromkeys([*first, *_of_calls(render, special)])))
    called = ([_ASKED, {"role": ASSISTANT, "tool_calls": calls}] for calls in (_CALLS, _CALLS[:1]))
    follows = [_next(render, special, [_ASKED, _ANSWER], _ASKED)]
    follows += [_next(render, special, each, _RETURNED) for each in called]
    return Ending("", follows[0], tuple(dict.fromkeys(each.strip() for each in follows if each is not None)))


def opening_behind(render: Render, special: "re.Pattern[str]") -> str:
    """Return the beginning of an answer that a template writes behind every conversation, asked for or not; "": none.

    Args:
        render: by the template.
        special: matches the tokens that the tokenizer never divides.
    """
    asked, short = _rendered(render, [_ASKED]), _rendered(render, [_ASKED, _ANSWER])
    long = _rendered(render, [_ASKED, _ANSWER, _ASKED])
    if asked is None or short is None or long is None or _QUESTION not in short or long.startswith(short):
        return ""
    shared = short[: undivided_length(short, long, special)].removesuffix(_first_token(special, long))
    opening, answered = short[len(shared) :], short.partition(_QUESTION)[2].partition(_SAID)[0]
    token = special.match(opening)
    return opening if token is not None and token.group() in answered and asked.endswith(opening) else ""


def _first_token(special: "re.Pattern[str]", text: str) -> str:
    """Return the token with which every message begins, if there is one: the first that occurs more than once."""
    return next((each.group() for each in special.finditer(text) if text.count(each.group()) > 1), "")


def _first_only(special: "re.Pattern[str]", behind: str, whole: str, prompt: str | None) -> list[str]:
    """Return the first token behind what is said that is nowhere else in the turn, if there is one.

    Templates that divide an answer into parts, such as thoughts and a reply, write the token that ends a part before.
    """
    turn = whole[undivided_length(prompt, whole, special) :] if prompt is not None else behind
    tokens = [each.group() for each in special.finditer(behind)]
    return ([each for each in tokens if turn.count(each) == 1] or tokens)[:1]


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


def _rendered(render: Render, messages: Sequence[Message], *, opens: bool = False) -> str | None:
    calls = any(each.get("tool_calls") for each in messages)
    try:
        form = form_of(messages, lambda each: render(each, False)) if calls else FORMS[0]
        return render(form.applied(messages), opens)
    except BadRecordError:
        return None


def _behind(text: str) -> str:
    return text.rpartition(_SAID)[2]
