"""Conversations as text and tokens, by the chat template of the tokenizer."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from torchyard_trainers.core.data.rows import BadRecordError, kind_of
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.lm.templates import SECONDS, Rendered, TemplateProcess
from torchyard_trainers.lm.tokens import CHAT_TEMPLATE, encoded

Message = Mapping[str, Any]
ASSISTANT = "assistant"
# Messages of ShareGPT say `from` and `value` in place of `role` and `content`.
SPEAKERS = {"human": "user", **dict.fromkeys(("gpt", "model", "chatgpt"), ASSISTANT)}
SPEAKERS |= {role: role for role in ("user", ASSISTANT, "system", "tool")}
# A template with these marks says itself which tokens the model generates.
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


class Chat:
    """Renders conversations with one tokenizer."""

    def __init__(self, tokenizer: Any, *, seconds: float = SECONDS) -> None:
        """Use a tokenizer of `transformers`, and limit the time that its template takes for a conversation."""
        self._tokenizer = tokenizer
        self._process = TemplateProcess(seconds)
        template = tokenizer.chat_template
        self._marks_turns = isinstance(template, str) and bool(_GENERATION.search(template))

    def check(self) -> None:
        """Check that conversations can be rendered, with the place of every token.

        Raises:
            ConfigError: the tokenizer cannot.
        """
        name = self._tokenizer.name_or_path or "the model"
        if not self._tokenizer.chat_template:
            raise ConfigError(
                f"trainer.params.pretrained: the tokenizer of {name} has no chat template, which conversations need; "
                "add chat_template.jinja to its folder, or use records with prompt and completion"
            )
        if not self._tokenizer.is_fast:
            raise ConfigError(
                f"trainer.params.pretrained: the tokenizer of {name} does not know the places of its tokens, which "
                "conversations need; save it with a tokenizer.json"
            )

    def prompt(self, messages: Sequence[Message], *, tools: Any = None) -> tuple[str, list[int]]:
        """Return the text and the tokens that the assistant's next turn follows."""
        text = self._rendered(messages, opens=True, tools=tools)
        return text, list(encoded(self._tokenizer, text, "messages")["input_ids"])

    def turns(
        self, messages: Sequence[Message], *, first: int = 0, last_only: bool = False, tools: Any = None
    ) -> tuple[list[int], list[bool]]:
        """Return the tokens of a conversation, and which of them the assistant says.

        Args:
            messages: with `role` and `content`.
            first: of the messages whose turns count; none of weight 0 does.
            last_only: only the last turn of the assistant counts.
            tools: descriptions of functions, for the template.

        Raises:
            BadRecordError: the assistant says nothing in a turn, or the template mixes its turns with others.
        """
        theirs = [number for number, each in enumerate(messages) if each["role"] == ASSISTANT and number >= first]
        if not theirs:
            roles = ", ".join(repr(each) for each in sorted({str(each["role"]) for each in messages[first:]})[:8])
            raise BadRecordError(
                "messages", f"has no turn of the assistant; its roles are {roles}: name them user and assistant"
            )
        numbers = [number for number in theirs if messages[number].get("weight") != 0]
        if not numbers:
            raise BadRecordError("messages", "has no turn of the assistant whose weight is not 0")
        chosen = numbers[-1:] if last_only else numbers
        if silent := [number for number in chosen if _is_silent(messages[number])]:
            raise BadRecordError("messages", f"has a turn {silent[0] + 1} of the assistant that is empty")
        if self._marks_turns and len(chosen) == sum(each["role"] == ASSISTANT for each in messages):
            return self._marked(messages, tools)
        whole = self._rendered(messages, opens=False, tools=tools)
        spans = [self._span(whole, messages, number, tools) for number in chosen]
        found = encoded(self._tokenizer, whole, "messages", return_offsets_mapping=True)
        # The first token of a turn may begin with a space that stands before it.
        said = [any(at < end and begin < stop for begin, end in spans) for at, stop in found["offset_mapping"]]
        return list(found["input_ids"]), said

    def _marked(self, messages: Sequence[Message], tools: Any) -> tuple[list[int], list[bool]]:
        text, spans = self._render(messages, opens=False, tools=tools, marks=True)
        found = encoded(self._tokenizer, text, "messages")
        said = [False] * len(found["input_ids"])
        for begin, end in spans:
            first, last = found.char_to_token(begin), found.char_to_token(end - 1)
            if first is not None:  # the template may mark nothing
                stop = len(said) if last is None else last + 1
                said[first:stop] = [True] * (stop - first)
        return list(found["input_ids"]), said

    def _span(self, whole: str, messages: Sequence[Message], number: int, tools: Any) -> tuple[int, int]:
        """Return where a turn begins and ends in the whole text, the mark of its end included."""
        before = self._rendered(messages[:number], opens=True, tools=tools)
        if not whole.startswith(before):
            raise BadRecordError("messages", f"has a turn {number + 1} that the chat template does not begin as asked")
        until = self._rendered(messages[: number + 1], opens=False, tools=tools)
        if whole.startswith(until):
            return len(before), len(until)
        # Some templates write the last turn in another way, for example with an empty block of thoughts.
        content = str(messages[number].get("content") or "").strip()
        at = whole.find(content, len(before))
        ending = until[until.rfind(content) + len(content) :]
        if content and not whole[len(before) : at].strip() and whole.startswith(ending, at + len(content)):
            return len(before), at + len(content) + len(ending)
        raise BadRecordError(
            "messages",
            f"has a turn {number + 1} that the chat template changes when others follow; set trainOn: last, or mark "
            "the turns in the template with {% generation %}",
        )

    def _rendered(self, messages: Sequence[Message], *, opens: bool, tools: Any) -> str:
        return self._render(messages, opens=opens, tools=tools).text if messages else ""

    def _render(self, messages: Sequence[Message], *, opens: bool, tools: Any, marks: bool = False) -> Rendered:
        try:
            if self._tokenizer.chat_template == CHAT_TEMPLATE:
                words = {"tokenize": False, "add_generation_prompt": opens, "tools": tools}
                return Rendered(self._tokenizer.apply_chat_template(list(messages), **words), [])
            special = {name: str(each) for name, each in self._tokenizer.special_tokens_map.items()}
            return self._process.render(
                {
                    **special,
                    "conversations": [list(messages)],
                    "tools": tools,
                    "chat_template": self._tokenizer.get_chat_template(tools=tools),
                    "return_assistant_tokens_mask": marks,
                    "add_generation_prompt": opens,
                }
            )
        except ConfigError:
            raise
        except Exception as error:  # a template raises anything
            raise BadRecordError("messages", f"cannot be rendered by the chat template: {error}") from error


