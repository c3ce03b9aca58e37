"""Records of Arrow files, as `save_to_disk` of datasets writes them; memory-mapped."""

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from torchyard_trainers.core.data.files import File
from torchyard_trainers.core.data.parquet import in_microseconds
from torchyard_trainers.core.data.rows import Row
from torchyard_trainers.core.data.splits import chosen_split
from torchyard_trainers.core.exits import DataError
from torchyard_trainers.core.json_text import parse_json

STATE, SPLITS = "state.json", "dataset_dict.json"
MAX_STATE_BYTES = 16 << 20
_MAGIC = b"ARROW1"  # of files that can be read in any order; others are streams
_SLACK = 1 << 20  # bytes that padding may add to a small file


class Arrow:
    """An Arrow file of this machine. Its batches are views of the file; a batch is checked when it is first read."""

    def __init__(self, file: File) -> None:
        """Find the batches of a file.

        Raises:
            DataError: it is not an Arrow file, is on another machine, or has compressed batches.
        """
        if file.is_remote:
            raise DataError(f"{file.url}: Arrow files are mapped into memory; copy it to a volume, or use Parquet")
        self._file = file
        self._batches = _batches(file)
        self._ends = list(accumulate(each.num_rows for each in self._batches))
        if not self._ends or not self._ends[-1]:
            raise DataError(f"{file.url}: the file has no records")
        if sum(each.get_total_buffer_size() for each in self._batches) > 2 * file.size + _SLACK:
            raise DataError(
                f"{file.url}: its batches are compressed, and would all be held in memory; write Parquet instead: "
                "to_parquet of datasets"
            )
        self._checked: set[int] = set()
        self.fingerprint = file.fingerprint

    def __len__(self) -> int:
        return self._ends[-1]

    def row(self, index: int) -> Row:
        """Return a record.

        Raises:
            DataError: the batch is damaged, or Python cannot hold a value.
        """
        from pyarrow import ArrowException, Table

        number = bisect_right(self._ends, index)
        batch = self._batches[number]
        try:
            if number not in self._checked:
                batch.validate(full=True)
                self._checked.add(number)
            one = batch.slice(index - (self._ends[number] - batch.num_rows), 1)
            return in_microseconds(Table.from_batches([one])).to_pylist()[0]
        except (ArrowException, ValueError, OverflowError) as error:
            what = " ".join(str(error).split())
            raise DataError(f"{self.where(index)}: cannot be read: {what}; write the file again") from error

    def where(self, index: int) -> str:
        """Return the place of a record for messages."""
        return f"{self._file.name}, record {index + 1}"


def _batches(file: File) -> list[Any]:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise DataError(f"{file.url}: Arrow files need the package pyarrow; add it to the image") from error
    head = file.read(0, len(_MAGIC))  # names what is wrong with the path
    try:
        mapped = pa.memory_map(file.path)
        if head == _MAGIC:
            reader = pa.ipc.open_file(mapped)
            return [reader.get_batch(number) for number in range(reader.num_record_batches)]
        return list(pa.ipc.open_stream(mapped))
    except (pa.ArrowException, OSError) as error:
        what = " ".join(str(error).split())
        raise DataError(f"{file.url}: not an Arrow file: {what}; save the dataset again") from error


def saved_files(folder: Path, split: str | None) -> list[File] | None:
    """Return the files of a folder that `save_to_disk` of datasets has written; None if it is another folder.

    Args:
        folder: of a Dataset, or of a DatasetDict with a folder for each split.
        split: of a DatasetDict; None: it must not have several.

    Raises:
        DataError: the folder has no such split, several without a choice, or is damaged.
    """
    if (folder / SPLITS).is_file():
        names = _read(folder / SPLITS).get("splits")
        if not isinstance(names, list) or not names or not all(_is_name(each) for each in names):
            raise DataError(f"{folder / SPLITS}: names no splits; save the dataset again")
        folder = folder / chosen_split(names, split, str(folder))
    elif not (folder / STATE).is_file():
        return None
    elif split is not None:
        raise DataError(f"{folder}: is a dataset without splits, so there is no {split!r}; remove split")
    state = _read(folder / STATE)
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise DataError(f"{folder}: is a selection of other files; call flatten_indices() and save_to_disk again")
    files = state.get("_data_files")
    names = [each.get("filename") if isinstance(each, Mapping) else None for each in files or []]
    if not names or not all(_is_name(each) for each in names):
        raise DataError(f"{folder / STATE}: names no files of data; save the dataset again")
    return [File(folder / name) for name in names]


def _is_name(value: Any) -> bool:
    """Return whether a value is the name of something in its folder, not a path to elsewhere."""
    return isinstance(value, str) and value not in ("", ".", "..") and Path(value).name == value


def _read(path: Path) -> Mapping[str, Any]:
    file = File(path)
    if file.size > MAX_STATE_BYTES:
        raise DataError(f"{path}: larger than {MAX_STATE_BYTES >> 20} MiB; save the dataset again")
    try:
        tree = parse_json(file.read(0, file.size))
    except ValueError as error:
        raise DataError(f"{path}: cannot be read as JSON: {error}; save the dataset again") from error
    if not isinstance(tree, Mapping):
        raise DataError(f"{path}: is not a JSON object; save the dataset again")
    return tree
