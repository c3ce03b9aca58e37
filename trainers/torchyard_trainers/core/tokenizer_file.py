"""The `tokenizer.json` of a folder of Hugging Face, written by others: checked before it reads a text."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchyard_trainers.core.exits import ConfigError

TOKENIZER = "tokenizer.json"
# The largest published tokenizers have 40 MiB.
MAX_TOKENIZER_BYTES = 256 << 20
# Bytes that a normalizer or decoder may make of one; published ones make at most 66 (Unicode's longest, and a space).
MAX_GROWTH = 256


def read_tokenizer_file(folder: Path, field: str) -> Any:
    """Return the `tokenizers.Tokenizer` of a folder.

    Args:
        folder: of a model.
        field: of the job that names the folder.

    Raises:
        ConfigError: there is none, or it is not one that may read texts.
    """
    from tokenizers import Tokenizer

    path = folder / TOKENIZER
    at = f"{field}: {path}"
    check_size(path, at, MAX_TOKENIZER_BYTES)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise ConfigError(f"{at} cannot be read: {error}") from error
    check_growth(tokenizer, at)
    return tokenizer


def check_size(path: Path, at: str, limit: int) -> None:
    """Check the size of a file of a tokenizer in bytes.

    Raises:
        ConfigError: it is larger than `limit`.
    """
    if path.is_file() and path.stat().st_size > limit:
        raise ConfigError(
            f"{at} has {path.stat().st_size >> 20} MiB, more than {limit >> 20}: that is no file of a tokenizer; copy "
            "it again"
        )


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
