"""Fields of records as other tools name them: several as one text, and which of ours to set for them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchyard_trainers.core.data.rows import BadRecordError, Row, kind_of

JOIN = " + "  # in `fields`: texts of several fields, as Alpaca's instruction and input
BETWEEN = "\n\n"
# What public datasets call our fields; the first one that a record has is suggested.
_USUAL: dict[str, Sequence[str]] = {
    "messages": ("conversations", "conversation", "dialogue", "dialog", "chat", "turns"),
    "prompt": ("instruction", "question", "query", "problem", "input"),
    "completion": ("output", "response", "answer", "solution", "target"),
    "text": ("content", "document", "article", "body", "passage"),
}
_MORE = ("input", "context")  # what an instruction is about
_BEFORE = ("system", "system_prompt", "history")  # of a conversation, in records of LLaMA-Factory and others


def with_joined(row: Row, names: Iterable[str]) -> Row:
    """Return a record with the fields of several others: `instruction + input`, parts that are empty left out.

    Raises:
        BadRecordError: a part is not text.
    """
    found: dict[str, Any] = {}
    for name in names:
        parts = {each: row[each] for each in name.split(JOIN) if row.get(each) not in (None, "")}
        for each, value in parts.items():
            if not isinstance(value, str):
                raise BadRecordError(each, f"is {kind_of(value)}, expected text")
        if parts:
            found[name] = BETWEEN.join(parts.values())
    return {**row, **found} if found else row


def context_beside(row: Row, read: Iterable[str]) -> set[str]:
    """Return the fields in which a record has what comes before its conversation, of those that are not read.

    Args:
        row: of any format.
        read: names of fields that are.
    """
    names = {part for each in read for part in each.split(JOIN)}
    return {name for name in _BEFORE if name not in names and isinstance(row.get(name), str | list) and row[name]}


def suggested(row: Row, wanted: Sequence[str] = ()) -> str:
    """Return the `fields` that would read a record, as a sentence for messages.

    Args:
        row: without fields of ours, or without some of them.
        wanted: those that are missing; (): those of any format.
    """
    has = {name.lower(): name for name, value in row.items() if isinstance(value, str)}
    lists = {name.lower(): name for name, value in row.items() if isinstance(value, list)}
    # Prompt and completion may be lists of messages, too; they are seldom called otherwise then.
    there = {
        ours: (has | lists).get(ours) or _first(lists if ours == "messages" else has, usual)
        for ours, usual in _USUAL.items()
    }
    for names in [wanted] if wanted else (["messages"], ["prompt", "completion"], ["text"]):
        if all(there.get(each) for each in names):
            return f"Set trainer.params.fields: {{{', '.join(_pair(each, there, has) for each in names)}}}"
    return "Name its fields in trainer.params.fields"


def _first(has: Mapping[str, str], usual: Sequence[str]) -> str | None:
    return next((has[each] for each in usual if each in has), None)


def _pair(ours: str, there: Mapping[str, str | None], has: Mapping[str, str]) -> str:
    theirs = there[ours]
    more = next((has[each] for each in _MORE if each in has), theirs)
    if ours == "prompt" and theirs != more:
        theirs = f"{theirs}{JOIN}{more}"
    return f"{ours}: {theirs}"
