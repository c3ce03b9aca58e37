"""Opens files of records by their names."""

from collections.abc import Sequence
from pathlib import Path

from torchyard_trainers.core.data.files import File, expand
from torchyard_trainers.core.data.jsonl import JsonLines
from torchyard_trainers.core.data.mixture import Concatenated
from torchyard_trainers.core.data.parquet import Parquet
from torchyard_trainers.core.data.rows import Rows
from torchyard_trainers.core.data.tokens import TokenWindows
from torchyard_trainers.core.exits import DataError

RECORDS = (".jsonl", ".ndjson", ".parquet", ".pq")


def open_rows(
    urls: Sequence[str], *, window: int | None = None, dtype: str = "uint16", columns: Sequence[str] | None = None
) -> Rows:
    """Open files by their suffixes: `.jsonl`, `.parquet`, and with a `window` `.bin` and `.npy`.

    Args:
        urls: paths or URLs, also with wildcards; all records of all of them.
        window: tokens that a model reads at once, for tokenized text.
        dtype: of `.bin` files.
        columns: of Parquet files; None: all.

    Raises:
        DataError: a file is missing, empty or of another kind.
    """
    files = expand(list(urls))
    parts = [_open(file, window, dtype, columns) for file in files]
    if not parts:
        raise DataError("no data: name at least one file")
    return parts[0] if len(parts) == 1 else Concatenated(parts)


def is_text(path: str) -> bool:
    """Whether a path names files of records, or a folder that has some."""
    if "://" in path or any(sign in path for sign in "*["):
        return True
    folder = Path(path)
    if folder.is_dir():
        return any(each.name.endswith(RECORDS) for each in folder.iterdir())
    return folder.name.lower().endswith(RECORDS)


def _open(file: File, window: int | None, dtype: str, columns: Sequence[str] | None) -> Rows:
    name = file.name.lower()
    if name.endswith((".parquet", ".pq")):
        return Parquet(file, columns)
    if name.endswith((".bin", ".npy")):
        if window is None:
            raise DataError(f"{file.url}: tokenized text needs the length of a window")
        return TokenWindows(file, window, dtype)
    if ".jsonl" in name or ".ndjson" in name:
        return JsonLines(file)
    raise DataError(f"{file.url}: expected a name that ends with .jsonl, .parquet, .bin or .npy")
