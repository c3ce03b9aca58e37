"""Records of files as samples: text, prompt and completion, conversations, pairs of answers, tokens."""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from torchyard_trainers.core.data.rows import BadRecordError, Row, TooLongError, field_of, kind_of
from torchyard_trainers.lm.chat.chat import Chat
from torchyard_trainers.lm.chat.messages import ASSISTANT, Message, conversation, tools_of
from torchyard_trainers.lm.data.columns import JOIN, context_beside, suggested, with_joined
from torchyard_trainers.lm.data.images import Images, Picture, has_images
from torchyard_trainers.lm.fields import FIELDS
from torchyard_trainers.lm.settings import PAIRED, REINFORCED, Settings
from torchyard_trainers.lm.tokens import begun, check_known, encoded, ended, hidden_tokens, prefix_of


class Document(NamedTuple):
    """Tokens of a sample, which of them the model learns to say ([T] each), and how many were cut off."""

    tokens: Sequence[int]
    learned: Sequence[bool]
    lost: int = 0
    pictures: Sequence[Picture] = ()  # in the order of the tokens that stand for them


class Prompt(NamedTuple):
    """What is completed, and what its reward function sees of it."""

    text: str
    tokens: Sequence[int]
    row: dict[str, Any]
    lost: int = 0  # tokens that were cut off


class Example(NamedTuple):
    """What a record can be used for."""

    document: Document | None = None  # to train on, or the chosen answer of a pair
    rejected: Document | None = None
    prompt: Prompt | None = None  # to complete
    right: bool | None = None  # whether the answer is labelled as a right one


# Which kinds a record of supervised fine-tuning can be, the most specific first.
KINDS = ("messages", "prompt", "text")


