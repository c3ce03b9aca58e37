"""Opens files of records by their names."""

import os
from collections.abc import Sequence
from pathlib import Path

from torchyard_trainers.core.data.files import File, expand
from torchyard_trainers.core.data.jsonl import JsonLines
from torchyard_trainers.core.data.mixture import Concatenated
from torchyard_trainers.core.data.parquet import Parquet
from torchyard_trainers.core.data.rows import Rows
from torchyard_trainers.core.data.splits import of_split
from torchyard_trainers.core.data.tokens import TokenWindows
from torchyard_trainers.core.exits import DataError
from torchyard_trainers.core.hub import hub_id

RECORDS = (".jsonl", ".ndjson", ".parquet", ".pq")
# What other kinds of files have to become, by suffix.
_CONVERT = {
    **dict.fromkeys((".csv", ".tsv"), "convert it: pandas.read_csv(PATH).to_parquet('data.parquet')"),
    **dict.fromkeys((".arrow", ".feather"), "convert it: datasets.load_from_disk(FOLDER).to_parquet('data.parquet')"),
    **dict.fromkeys((".txt", ".md"), 'write a line of JSON for each text: {"text": "..."}'),
    **dict.fromkeys((".zip", ".tar", ".tgz"), "unpack it"),
    **dict.fromkeys((".gz", ".zst", ".bz2", ".xz"), "decompress it"),
}


def open_rows(
    urls: Sequence[str],
    *,
    window: int | None = None,
    dtype: str = "uint16",
    columns: Sequence[str] | None = None,
    split: str | None = None,
) -> Rows:
    """Open files by their suffixes: `.jsonl`, `.json` (lines), `.parquet`, and with a `window` `.bin` and `.npy`.

    Args:
        urls: paths or URLs, also with wildcards, or folders; all records of all of them.
        window: tokens that a model reads at once, for tokenized text.
        dtype: of `.bin` files.
        columns: of Parquet files; None: all.
        split: only its files, by their names; None: no folder or pattern may have files of several splits.

    Raises:
        DataError: a file is missing, empty or of another kind, or splits are mixed.
    """
    files = [file for url in urls for file in _of_split(url, split)]
    parts = [_open(file, window, dtype, columns) for file in files]
    if not parts:
        raise DataError("no data: name at least one file")
    return parts[0] if len(parts) == 1 else Concatenated(parts)


def is_text(path: str) -> bool:
    """Whether a path names files of records, or a folder that has some; else it is one of a LeRobot dataset."""
    folder = Path(path)
    if "://" in path or any(sign in path for sign in "*[") or folder.is_file():
        return True
    if folder.is_dir():
        return any(each.name.lower().endswith((*RECORDS, ".arrow")) for each in folder.iterdir())
    return bool(folder.suffix)


def _of_split(url: str, split: str | None) -> list[File]:
    """Return the files of a split that a path, URL or pattern stands for."""
    files = {file.url: file for file in expand(_in_folder(url, below=split is not None))}
    return [files[each] for each in of_split(list(files), split, url)]


def _open(file: File, window: int | None, dtype: str, columns: Sequence[str] | None) -> Rows:
    name = file.name.lower()
    if name.endswith((".parquet", ".pq")):
        return Parquet(file, columns)
    if name.endswith((".bin", ".npy")):
        if window is None:
            raise DataError(f"{file.url}: tokenized text needs the length of a window")
        return TokenWindows(file, window, dtype)
    if ".jsonl" in name or ".ndjson" in name or name.endswith(".json"):
        return JsonLines(file)
    fix = _CONVERT.get(Path(name).suffix, "convert it to JSON lines or Parquet")
    if "/" in (name := hub_id(file.url)) and not os.path.exists(file.url):  # noqa: PTH110
        fix = f"if it is a dataset of the Hugging Face Hub, name its files: hf://datasets/{name}/**/*.parquet"
    raise DataError(f"{file.url}: expected a file whose name ends with .jsonl, .parquet, .bin or .npy; {fix}")


def _in_folder(url: str, *, below: bool) -> list[str]:
    """Return the files of records in a folder of this machine, or the URL of anything else.

    Args:
        url: of the folder.
        below: whether files of folders in it belong to it as well.

    Raises:
        DataError: the folder has none.
    """
    folder = Path(url)
    if "://" in url or not os.path.isdir(url):  # noqa: PTH112 - False also for a name that is too long
        return [url]
    inside = folder.rglob("[!.]*") if below else folder.iterdir()
    if found := sorted(str(each) for each in inside if each.name.lower().endswith(RECORDS)):
        return found
    fix = "name a folder or a file that has records"
    if any(folder.glob("*.arrow")) or any(folder.glob("*/*.arrow")):
        fix = f"convert what datasets saved: datasets.load_from_disk({url!r}), and to_parquet of each split"
    elif deeper := next((each for end in RECORDS for each in sorted(folder.glob(f"*/*{end}"))), None):
        fix = f"name the files below it, such as {deeper.parent}/*{deeper.suffix}, or a split"
    raise DataError(f"{url}: the folder has no files that end with {', '.join(RECORDS)}; {fix}")
