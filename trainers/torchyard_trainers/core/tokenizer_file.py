"""The `tokenizer.json` of a folder of Hugging Face, written by others: checked before it reads a text."""

import base64
import contextlib
import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.model_config import check_is_file

TOKENIZER = "tokenizer.json"
WORDS = "words.txt"
MAX_WORDS_BYTES = 1 << 20
# The largest published tokenizers have 62 MiB, 0.9 million tokens, 0.6 million merges, and some thousand added tokens.
# A token takes 300 to 600 bytes of memory, an added one ten times as much.
MAX_TOKENIZER_BYTES = 128 << 20
MAX_TOKENS = 1 << 20
MAX_MERGES = 1 << 21
MAX_ADDED_TOKENS = 1 << 16
MAX_OTHERS = 1 << 17
_OF_A_TOKENIZER = (".json", ".txt", ".jinja", ".model")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
# Bytes that a normalizer or decoder may make of one; published ones make at most 66 (Unicode's longest, and a space).
MAX_GROWTH = 256


def read_tokenizer_file(folder: Path, field: str) -> Any:
    """Return the `tokenizers.Tokenizer` of a folder.

    Args:
        folder: of a model.
        field: of the job that names the folder.

    Raises:
        ConfigError: the folder has no tokenizer, or one that is too large or may multiply a text.
    """
    from tokenizers import Tokenizer

    path = folder / TOKENIZER
    at = f"{field}: {path}"
    check_tokenizer_file(path, at)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise ConfigError(f"{at} cannot be read: {error}") from error
    check_growth(tokenizer, at)
    return tokenizer


def read_words(folder: Path, field: str) -> list[str]:
    """Return the words, in the order of their numbers, of a model that was exported without a tokenizer.

    Args:
        folder: of a model, with `words.txt`.
        field: of the job that names the folder.

    Raises:
        ConfigError: it is larger than 1 MiB, or not text.
    """
    path = folder / WORDS
    if path.stat().st_size > MAX_WORDS_BYTES:
        raise ConfigError(f"{field}: {path} has {path.stat().st_size} bytes, more than 1 MiB; export the model again")
    try:
        return path.read_text("utf-8").split()
    except ValueError as error:
        raise ConfigError(f"{field}: {path} is not text ({error}); export the model again") from error


class _Model(Struct, frozen=True):
    vocab: Raw = Raw(b"")
    merges: Raw = Raw(b"")


class _Tree(Struct, frozen=True):
    """The parts of `tokenizer.json` and `tokenizer_config.json` that may be long."""

    model: _Model = _Model()
    added_tokens: Raw = Raw(b"")
    added_tokens_decoder: Raw = Raw(b"")


def check_tokenizer_file(path: Path, at: str, *, limit: int = MAX_TOKENIZER_BYTES) -> None:
    """Check that a file of a tokenizer takes a bounded amount of memory, before a library reads it.

    What is not such a file at all is left to the library, which says so.

    Args:
        path: of the file; if it is not a file, it is left to the library, too.
        at: how errors about it begin.
        limit: in bytes.

    Raises:
        ConfigError: it is larger, or has more tokens or merges than any tokenizer.
    """
    if not path.is_file():
        return
    if path.stat().st_size > limit:
        raise ConfigError(
            f"{at} has {path.stat().st_size >> 20} MiB, more than {limit >> 20}, which no published model has; "
            "copy it again"
        )
    if path.suffix in _OF_A_TOKENIZER:  # pictures and pages beside them are not read
        check_is_file(path, at)
    for what, count, most in _counts(path.name, path.read_bytes()):
        if count > most:
            raise ConfigError(
                f"{at} has more than {most} {what}, which no published tokenizer has; copy the tokenizer of the "
                "published model"
            )


def _counts(name: str, data: bytes) -> Iterator[tuple[str, int, int]]:
    """Yield what a file has, how often at least, and how often at most; more than that is not counted."""
    if name in ("vocab.txt", "merges.txt"):
        what, most = ("tokens", MAX_TOKENS) if name == "vocab.txt" else ("merges", MAX_MERGES)
        yield what, data.count(b"\n"), most
    elif name in ("vocab.json", "added_tokens.json"):
        what, most = ("tokens", MAX_TOKENS) if name == "vocab.json" else ("added tokens", MAX_ADDED_TOKENS)
        yield what, _strings(data, most), most
    elif name in (TOKENIZER, "tokenizer_config.json"):
        with contextlib.suppress(msgspec.MsgspecError, UnicodeError, RecursionError):
            tree = msgspec.json.decode(data, type=_Tree)
            yield "tokens", _strings(tree.model.vocab, MAX_TOKENS), MAX_TOKENS
            merges, added = bytes(tree.model.merges), bytes(tree.added_tokens) + bytes(tree.added_tokens_decoder)
            parts = 2 if merges[1:].lstrip().startswith(b"[") else 1  # "a b", or ["a", "b"]
            yield "merges", _strings(merges, parts * (MAX_MERGES + 1)) // parts, MAX_MERGES
            yield "added tokens", added.count(b"{"), MAX_ADDED_TOKENS
            # A key that stands twice counts once here, and the library reads both.
            counted = sum(bytes(each).count(b'"') for each in (tree.model.vocab, merges, added))
            yield "texts beside its tokens", (data.count(b'"') - counted) // 2, MAX_OTHERS


def _strings(text: bytes | Raw, most: int) -> int:
    """Return the number of strings in JSON, of which each token has one; counted exactly only around `most`."""
    data = bytes(text)
    most_possible = data.count(b'"') // 2
    return most_possible if most_possible <= most else sum(1 for _ in islice(_STRING.finditer(data), most + 1))


def check_growth(tokenizer: Any, at: str) -> None:
    """Check that no text grows without bound where a `tokenizers.Tokenizer` normalizes or decodes it.

    Raises:
        ConfigError: some steps after each other would multiply its length by more than `MAX_GROWTH`.
    """
    for name in ("normalizer", "decoder"):
        part = getattr(tokenizer, name)
        growth = 1.0
        for step in _steps(json.loads(part.__getstate__())) if part is not None else ():
            growth *= _growth(step)
        if growth > MAX_GROWTH:
            raise ConfigError(
                f"{at}: its {name} may make {growth:.3g} bytes of one, expected at most {MAX_GROWTH}; copy the "
                "tokenizer of the published model"
            )


def _steps(tree: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the steps that a text goes through."""
    left = [tree]
    while left:
        step = left.pop()
        inner = [*step.get("normalizers", ()), *step.get("decoders", ())]
        if inner:
            left += inner
        else:
            yield step


def _growth(step: dict[str, Any]) -> float:
    """Return at most how many bytes a step makes of one. Steps that follow Unicode's tables count as none."""
    kind = step.get("type")
    if kind == "Replace":
        found, put = step["pattern"].get("String", ""), len(step["content"].encode())
        # An expression may match the empty text between two characters.
        return max(1.0, put / len(found.encode())) if found else 1.0 + put
    if kind == "Prepend":
        return 1.0 + len(step["prepend"].encode())
    if kind == "Precompiled":  # sentencepiece: the size of a trie, the trie, and what texts become, each ended by 0
        table = base64.b64decode(step["precompiled_charsmap"] or "")
        texts = table[4 + int.from_bytes(table[:4], "little") :]
        return max(1.0, *map(len, texts.split(b"\0")))
    return 1.0
