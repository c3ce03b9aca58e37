"""Conversations as text and tokens, by the chat template of the tokenizer."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from torchyard_trainers.core.data.rows import BadRecordError
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.lm.chat.calls import form_of
from torchyard_trainers.lm.chat.endings import Ending, ending_of, opening_behind
from torchyard_trainers.lm.chat.messages import ASSISTANT, Message, is_silent
from torchyard_trainers.lm.chat.template_arguments import check_arguments
from torchyard_trainers.lm.chat.templates import Rendered, TemplateProcess
from torchyard_trainers.lm.chat.tool_calls import ToolFormat
from torchyard_trainers.lm.chat.turns import REASONING, Span, Turns, undivided_length
from torchyard_trainers.lm.tokens import CHAT_TEMPLATE, encoded

# A template with these marks says itself which tokens the model generates.
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


class Chat:
    """Renders conversations with one tokenizer."""

    def __init__(
        self, tokenizer: Any, process: TemplateProcess | None = None, *, arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Use a tokenizer of `transformers`.

        Args:
            tokenizer: with a chat template, if conversations are rendered.
            process: that renders; None: a new one.
            arguments: of the template, such as `enable_thinking`; see `check_arguments`.

        Raises:
            ConfigError: the template does not use an argument.
        """
        check_arguments(arguments or {}, tokenizer)
        self._tokenizer, self._arguments = tokenizer, dict(arguments or {})
        self._process = process or TemplateProcess()
        self._used = self._leaves_thoughts_out = False

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

    @property
    def notes(self) -> list[str]:
        """What a user should know of the conversations until here, as sentences."""
        notes = []
        if self._used and self._ending is not None and not self._ending.tokens:
            notes.append(
                f"the chat template ends turns with {self._ending.text.strip()[:40]!r}, which is no special token of "
                "the tokenizer: answers end there only if trainer.params.stop says so"
            )
        if self._leaves_thoughts_out:
            notes.append(
                "the chat template leaves out thoughts (<think>...</think>, reasoning_content) of the assistant's "
                "turns: they are not trained; write them in chat_template.jinja if they should be"
            )
        with suppress(BadRecordError):  # a template that does not render the shortest conversation
            if self._used and (opening := self._unused_opening):
                notes.append(
                    f"the chat template begins answers with {opening!r} when the model generates, but not the turns of "
                    "conversations: the model is not trained on answers that begin so"
                )
        return notes

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """The tokens at which a turn of the assistant is over; () if the template does not show them."""
        if self._ending is None:
            return ()
        return tuple(self._tokenizer.convert_tokens_to_ids(each) for each in self._ending.tokens)

    def prompt(self, messages: Sequence[Message], *, tools: Any = None) -> tuple[str, list[int]]:
        """Return the text and the tokens that the assistant's next turn follows."""
        text = self._rendered(self._suited(messages, tools), opens=True, tools=tools)
        return text, list(encoded(self._tokenizer, text, "messages")["input_ids"])

    def tool_format(self, tools: Sequence[Mapping[str, Any]]) -> ToolFormat:
        """Return how the template writes calls of tools and their answers.

        Raises:
            ConfigError: it does not.
        """
        ends = self._ending.tokens if self._ending is not None else ()
        return ToolFormat(lambda each, opens: self._rendered(each, opens=opens, tools=list(tools)), tools, ends)

    def turns(
        self,
        messages: Sequence[Message],
        *,
        first: int = 0,
        last_only: bool = False,
        everything: bool = False,
        tools: Any = None,
    ) -> tuple[list[int], list[bool]]:
        """Return the tokens of a conversation, and which of them the assistant says.

        Args:
            messages: with `role` and `content`.
            first: of the messages whose turns count; none of weight 0 does.
            last_only: only the last turn of the assistant counts.
            everything: all tokens count, also those of the user and of tools.
            tools: descriptions of functions, for the template.

        Raises:
            BadRecordError: the assistant says nothing in a turn, or the template mixes its turns with others.
            ConfigError: the template ends no turn.
        """
        chosen, self._used = _chosen(messages, first=first, last_only=last_only), True
        messages = self._suited(messages, tools)
        self._check_ending()
        if everything:
            text = self._rendered(messages, opens=False, tools=tools)
            text += self._lacking(messages, text, tools)
            spans = [Span(0, len(text))]
        elif _GENERATION.search(self._template(tools)):
            text, spans = self._marked(messages, chosen, tools)
        else:
            text, spans = self._compared(messages, chosen, tools)
        self._leaves_thoughts_out |= any(each not in text for number in chosen for each in _thoughts(messages[number]))
        tokens, said = self._encoded(text, spans)
        return tokens, [True] * len(tokens) if everything else said

    def _compared(self, messages: Sequence[Message], chosen: Sequence[int], tools: Any) -> tuple[str, list[Span]]:
        """Return a text and the spans in it of the chosen turns."""
        found = self._turns_of(messages, tools)
        try:
            turns = [found.span(number) for number in chosen]
        except BadRecordError:
            again = self._turns_of(messages, tools)
            if again.text == found.text:
                raise
            found = again  # some templates write the date, and it was midnight
            turns = [found.span(number) for number in chosen]
        text = found.text + self._lacking(messages, found.text, tools)
        spans = [self._ended(text, turn) for turn in turns]
        for number, (begin, end) in zip(chosen, spans, strict=True):
            if messages[number].get("tool_calls"):
                self._check_calls_end(number, text[begin:end])
        return text, spans

    def _turns_of(self, messages: Sequence[Message], tools: Any) -> Turns:
        return Turns(messages, lambda each, opens: self._rendered(each, opens=opens, tools=tools), self._special)

    def _encoded(self, text: str, spans: Iterable[Span]) -> tuple[list[int], list[bool]]:
        """Return the tokens of a text, and which of them are in spans of it."""
        found = encoded(self._tokenizer, text, "messages", return_offsets_mapping=True)
        tokens = list(found["input_ids"])
        said, places = [False] * len(tokens), [_core(text, *place) for place in found["offset_mapping"]]
        for begin, end in spans:
            for number, (at, stop) in enumerate(places):
                said[number] |= at < end and begin < stop
        return tokens, said

    def _marked(self, messages: Sequence[Message], chosen: Sequence[int], tools: Any) -> tuple[str, list[Span]]:
        """Return a text and the spans in it that the template marks, those of the chosen turns."""
        text, marks = self._render(messages, opens=False, tools=tools, marks=True)
        spans = [Span(begin, end) for begin, end in marks if begin < end]
        self._check_marks(text, spans)
        every = [number for number, each in enumerate(messages) if each["role"] == ASSISTANT]
        if list(chosen) == every:
            return text, spans
        if len(spans) == len(every):
            return text, [spans[every.index(number)] for number in chosen]
        found = self._turns_of(messages, tools)
        wanted = [found.span(number) for number in chosen]
        return text, [each for each in spans if any(each.begin < end and begin < each.end for begin, end in wanted)]

    def _check_marks(self, text: str, spans: Sequence[Span]) -> None:
        """Check that the marks of a template include what ends turns.

        Raises:
            ConfigError: they do not, and a model would never learn to stop.
        """
        ends = "|".join(map(re.escape, self._ending.tokens)) if self._ending is not None else ""
        for span in spans:
            follows = re.compile(rf"\s*({ends})").match(text, span.end) if ends else None
            if follows is not None and not any(begin <= follows.start(1) < end for begin, end in spans):
                name = self._tokenizer.name_or_path or "the model"
                raise ConfigError(
                    f"trainer.params.pretrained: the chat template of {name} marks turns without {follows[1]}, which "
                    "ends them, so the model would never learn to stop; move {% endgeneration %} behind it in "
                    "chat_template.jinja"
                )

    def _ended(self, text: str, turn: Span) -> Span:
        """Return a turn with the token that ends it: of some templates, the first one of the next turn."""
        if self._ending is None or self._ending.text:
            return turn
        follows = re.compile(rf"\s*(?:{self._special_pattern.pattern})").match(text, turn.end)
        if follows is None:
            raise BadRecordError("messages", "has a turn that the chat template ends with no special token")
        return Span(turn.begin, follows.end())

    def _check_calls_end(self, number: int, turn: str) -> None:
        """Check that a turn that calls functions ends as others do; some templates end only some of them."""
        special = [each.group() for each in self._special_pattern.finditer(turn)]
        if self._ending is not None and self._ending.tokens and special[-1:] and special[-1] not in self._ending.tokens:
            raise BadRecordError(
                "messages",
                f"has a turn {number + 1} that calls functions and that the chat template does not end (its last token "
                f"is {special[-1]}); correct chat_template.jinja, or leave out such records",
            )

    def _lacking(self, messages: Sequence[Message], text: str, tools: Any) -> str:
        """Return what must be added to a text for its last turn to have an end."""
        if self._ending is None or self._ending.text or messages[-1]["role"] != ASSISTANT:
            return ""
        if not messages[-1].get("tool_calls"):
            return self._ending.next_text or ""
        calls = messages[-1]["tool_calls"]
        result = {"role": "tool", "content": "1", "name": "f", "tool_call_id": calls[0].get("id") or "callcall0"}
        longer = self._rendered([*messages, result], opens=False, tools=tools)
        follows = re.compile(rf"\s*(?:{self._special_pattern.pattern})").match(longer, len(text))
        if not longer.startswith(text) or follows is None:
            raise BadRecordError("messages", "ends with calls of functions that the chat template ends with no token")
        return follows.group()

    @cached_property
    def _special(self) -> list[str]:
        """The texts of the tokens that the tokenizer never divides."""
        return [str(each) for each in self._tokenizer.added_tokens_decoder.values()]

    @cached_property
    def _special_pattern(self) -> "re.Pattern[str]":
        longest_first = sorted(filter(None, self._special), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    @cached_property
    def _unused_opening(self) -> str:
        """The end of the prompt of generation that turns in conversations are without, such as `<think>`."""
        asked: list[Message] = [{"role": "user", "content": "?"}]
        prompt = self._rendered(asked, opens=True, tools=None)
        whole = self._rendered([*asked, {"role": ASSISTANT, "content": "!"}], opens=False, tools=None)
        return prompt[undivided_length(prompt, whole, self._special_pattern) :]

    @cached_property
    def _always_opens(self) -> str:
        """What the template writes behind every conversation as if an answer followed: no part of it."""
        return opening_behind(lambda each, opens: self._raw(each, opens=opens).text, self._special_pattern)

    @cached_property
    def _ending(self) -> Ending | None:
        return ending_of(lambda each, opens: self._rendered(each, opens=opens, tools=None), self._special_pattern)

    def _check_ending(self) -> None:
        """Check that the template writes what messages say, and something by which a model learns where a turn ends.

        Raises:
            ConfigError: it does not.
        """
        ending, name = self._ending, self._tokenizer.name_or_path or "the model"
        if ending is not None and ending.leaves_out:
            raise ConfigError(
                f"trainer.params.pretrained: the chat template of {name} leaves out the content of messages that is "
                "text, as templates of models with images do; write message.content in chat_template.jinja"
            )
        if ending is not None and not ending.text and ending.next_text is None:
            raise ConfigError(
                f"trainer.params.pretrained: the chat template of {name} writes nothing behind a turn of the "
                "assistant, so the model would never learn to stop; add {{ eos_token }} behind its content in "
                "chat_template.jinja"
            )

    def _suited(self, messages: Sequence[Message], tools: Any) -> Sequence[Message]:
        """Return messages with calls of functions as the template takes them."""
        if not any(each.get("tool_calls") for each in messages):
            return messages
        return form_of(messages, lambda each: self._rendered(each, opens=False, tools=tools)).applied(messages)

    def _template(self, tools: Any) -> str:
        template: str = self._tokenizer.get_chat_template(tools=tools)
        return template

    def _rendered(self, messages: Sequence[Message], *, opens: bool, tools: Any) -> str:
        return self._render(messages, opens=opens, tools=tools).text

    def _render(self, messages: Sequence[Message], *, opens: bool, tools: Any, marks: bool = False) -> Rendered:
        found = self._raw(messages, opens=opens, tools=tools, marks=marks)
        return found if opens else found._replace(text=found.text.removesuffix(self._always_opens))

    def _raw(self, messages: Sequence[Message], *, opens: bool, tools: Any = None, marks: bool = False) -> Rendered:
        try:
            if self._tokenizer.chat_template == CHAT_TEMPLATE:
                words = {"tokenize": False, "add_generation_prompt": opens, "tools": tools, **self._arguments}
                return Rendered(self._tokenizer.apply_chat_template(list(messages), **words), [])
            special = {name: str(each) for name, each in self._tokenizer.special_tokens_map.items()}
            return self._process.render(
                {
                    **special,
                    **self._arguments,
                    "conversations": [list(messages)],
                    "tools": tools,
                    "chat_template": self._template(tools),
                    "return_assistant_tokens_mask": marks,
                    "add_generation_prompt": opens,
                }
            )
        except ConfigError:
            raise
        except Exception as error:  # a template raises anything
            raise BadRecordError("messages", f"cannot be rendered by the chat template: {error}") from error


def _chosen(messages: Sequence[Message], *, first: int, last_only: bool) -> list[int]:
    """Return the numbers of the turns that count.

    Raises:
        BadRecordError: there are none, or one of them says nothing.
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
    if silent := [number for number in chosen if is_silent(messages[number])]:
        raise BadRecordError("messages", f"has a turn {silent[0] + 1} of the assistant that is empty")
    return chosen


def _thoughts(message: Message) -> list[str]:
    """Return what a turn thinks before it answers, in its content as models write it, or beside it."""
    before, _, answer = str(message.get("content") or "").rpartition("</think>")
    inside = before.rpartition("<think>")[2] if answer.strip() else ""
    # Some records have the same thoughts by several names, of which a template writes one.
    return [inside.strip(), next((message[name].strip() for name in REASONING if message.get(name)), "")]


def _core(text: str, begin: int, end: int) -> tuple[int, int]:
    """Return the place of a token without the space around it, which belongs to any side; of space alone, all of it.

    The first token of a turn may begin with a space that stands before the turn, and a special token may include what
    follows it.
    """
    part = text[begin:end]
    if not part.strip():
        return begin, end
    return begin + len(part) - len(part.lstrip()), begin + len(part.rstrip())