class Encoder:
    """Encodes records for a method; a pure function of the record."""

    def __init__(
        self,
        settings: Settings,
        tokenizer: Any,
        vocabulary: int,
        *,
        prompts: bool = False,
        chat: Chat | None = None,
        images: Images | None = None,
    ) -> None:
        """Encode with the tokenizer of a model.

        Args:
            settings: of the run.
            tokenizer: of the model.
            vocabulary: tokens that the model knows.
            prompts: add the prompt of each record that has one, to complete it in evaluation.
            chat: renders conversations with this tokenizer; None: a new one.
            images: reads those of conversations; None: the model reads text only.
        """
        self._settings, self._tokenizer, self._vocabulary = settings, tokenizer, vocabulary
        self._names = {name: settings.fields.get(name, name) for name in FIELDS}
        self._joins = [name for name in self._names.values() if JOIN in name]
        self._chat = chat or Chat(tokenizer)
        self._images = images
        self._prompts = prompts or settings.method in ("grpo", "ppo")
        self._begin = prefix_of(tokenizer)
        self._doubled: set[str] = set()
        self._unread: set[str] = set()
        # Completions are compared as text without such tokens: an answer that ends with one would never be right.
        marks = filter(None, tokenizer.convert_ids_to_tokens(sorted(hidden_tokens(tokenizer))))
        self._hidden = re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))) or "(?!)")

    def __call__(self, row: Row) -> Example:
        """Return the sample of a record.

        Raises:
            BadRecordError: a field is missing, of another kind, or too long.
            ConfigError: the tokenizer has no chat template.
        """
        if isinstance(row.get("tokens"), np.ndarray):
            return Example(self._windows(row["tokens"]))
        label, method = self._names["label"], self._settings.method
        if method != "kto" and row.get(label) is False and row.get(self._names["completion"]) is not None:
            raise BadRecordError(
                label,
                "is false: the completion is a wrong one. Set method: kto, which learns from such records, or leave "
                "them out (badRecords: skip)",
            )
        self._unread |= context_beside(row, self._names.values())
        row = with_joined(row, self._joins) if self._joins else row
        if method in PAIRED:
            return self._pair(row)
        if method == "kto":
            return self._rated(row)
        kind = self.kind(row)
        if method in REINFORCED:
            return self._task(row, kind)
        if kind == "text":
            return Example(self._text(field_of(row, self._names["text"], str)))
        document = self._answered(row, kind)
        asks = self._prompts and not document.pictures
        return Example(document, prompt=self._completable(row, kind) if asks else None)

    @property
    def notes(self) -> list[str]:
        """What a user should know of the records until here, as sentences."""
        has = ", ".join(sorted(map(repr, self._doubled)))
        twice = f"records already begin or end with special tokens of the tokenizer (fields {has}): none is added twice"
        beside = ", ".join(sorted(map(repr, self._unread)))
        unread = (
            f"records have what comes before a conversation in other fields ({beside}), which are not read: make them "
            "messages, such as one of role system"
        )
        return [*([twice] if self._doubled else []), *([unread] if self._unread else []), *self._chat.notes]

    @property
    def turn_ends(self) -> tuple[int, ...]:
        """The tokens that end turns of the assistant in conversations."""
        return self._chat.end_tokens if self._tokenizer.chat_template else ()

    def converses(self, row: Row) -> bool:
        """Return whether a record has a conversation, which the chat template renders."""
        fields = ("messages", "prompt", "completion", "chosen")
        return any(isinstance(row.get(self._names[name]), list) for name in fields)

    def kind(self, row: Row) -> str:
        """Return what a record is: `messages`, `prompt` or `text`.

        Raises:
            BadRecordError: none of them.
        """
        if self._settings.format != "auto":
            return self._settings.format
        for kind in KINDS:
            if row.get(self._names[kind]) is not None:
                return kind
        if nulls := [self._names[kind] for kind in KINDS if self._names[kind] in row]:
            raise BadRecordError(nulls[0], "is null")
        wanted = " or ".join(repr(self._names[kind]) for kind in KINDS[1:])
        raise BadRecordError(
            self._names["messages"],
            f"is missing, and {wanted} too; the record has {_has(row)}. {suggested(row)}",
        )

    def _text(self, text: str) -> Document:
        if not text:
            raise BadRecordError(self._names["text"], "is empty")
        tokens = self._ended(self._begun(self._plain(text, self._names["text"]), "text"), "text")
        document = Document(tokens, [True] * len(tokens))
        if self._settings.text_windows and len(tokens) > 1:
            check_known(self._tokenizer, tokens, self._vocabulary, self._names["text"])
            return document
        return self._fitted(document, self._names["text"])

    def _windows(self, tokens: Any) -> Document:
        if (method := self._settings.method) != "sft":
            needed = {"kto": "labelled answers", **dict.fromkeys(PAIRED, "chosen and rejected answers")}.get(
                method, "prompts"
            )
            raise BadRecordError(
                "tokens", f"is tokenized text, which only method sft uses; {method} needs {needed}: name other files"
            )
        if (highest := int(tokens.max())) >= self._vocabulary or int(tokens.min()) < 0:
            raise BadRecordError("tokens", f"has {highest}, but the model has {self._vocabulary} tokens")
        found = tokens.tolist()
        return Document(found, [True] * len(found))

    def _answered(self, row: Row, kind: str) -> Document:
        """Return a prompt with its completion, or a conversation."""
        name = self._names["completion" if kind == "prompt" else kind]
        if kind == "messages":
            messages = conversation(row.get(name), name, images=self._images is not None)
            return self._fitted(self._conversed(messages, 0, row, name), name)
        if name not in row and row.get(self._names["prompt"]) is not None:
            raise BadRecordError(name, f"is missing; the record has {_has(row)}. {suggested(row, ['completion'])}")
        with_images = self._images is not None
        prompt = _part(row, self._names["prompt"], images=with_images)
        completion = _part(row, name, images=with_images)
        if _begins_elsewhere(completion):
            raise BadRecordError(
                name,
                f"begins with a turn of {completion[0]['role']!r}; a whole conversation needs no prompt: set "
                f"trainer.params.fields: {{messages: {name}}} and format: messages",
            )
        return self._fitted(self._joined(prompt, completion, row, name), name)

    def _joined(self, prompt: Any, completion: Any, row: Row, name: str) -> Document:
        """Return a prompt and a completion, which is field `name`; each is a text or a list of messages."""
        if isinstance(prompt, str) and isinstance(completion, str):
            if not completion.strip():
                raise BadRecordError(name, "is empty")
            before = self._begun(self._plain(prompt, self._names["prompt"]), "prompt")
            after = self._ended(self._plain(completion, name), name)
            counts = self._settings.train_on == "all"
            return Document([*before, *after], [counts] * len(before) + [True] * len(after))
        asked = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
        said = completion if isinstance(completion, list) else [{"role": ASSISTANT, "content": completion}]
        return self._conversed([*asked, *said], len(asked), row, name)

    def _conversed(self, messages: Sequence[Message], first: int, row: Row, name: str) -> Document:
        self._chat.check()
        learned, tools = self._settings.train_on, self._offered(row)
        messages, pictures = self._placed(messages, row)
        try:
            found = self._chat.turns(
                messages, first=first, last_only=learned == "last", everything=learned == "all", tools=tools
            )
        except BadRecordError as error:
            raise BadRecordError(name, error.problem) from error
        if self._images is not None:
            found = self._images.expanded(*found, pictures)
        return Document(*found, pictures=pictures)

    def _placed(self, messages: Sequence[Message], row: Row) -> tuple[Sequence[Message], Sequence[Picture]]:
        """Return messages and their images."""
        column = self._names["images"]
        if self._images is not None:
            return self._images.placed(messages, row, column)
        if isinstance(row.get(column), list) and has_images(row, column):
            raise BadRecordError(
                column, "are in the record, and the model reads text only; name a folder of Qwen2-VL, or remove them"
            )
        return messages, ()

    def _pair(self, row: Row) -> Example:
        """Return two answers to one prompt."""
        names = self._names["chosen"], self._names["rejected"]
        answers = [_part(row, name) for name in names]
        prompt = _part(row, self._names["prompt"]) if row.get(self._names["prompt"]) is not None else None
        if prompt is None:
            if not all(isinstance(each, list) for each in answers):
                raise BadRecordError(
                    self._names["prompt"],
                    f"is missing; only conversations can be without it. Add it, and leave it out of {names[0]!r} and "
                    f"{names[1]!r}",
                )
            prompt, answers = _divided(answers, names)
        elif any(map(_begins_elsewhere, answers)):
            asked, answers = _divided(answers, names)
            if not _holds(asked, prompt):
                raise BadRecordError(
                    names[0],
                    f"is a whole conversation, in which the field {self._names['prompt']!r} does not occur; leave one "
                    "of them out",
                )
            prompt = asked
        for name, each in zip(names, answers, strict=True):
            if not each:
                raise BadRecordError(name, "is empty")
        chosen, rejected = (
            self._fitted(self._joined(prompt, each, row, name), name) for name, each in zip(names, answers, strict=True)
        )
        if chosen.tokens == rejected.tokens:
            if chosen.lost or rejected.lost:
                problem = (
                    f"does not differ from {names[0]!r} within {self._settings.max_length} tokens; raise maxLength"
                )
                raise TooLongError(names[1], problem, len(rejected.tokens) + rejected.lost)
            raise BadRecordError(names[1], f"is the same answer as {names[0]!r}, so that there is nothing to prefer")
        return Example(chosen, rejected)

    def _rated(self, row: Row) -> Example:
        """Return an answer that is labelled as right or wrong."""
        names, right = self._names, row.get(self._names["label"])
        if row.get(names["chosen"]) is not None:
            raise BadRecordError(
                names["chosen"], "is an answer of a pair, and kto needs 'completion' and 'label'; use dpo"
            )
        if not isinstance(right, bool):
            problem = f"is {kind_of(right)}" if names["label"] in row else "is missing"
            raise BadRecordError(
                names["label"], f"{problem}, expected true for a right completion or false for a wrong one"
            )
        document = self._answered(row, "prompt")
        prompt = self._completable(row, "prompt") if self._prompts and right else None
        return Example(document, prompt=prompt, right=right)

    def _task(self, row: Row, kind: str) -> Example:
        """Return a prompt to complete, and its right answer if the record has one."""
        if kind == "text":
            raise BadRecordError(self._names["prompt"], "is missing, which grpo and ppo complete")
        prompt, document = self._asked(row, kind), None
        assert prompt is not None
        if self._settings.needs_answer and "answer" not in prompt.row:
            raise BadRecordError(
                self._names["answer"],
                f"is missing, which reward {self._settings.reward} compares with; name the field in "
                "trainer.params.fields, or set trainer.params.reward",
            )
        if self._settings.sft_steps:
            if kind == "messages" and conversation(row[self._names[kind]], self._names[kind])[-1]["role"] != ASSISTANT:
                raise BadRecordError(self._names[kind], "does not end with an answer, which sftSteps train on")
            document = self._answered(row, kind)
        if len(prompt.tokens) > self._settings.max_length:
            cut = self._cut(prompt.tokens, self._settings.max_length, self._names["prompt"])
            prompt = prompt._replace(tokens=cut, lost=len(prompt.tokens) - len(cut))
        return Example(document, prompt=prompt)

    def _asked(self, row: Row, kind: str) -> Prompt | None:
        """Return what the model is asked, and the record with `answer`: the one to compare with."""
        names = self._names
        answer = row.get(names["answer"])
        if kind == "messages":
            messages = conversation(row.get(names["messages"]), names["messages"])
            if messages[-1]["role"] == ASSISTANT:
                answer = messages[-1].get("content") if answer is None else answer
                messages = messages[:-1]
            if not messages:
                raise BadRecordError(names["messages"], "has no turn that the assistant answers")
            asked: Any = messages
        else:
            asked = _part(row, names["prompt"])
            completion = row.get(names["completion"])
            if answer is None and completion is not None:
                answer = completion[-1].get("content") if isinstance(completion, list) else completion
        if isinstance(asked, str) and self._settings.tools:
            raise BadRecordError(
                names["prompt"], "is text, and trainer.params.tools need a conversation: make it a list of messages"
            )
        if isinstance(asked, str):
            text, tokens = asked, self._begun(self._plain(asked, names["prompt"]), "prompt")
        else:
            self._chat.check()
            text, tokens = self._chat.prompt(asked, tools=self._offered(row))
        if not tokens:
            raise BadRecordError(names["prompt"], "is empty")
        check_known(self._tokenizer, tokens, self._vocabulary, names["messages" if kind == "messages" else "prompt"])
        known = {} if answer is None else {"answer": self._hidden.sub("", str(answer)).strip()}
        return Prompt(text, tokens, {**row, **known})

    def _offered(self, row: Row) -> list[Any] | None:
        """Return the descriptions of the tools that the model may call."""
        own = tools_of(row)
        if not self._settings.tool_schemas:
            return own
        if own:
            raise BadRecordError("tools", "are in the record, and trainer.params.tools is set; remove one of them")
        found: list[Any] = json.loads(self._settings.tool_schemas)
        return found

    def _completable(self, row: Row, kind: str) -> Prompt | None:
        """Return what an evaluation can complete of a record; None if there is nothing before its answer."""
        with suppress(BadRecordError):
            return self._asked(row, kind)
        return None

    def _begun(self, tokens: list[int], name: str) -> list[int]:
        whole = begun(self._tokenizer, tokens, self._begin)
        if self._begin and len(whole) == len(tokens):
            self._doubled.add(self._names.get(name, name))
        return whole

    def _ended(self, tokens: list[int], name: str) -> list[int]:
        whole = ended(self._tokenizer, tokens)
        if len(whole) == len(tokens):
            self._doubled.add(self._names.get(name, name))
        return whole

    def _plain(self, text: str, name: str) -> list[int]:
        tokens: list[int] = encoded(self._tokenizer, text, name)["input_ids"]
        return tokens

    def _fitted(self, document: Document, name: str) -> Document:
        """Return a document of at most `maxLength` tokens, with one at least to learn."""
        check_known(self._tokenizer, document.tokens, self._vocabulary, name)
        # The last token is a label only.
        most = self._settings.max_length + 1
        cut, lost = document, len(document.tokens) - most
        if lost > 0:
            tokens, learned = (self._cut(each, most, name) for each in (document.tokens, document.learned))
            cut = Document(tokens, learned, lost, document.pictures)
            self._check_uncut(document, cut, name)
        if len(cut.tokens) < 2 or not any(cut.learned[1:]):
            if cut is document:
                raise BadRecordError(name, "has nothing to learn at all")
            where = f"within {self._settings.max_length} tokens; raise maxLength or set truncation: start"
            raise TooLongError(name, f"has nothing to learn {where}", len(document.tokens))
        return cut

    def _check_uncut(self, document: Document, cut: Document, name: str) -> None:
        """Check that all tokens that stand for images are left."""
        if self._images is None or not document.pictures:
            return
        marks, left = (sum(token == self._images.token for token in each.tokens) for each in (document, cut))
        if marks != left:
            problem = (
                f"has {len(document.tokens)} tokens, {marks} of them of images, and a sample has at most "
                f"{self._settings.max_length}; raise maxLength or lower trainer.params.imageMaxPixels"
            )
            raise TooLongError(name, problem, len(document.tokens))

    def _cut(self, values: Sequence[Any], most: int, name: str) -> Sequence[Any]:
        if self._settings.truncation == "none":
            problem = f"has {len(values)} tokens, and a sample at most {self._settings.max_length}"
            if self._settings.method in REINFORCED:
                raise TooLongError(name, problem, len(values))
            raise BadRecordError(name, problem)
        return values[:most] if self._settings.truncation == "end" else values[-most:]


