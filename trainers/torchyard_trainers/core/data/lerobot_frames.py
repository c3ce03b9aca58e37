"""The frames of a LeRobot dataset: columns of numbers, and images that are in Parquet files."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchyard_trainers.core.data.files import File
from torchyard_trainers.core.data.lerobot import Episode, LeRobot, read_parquet
from torchyard_trainers.core.data.parquet import Parquet, evict
from torchyard_trainers.core.exits import DataError

# Columns that every frame has, besides the features of the robot.
BOOKKEEPING = ("timestamp", "frame_index", "episode_index", "index", "task_index")


class Frames:
    """Columns of numbers by Parquet file, checked when they are first read; a process keeps the last ones."""

    def __init__(self, dataset: LeRobot, columns: Sequence[str]) -> None:
        """Read only `columns`, each a vector of numbers, and what locates a frame."""
        self._dataset, self._columns = dataset, list(columns)
        self._kept: OrderedDict[str, dict[str, NDArray[Any]]] = OrderedDict()
        self._checked: set[int] = set()  # episodes
        self._images: OrderedDict[tuple[str, str], Parquet] = OrderedDict()  # by file and camera

    def of(self, episode: Episode) -> dict[str, NDArray[Any]]:
        """Return the columns of an episode: `length` rows each, vectors as [length, d].

        Raises:
            DataError: a frame cannot be used; the message names file, episode, frame and field.
        """
        table = self._file(episode.file)
        rows = slice(episode.first, episode.first + episode.length)
        found = {name: values[rows] for name, values in table.items()}
        if episode.number not in self._checked:
            self._check(episode, found)
            self._checked.add(episode.number)
        return found

    @property
    def cached_files(self) -> set[str]:
        """The files of which numbers or images are kept."""
        return {*self._kept, *(file for file, _camera in self._images)}

    def image(self, episode: Episode, frame: int, camera: str) -> bytes:
        """Return the encoded image of a frame of a dataset without videos."""
        place = f"{episode.file}, episode {episode.number}, frame {frame}, field {camera!r}"
        key = (episode.file, camera)
        if key not in self._images:
            self._images[key] = Parquet(File(self._dataset.folder / episode.file), [camera])
        self._images.move_to_end(key)
        value = self._images[key].row(episode.first + frame)[camera]
        evict(self._images, lambda each: each.cached_bytes)
        content = value.get("bytes") if isinstance(value, dict) else None
        if content:
            return bytes(content)
        path = value.get("path") if isinstance(value, dict) else None
        if not path:
            raise DataError(f"{place}: has neither bytes nor the path of an image")
        inside = (self._dataset.folder / path).resolve()
        if not inside.is_relative_to(self._dataset.folder.resolve()) or not inside.is_file():
            raise DataError(f"{place}: {path!r} is not a file in the dataset")
        return inside.read_bytes()

    def _file(self, name: str) -> dict[str, NDArray[Any]]:
        if name not in self._kept:
            self._kept[name] = self._read(name)
            evict(self._kept, _bytes)
        self._kept.move_to_end(name)
        return self._kept[name]

    def _read(self, name: str) -> dict[str, NDArray[Any]]:
        table = read_parquet(self._dataset.folder, name, [*self._columns, *BOOKKEEPING])
        found: dict[str, NDArray[Any]] = {}
        for column in table.column_names:
            values = table[column].combine_chunks()
            if column in BOOKKEEPING:
                found[column] = np.asarray(values.to_numpy(zero_copy_only=False)).reshape(len(table))
                continue
            found[column] = self._vectors(name, column, table, values)
        return found

    def _vectors(self, name: str, column: str, table: Any, values: Any) -> NDArray[np.float32]:
        """Return a column of vectors, [rows, d]; LeRobot writes a vector of one number as a number."""
        from pyarrow import compute, types

        width = self._dataset.width(column)
        lists = types.is_list(values.type) or types.is_large_list(values.type) or types.is_fixed_size_list(values.type)
        if lists:
            lengths = compute.fill_null(compute.list_value_length(values), -1).to_numpy(zero_copy_only=False)
        else:
            lengths = np.ones(len(values), np.int64)
        wrong = np.flatnonzero(lengths != width)
        if len(wrong):
            raise DataError(
                f"{name}, {_place(table, int(wrong[0]))}, field {column!r}: is {str(values[int(wrong[0])])[:60]}, "
                f"expected {width} numbers"
            )
        flat = (values.flatten() if lists else values).to_numpy(zero_copy_only=False)
        return np.asarray(flat, np.float32).reshape(len(table), width)

    def _check(self, episode: Episode, found: Mapping[str, NDArray[Any]]) -> None:
        rows = len(found["index"])
        if rows != episode.length:
            raise DataError(
                f"{episode.file}, episode {episode.number}: has {rows} frames, but the metadata says {episode.length}; "
                "copy the file again"
            )
        numbers = np.arange(rows)
        for name, expected in {
            "episode_index": np.full(rows, episode.number),
            "frame_index": numbers,
            "index": found["index"][0] + numbers,
        }.items():
            wrong = np.flatnonzero(found[name] != expected)
            if len(wrong):
                at = int(wrong[0])
                raise DataError(
                    f"{episode.file}, episode {episode.number}, frame {at}, field {name!r}: is "
                    f"{found[name].tolist()[at]!r}, expected {expected[at]}"
                )
        fps = self._dataset.fps
        since, expected = found["timestamp"] - found["timestamp"][0], np.arange(rows) / fps
        wrong = np.flatnonzero(~(np.abs(since - expected) < 0.5 / fps))
        if len(wrong):
            at = int(wrong[0])
            raise DataError(
                f"{episode.file}, episode {episode.number}, frame {at}, field 'timestamp': is "
                f"{since[at]:g} s after that of frame 0, expected {expected[at]:g} s at the {fps:g} frames per second "
                "of meta/info.json; correct one of them"
            )
        for name in self._columns:
            bad = np.flatnonzero(~np.isfinite(found[name]).all(1))
            if len(bad):
                raise DataError(
                    f"{episode.file}, episode {episode.number}, frame {bad[0]}, field {name!r}: is "
                    f"{found[name][bad[0]].tolist()}; numbers must be finite"
                )
        unknown = np.flatnonzero(~np.isin(found["task_index"], list(self._dataset.tasks)))
        if len(unknown):
            at = int(unknown[0])
            raise DataError(
                f"{episode.file}, episode {episode.number}, frame {at}, field 'task_index': is "
                f"{found['task_index'][at]}, which the tasks of the dataset lack"
            )


def _place(table: Any, row: int) -> str:
    return f"episode {table['episode_index'][row]}, frame {table['frame_index'][row]}"


def _bytes(columns: Mapping[str, NDArray[Any]]) -> int:
    return sum(each.nbytes for each in columns.values())