def conversation(value: Any, name: str) -> list[Message]:
    """Return the messages in a field of a record.

    Raises:
        BadRecordError: it is not a list of messages with `role` and `content`, or with `from` and `value`.
    """
    if isinstance(value, str) and value.lstrip().startswith("["):
        raise BadRecordError(name, "is text, expected a list of messages; write the list itself, not its JSON as text")
    if not isinstance(value, list) or not value:
        raise BadRecordError(name, f"is {kind_of(value) if value != [] else 'empty'}, expected a list of messages")
    for number, each in enumerate(value, 1):
        where = f"has a message {number} "
        if not isinstance(each, Mapping):
            raise BadRecordError(name, f"{where}that is {type(each).__name__}, expected role and content")
        if "role" not in each and isinstance(each.get("from"), str) and each["from"] not in SPEAKERS:
            raise BadRecordError(name, f"{where}from {each['from'][:40]!r}, expected {', '.join(SPEAKERS)}")
        if not isinstance(_spoken(each).get("role"), str):
            raise BadRecordError(name, f"{where}without a role; it has {', '.join(map(repr, sorted(each)[:8]))}")
        if _spoken(each).get("content") is None and not each.get("tool_calls"):
            raise BadRecordError(name, f"{where}without content; it has {', '.join(map(repr, sorted(each)[:8]))}")
    # Parquet fills fields that other messages have with null.
    kept = [{key: part for key, part in _spoken(each).items() if part is not None} for each in value]
    return [
        each | {"content": _text(each["content"], name, number)} if "content" in each else each
        for number, each in enumerate(kept, 1)
    ]


def _is_silent(message: Message) -> bool:
    """Return whether a turn says nothing: the model would learn to end its answer at once."""
    parts = {name: each for name, each in message.items() if name not in ("role", "weight")}
    return not any(each.strip() if isinstance(each, str) else each for each in parts.values())


def _spoken(message: Message) -> Message:
    """Return a message with `role` and `content`, also one of ShareGPT."""
    if "role" in message or "from" not in message:
        return message
    rest = {key: each for key, each in message.items() if key not in ("from", "value")}
    return {"role": SPEAKERS.get(str(message["from"])), "content": message.get("value"), **rest}


def _text(content: Any, name: str, number: int) -> str:
    """Return the content of a message, whose parts may be listed one by one: templates of text write them as they are.

    Raises:
        BadRecordError: it is not text.
    """
    if isinstance(content, str):
        return content
    where = f"has a message {number} whose content "
    if not isinstance(content, list):
        raise BadRecordError(name, f"{where}is {kind_of(content)}, expected text")
    for part in content:
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            what = repr(part.get("type")) if isinstance(part, Mapping) else kind_of(part)
            raise BadRecordError(name, f"{where}has a part that is {what}, expected text")
    return "".join(part["text"] for part in content)
