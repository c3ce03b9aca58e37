"""Turns of the assistant in the chat templates that TRL ships, beside the marks of its training templates.

    python benchmarks/trainers/lm_templates.py --peer FOLDER [--write docs/language-models.md]

FOLDER holds TRL: `pip install --no-deps --target FOLDER trl`. Each published template renders conversations with a
tokenizer of bytes that has the special tokens of the template. TRL trains on a changed copy of many templates, with
marks around what the model generates; a copy without its marks must give the same turns as the marks say, unless the
difference is a part of the prompt of generation, which a model never says, or is listed in `REASONS`. Any other
difference ends the program with an error. `--write` replaces the table in the documentation.
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.trainers.tokenizers import byte_level

from torchyard_trainers.core.data.rows import BadRecordError
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.lm.chat.chat import Chat
from torchyard_trainers.lm.chat.messages import conversation
from torchyard_trainers.lm.chat.templates import TemplateProcess

BEGIN, END = "<!-- templates: python benchmarks/trainers/lm_templates.py --write -->", "<!-- end of templates -->"
# Differences that are not a part of the prompt of generation.
REASONS = {
    "diffusion_gemma": "but for `<\\|tool_response>`, which ends a call, and the header of an answer behind a result, "
    "which the prompt of generation lacks: both are learned here only",
}
SPECIAL = re.compile(
    r"<[|\uff5c][^<>\n'\"{}| \uff5c]{1,40}[|\uff5c]>|<\|?/?[a-z_]{3,30}\|?>|</?think>|\[gMASK\]|<(?:start|end)_of_turn>"
    r"|<[A-Z_|]+>"
)
MARKS = re.compile(r"\{%(-?)\s*(end)?generation\s*(-?)%\}")


def user(content: str) -> dict[str, Any]:
    """Return a message of the user."""
    return {"role": "user", "content": content}


def says(content: str) -> dict[str, Any]:
    """Return a message of the assistant."""
    return {"role": "assistant", "content": content}


CALL = {"id": "callcall1", "type": "function", "function": {"name": "sky", "arguments": {"city": "Rome", "days": 3}}}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "name": "sky", "tool_call_id": "callcall1", "content": "sun"}
THOUGHT = "<think>\nI think\n</think>\n\n"
TURNS: Mapping[str, Sequence[Any]] = {
    "one": [user("hi you"), says("yo man")],
    "several": [user("hi you"), says("yo man"), user("and"), says("ok then"), user("so"), says(" the end ")],
    "system": [{"role": "system", "content": "Be brief."}, user("hi you"), says("yo man"), user("and"), says("ok")],
    "thoughts": [user("hi you"), says(f"{THOUGHT}yo man"), user("and"), says(f"{THOUGHT}ok then")],
}
WITH_CALLS: Mapping[str, Sequence[Any]] = {
    "call": [user("hi you"), CALLS],
    "result": [user("hi you"), CALLS, RESULT, says("It shines"), user("and"), says("ok then")],
}


class Learned(NamedTuple):
    """A conversation as text, and which of its tokens are learned."""

    tokens: list[str]
    learned: list[bool]


class Row(NamedTuple):
    """A line of the table."""

    template: str
    turns: str
    calls: str
    masks: str


def ours(template: str, messages: Any, process: TemplateProcess) -> Learned:
    """Return what is learned here.

    Raises:
        BadRecordError: the conversation is refused.
        ConfigError: the template is.
    """
    tokenizer = byte_level(SPECIAL.findall(template), template)
    tokens, learned = Chat(tokenizer, process).turns(conversation(messages, "messages"))
    return Learned(tokenizer.convert_ids_to_tokens(tokens), learned)


def theirs(template: str, messages: Any, process: TemplateProcess) -> Learned | None:
    """Return what TRL learns with a template that has marks; None if it does not render the conversation."""
    tokenizer = byte_level(SPECIAL.findall(template), template)
    try:
        suited = Chat(tokenizer, process)._suited(conversation(messages, "messages"), None)  # noqa: SLF001
        found = tokenizer.apply_chat_template(suited, return_dict=True, return_assistant_tokens_mask=True)
    except Exception:  # noqa: BLE001 - a template raises anything
        return None
    learned = [bool(each) for each in found["assistant_masks"]]
    return Learned(tokenizer.convert_ids_to_tokens(found["input_ids"]), learned)


def unmarked(template: str) -> str:
    """Return a template without its marks, which renders the same."""
    return MARKS.sub(lambda each: f"{{%{each[1]} {'endif' if each[2] else 'if true'} {each[3]}%}}", template)


def in_prompts(template: str, messages: Sequence[Any], run: str, process: TemplateProcess) -> bool:
    """Return whether some prompt of generation of a conversation ends with a text, or with it and a few characters."""
    tokenizer = byte_level(SPECIAL.findall(template), template)
    chat, talk = Chat(tokenizer, process), conversation(messages, "messages")
    for number, each in enumerate(talk):
        if each["role"] == "assistant":
            prompt = "".join(tokenizer.convert_ids_to_tokens(chat.prompt(talk[:number])[1]))
            if run in prompt[-len(run) - 20 :]:
                return True
    return False


def compare(name: str, marked: str, process: TemplateProcess) -> str:
    """Return how the turns of a template compare with its marks."""
    extra: set[str] = set()
    for title, messages in {**TURNS, **WITH_CALLS}.items():
        wanted = theirs(marked, messages, process)
        try:
            found = ours(unmarked(marked), messages, process)
        except (BadRecordError, ConfigError):
            continue
        if wanted is None or found == wanted:
            continue
        if name in REASONS:
            return f"equal {REASONS[name]}"
        if found.tokens != wanted.tokens:
            # GLM's last turn has a token more, which TRL's template writes.
            sys.exit(f"{name}, {title}: other tokens: {found.tokens} and {wanted.tokens}")
        run = ""
        columns = [*found.tokens, ""], [*found.learned, False], [*wanted.learned, False]
        for token, here, there in zip(*columns, strict=True):
            if here and not there:
                sys.exit(f"{name}, {title}: learned here only: {token}")
            if there and not here:
                run += token
            elif run:
                if not in_prompts(unmarked(marked), messages, run, process):
                    sys.exit(f"{name}, {title}: learned by TRL only: {run}")
                extra.add(run)
                run = ""
    if not extra:
        return "equal"
    listed = ", ".join(f"`{each.replace('Ċ', '⏎').replace('|', chr(92) + '|')}`" for each in sorted(map(shown, extra)))
    return f"equal but for {listed} of the prompt"


def shown(tokens: str) -> str:
    """Return tokens of bytes as text."""
    alphabet = byte_level([]).backend_tokenizer.decoder
    return alphabet.decode([tokens]).replace("\n", "⏎")


def works(template: str, conversations: Mapping[str, Sequence[Any]], process: TemplateProcess) -> str:
    """Return whether conversations are encoded, and why they are refused if not."""
    refused = []
    for title, messages in conversations.items():
        try:
            ours(template, messages, process)
        except (BadRecordError, ConfigError) as error:
            reason = str(error)
            if title == "system" and "ystem role" in reason:
                continue
            refused.append(reason)
    if not refused:
        return "yes"
    if conversations is TURNS:
        return "no: it takes content in parts, for images"
    return "no: it does not end all of them" if "does not end" in refused[0] else "no: it has none"


def rows_of(folder: Path) -> list[Row]:
    """Return the rows of all templates."""
    process, rows = TemplateProcess(), []
    for path in sorted(folder.glob("*.jinja")):
        if path.stem.endswith("_training"):
            continue
        published, marked = path.read_text(), path.with_name(f"{path.stem}_training.jinja")
        turns = works(published, TURNS, process)
        calls = works(published, WITH_CALLS, process) if turns == "yes" else ""
        masks = ""
        if turns == "yes":
            masks = compare(path.stem, marked.read_text(), process) if marked.exists() else "TRL has no marks"
        rows.append(Row(path.stem, turns, calls, masks))
    return rows


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", type=Path, help="folder with TRL", required=True)
    parser.add_argument("--write", type=Path, help="documentation whose table is replaced")
    options = parser.parse_args()
    rows = rows_of(options.peer / "trl" / "chat_templates")
    lines = ["| Template | Turns | Calls | Masks beside TRL's |", "| -- | -- | -- | -- |"]
    lines += [f"| `{row.template}` | {row.turns} | {row.calls} | {row.masks} |" for row in rows]
    table = "\n".join(lines)
    print(table)
    if options.write is not None:
        before, rest = options.write.read_text().split(BEGIN)
        options.write.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
