"""`dataset PATH` of text: what its records are, how long, and which of them cannot be used.

Without the tokenizer of a model this needs no torch, whose import would take most of the time.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.data.opening import open_rows
from torchyard_trainers.core.data.rows import BadRecordError, Row
from torchyard_trainers.core.exits import DataError
from torchyard_trainers.lm.chat.chat import Chat
from torchyard_trainers.lm.data.columns import suggested
from torchyard_trainers.lm.data.images import Images
from torchyard_trainers.lm.data.records import Encoder, Example
from torchyard_trainers.lm.params import resolve_params
from torchyard_trainers.lm.tokens import character_tokenizer

PROBLEMS = 20  # that are listed; the others are counted
MOST = 100_000  # records that are looked at, evenly spread
FIELDS = 50  # that are listed
LONGEST = 2**20
# Format -> how its records are encoded.
METHODS: dict[str, dict[str, Any]] = {
    "messages": {"method": "sft", "format": "messages"},
    "prompt, completion": {"method": "sft", "format": "prompt"},
    "text": {"method": "sft", "format": "text"},
    "chosen, rejected": {"method": "dpo"},
    "prompt, completion, label": {"method": "kto"},
    "prompt": {"method": "grpo", "reward": "any:reward"},
}


def inspect(path: str, tokenizer_folder: Path | None = None) -> dict[str, Any]:
    """Return the number of records, their formats, fields, lengths and problems.

    Args:
        path: a file, a URL, a pattern with wildcards, or a folder of files.
        tokenizer_folder: lengths are in the tokens of this model; None: in characters.

    Raises:
        DataError: a file cannot be read.
        ConfigError: the folder has no tokenizer.
    """
    rows = open_rows([path])
    tokenizer, known = _tokenizer_of(tokenizer_folder)
    images = _images_of(tokenizer_folder)
    chat = Chat(tokenizer)

    def encoder_of(method: dict[str, Any]) -> Encoder:
        settings = resolve_params({"data": [path], "maxLength": LONGEST} | method, Parallelism())
        return Encoder(settings, tokenizer, known, chat=chat, images=images)

    encoders = {name: encoder_of(method) for name, method in METHODS.items()}
    formats: Counter[str] = Counter()
    fields: dict[str, Counter[str]] = {}
    lengths: list[int] = []
    problems: list[str] = []
    bad = 0
    count = min(len(rows), MOST)
    for number in range(count):
        index = number * len(rows) // count
        try:
            row = rows.row(index)
            for name, value in row.items():
                if name in fields or len(fields) < FIELDS:
                    fields.setdefault(name, Counter())[_type(value)] += 1
            kind = format_of(row)
            formats[kind] += 1
            lengths.append(_tokens(encoders[kind](row)))
        except (BadRecordError, DataError) as error:
            bad += 1
            if len(problems) < PROBLEMS:
                problems.append(f"{rows.where(index)}: {error}" if isinstance(error, BadRecordError) else str(error))
    return {
        "kind": "text",
        "path": path,
        "records": len(rows),
        "checked": count,
        "formats": dict(formats.most_common()),
        "fields": {name: dict(types.most_common()) for name, types in fields.items()},
        "unit": "characters" if tokenizer_folder is None else "tokens",
        "lengths": _statistics(lengths),
        "problems": problems,
        "problemCount": bad,
    }


def _tokenizer_of(folder: Path | None) -> tuple[Any, int]:
    """Return the tokenizer of a model, or the one of characters, and the tokens that it knows."""
    if folder is None:
        tokenizer = character_tokenizer()
        return tokenizer, len(tokenizer)
    from torchyard_trainers.lm.folder import limits_in, read_tokenizer

    return read_tokenizer(folder), limits_in(folder)[0]


def _images_of(folder: Path | None) -> Images | None:
    """Return what reads images, of a model that does."""
    if folder is None:
        return None
    from torchyard_trainers.lm.folder import image_token

    token = image_token(folder)
    return None if token is None else Images(folder, token, root=None, max_pixels=None)


def format_of(row: Row) -> str:
    """Return the format of a record: a key of `METHODS`.

    Raises:
        BadRecordError: it has none.
    """
    has = {name for name, value in row.items() if value is not None}
    if {"chosen", "rejected"} <= has:
        return "chosen, rejected"
    if "messages" in has:
        return "messages"
    if {"prompt", "completion"} <= has and isinstance(row.get("label"), bool):
        return "prompt, completion, label"
    if "prompt" in has:
        return "prompt, completion" if "completion" in has else "prompt"
    if "text" in has:
        return "text"
    if nulls := [name for name in ("messages", "prompt", "text") if name in row]:
        raise BadRecordError(nulls[0], "is null")
    names = ", ".join(map(repr, sorted(row)[:8])) or "no fields"
    raise BadRecordError(
        "messages",
        f"is missing, and 'prompt', 'text' or 'chosen' too; the record has {names}. {suggested(row)}",
    )


def _tokens(example: Example) -> int:
    """Return the tokens of the longest document of an example, or of its prompt."""
    parts = [len(each.tokens) for each in (example.document, example.rejected) if each is not None]
    return max(parts) if parts else len(example.prompt.tokens) if example.prompt is not None else 0


def _type(value: Any) -> str:
    names = {str: "text", bool: "true or false", int: "number", float: "number", list: "list", type(None): "null"}
    return "map" if isinstance(value, Mapping) else names.get(type(value), type(value).__name__)


def _statistics(lengths: list[int]) -> dict[str, float]:
    if not lengths:
        return {}
    low, median, high, most = np.percentile(lengths, [0, 50, 95, 100])
    return {"min": int(low), "median": float(median), "p95": float(high), "max": int(most), "total": int(sum(lengths))}