def _part(row: Row, name: str, *, images: bool = False) -> Any:
    """Return a field that is a text or a list of messages."""
    if isinstance(row.get(name), list):
        return conversation(row[name], name, images=images)
    return field_of(row, name, str)


def _has(row: Row) -> str:
    """Return the names of a record's fields, for messages."""
    return ", ".join(map(repr, sorted(row)[:8])) or "no fields"


def _begins_elsewhere(answer: Any) -> bool:
    """Return whether an answer is a whole conversation: its first turn is not the assistant's."""
    return isinstance(answer, list) and bool(answer) and answer[0]["role"] != ASSISTANT


def _divided(answers: Sequence[Any], names: Sequence[str]) -> tuple[list[Message], list[Any]]:
    """Return what two conversations begin with, and the rest of each.

    Raises:
        BadRecordError: they begin differently.
    """
    shared = _shared(*answers) if all(isinstance(each, list) for each in answers) else 0
    if not shared:
        raise BadRecordError(names[1], f"does not begin with the message that {names[0]!r} begins with")
    return answers[0][:shared], [each[shared:] for each in answers]


def _holds(asked: Sequence[Message], prompt: Any) -> bool:
    """Return whether turns have a prompt among them: the text of one, or their last messages."""
    if isinstance(prompt, list):
        return list(asked[-len(prompt) :]) == prompt
    return any(str(each.get("content", "")).strip() == prompt.strip() for each in asked)


def _shared(first: Sequence[Message], second: Sequence[Message]) -> int:
    """Return how many messages two conversations begin with in common; the last one of each is an answer."""
    most = min(len(first), len(second)) - 1
    return next((at for at in range(most) if first[at] != second[at]), most)


def window_of(example: Example, number: int, length: int) -> Example:
    """Return one of the windows of a text, of `length` tokens and the one that follows; 0 is the first."""
    document = example.document
    if document is None or len(document.tokens) <= length + 1:
        return example
    span = slice(number * length, (number + 1) * length + 1)
    return example._replace(document=Document(document.tokens[span], document.learned[span]))
