"""Opens files of records by their names."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from torchyard_trainers.core.data.arrow import SPLITS, Arrow, saved_files
from torchyard_trainers.core.data.copied import Copied
from torchyard_trainers.core.data.files import File, expand
from torchyard_trainers.core.data.jsonl import JsonLines, begins_array
from torchyard_trainers.core.data.mixture import Concatenated
from torchyard_trainers.core.data.parquet import Parquet
from torchyard_trainers.core.data.rows import Rows
from torchyard_trainers.core.data.splits import of_split
from torchyard_trainers.core.data.tokens import TokenWindows
from torchyard_trainers.core.exits import DataError
from torchyard_trainers.core.hub import hub_id

RECORDS = (".jsonl", ".ndjson", ".parquet", ".pq")
# Beside them: kinds that are read from a copy, also with `.gz`. A folder's `.json` and `.txt` may be descriptions.
TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".jsonl.gz", ".ndjson.gz", ".json.gz")
_KINDS = (RECORDS, TABLES[:4], TABLES[4:])
COPIED = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".txt")
LINES = (".json", ".jsonl", ".ndjson")
# What other kinds of files have to become, by suffix.
_CONVERT = {
    ".md": 'write a line of JSON for each text: {"text": "..."}',
    ".feather": "write Parquet: pandas.read_feather(PATH).to_parquet('data.parquet')",
    **dict.fromkeys((".xlsx", ".xls"), "convert it: pandas.read_excel(PATH).to_parquet('data.parquet')"),
    **dict.fromkeys((".zip", ".tar", ".tgz"), "unpack it"),
    **dict.fromkeys((".zst", ".bz2", ".xz"), "decompress it"),
}


def open_rows(
    urls: Sequence[str],
    *,
    window: int | None = None,
    dtype: str = "uint16",
    columns: Sequence[str] | None = None,
    split: str | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Rows:
    """Open files by their suffixes.

    They are `.jsonl`, `.json` (lines or an array), `.parquet`, `.arrow`, `.csv`, `.tsv` and `.txt`, texts also with
    `.gz`, folders of `save_to_disk`, and with a `window` `.bin` and `.npy`.

    Args:
        urls: paths or URLs, also with wildcards, or folders; all records of all of them.
        window: tokens that a model reads at once, for tokenized text.
        dtype: of `.bin` files.
        columns: of Parquet files; None: all.
        split: only its files, by their names; None: no folder or pattern may have files of several splits.
        report: takes lines about the progress of copies of large files.

    Raises:
        DataError: a file is missing, empty or of another kind, or splits are mixed.
    """
    files = [file for url in urls for file in _of_split(url, split)]
    parts = [_open(file, window, dtype, columns, report) for file in files]
    if not parts:
        raise DataError("no data: name at least one file")
    return parts[0] if len(parts) == 1 else Concatenated(parts)


def is_text(path: str) -> bool:
    """Whether a path names files of records, or a folder that has some; else it is one of a LeRobot dataset."""
    folder = Path(path)
    if "://" in path or any(sign in path for sign in "*[") or folder.is_file():
        return True
    if folder.is_dir():
        names = [each.name.lower() for each in folder.iterdir()]
        return SPLITS in names or any(each.endswith((*RECORDS, *TABLES, ".arrow")) for each in names)
    return bool(folder.suffix)


def _of_split(url: str, split: str | None) -> list[File]:
    """Return the files of a split that a path, URL or pattern stands for."""
    if "://" not in url and os.path.isdir(url) and (saved := saved_files(Path(url), split)) is not None:  # noqa: PTH112
        return saved
    files = {file.url: file for file in expand(_in_folder(url, below=split is not None))}
    return [files[each] for each in of_split(list(files), split, url)]


def _open(
    file: File, window: int | None, dtype: str, columns: Sequence[str] | None, report: Callable[[str], None]
) -> Rows:
    name = file.name.lower()
    if name.endswith((".parquet", ".pq")):
        return Parquet(file, columns)
    if name.endswith(".arrow"):
        return Arrow(file)
    if name.endswith((".bin", ".npy")):
        if window is None:
            raise DataError(f"{file.url}: tokenized text needs the length of a window")
        return TokenWindows(file, window, dtype)
    end = Path(name.removesuffix(".gz")).suffix
    if end in COPIED and (end not in LINES or name.endswith(".gz") or (end == ".json" and begins_array(file))):
        return Copied(file, end[1:], report)
    if ".jsonl" in name or ".ndjson" in name or end == ".json":
        return JsonLines(file)
    fix = _CONVERT.get(Path(name).suffix, "convert it to JSON lines or Parquet")
    if "/" in (name := hub_id(file.url)) and not os.path.exists(file.url):  # noqa: PTH110
        fix = f"if it is a dataset of the Hugging Face Hub, name its files: hf://datasets/{name}/**/*.parquet"
    raise DataError(
        f"{file.url}: expected a file whose name ends with .jsonl, .json, .csv, .txt, .parquet, .arrow, .bin or .npy; "
        f"{fix}"
    )


def _in_folder(url: str, *, below: bool) -> list[str]:
    """Return the files of records in a folder of this machine, or the URL of anything else.

    Args:
        url: of the folder.
        below: whether files of folders in it belong to it as well.

    Raises:
        DataError: the folder has none, or tables beside other files, which often hold the same records.
    """
    folder = Path(url)
    if "://" in url or not os.path.isdir(url):  # noqa: PTH112 - False also for a name that is too long
        return [url]
    inside = list(folder.rglob("[!.]*") if below else folder.iterdir())
    found = {ends: sorted(str(each) for each in inside if each.name.lower().endswith(ends)) for ends in _KINDS}
    several = [each[0] for each in found.values() if each]
    if len(several) > 1:
        raise DataError(
            f"{url}: the folder has files of several kinds ({', '.join(Path(each).name for each in several)}), which "
            "may hold the same records; name the files, for example FOLDER/*.jsonl"
        )
    if several:
        return next(each for each in found.values() if each)
    fix = "name a folder or a file that has records"
    if deeper := next(
        (each for end in (*RECORDS, *TABLES, ".arrow") for each in sorted(folder.glob(f"*/*{end}"))), None
    ):
        fix = f"name the files below it, such as {deeper.parent}/*{deeper.suffix}, or a split"
    elif other := next((each for end in (".json", ".txt", ".arrow") for each in sorted(folder.glob(f"*{end}"))), None):
        fix = f"name its files if they are records: {url}/*{other.suffix}"
    raise DataError(f"{url}: the folder has no files that end with {', '.join((*RECORDS, *TABLES[:4]))}; {fix}")
