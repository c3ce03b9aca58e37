"""LeRobot datasets, versions 2.1 and 3.0: Parquet files of frames, with images in them or videos beside them."""

import hashlib
import json
import math
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchyard_trainers.core.data.files import File
from torchyard_trainers.core.data.parquet import Parquet, evict
from torchyard_trainers.core.exits import DataError

VERSIONS = ("v2.1", "v3.0")
IMAGE_KINDS = ("image", "video")
KINDS = ("min", "max", "mean", "std")  # of statistics
# Columns that every frame has, besides the features of the robot.
BOOKKEEPING = ("timestamp", "frame_index", "episode_index", "index", "task_index")
MAX_JSON_BYTES = 64 << 20
MAX_TEMPLATE = 1000  # characters
_WIDTH = re.compile(r"(0?[0-9]{1,2}d?)?")


@dataclass(frozen=True)
class Episode:
    """One recording.

    Attributes:
        number: its `episode_index`.
        length: frames.
        file: Parquet file with its frames, relative to the dataset.
        first: row of its first frame in that file.
        videos: of each camera that is a video: its file, and the second at which the episode begins there.
    """

    number: int
    length: int
    file: str
    first: int
    videos: Mapping[str, tuple[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class LeRobot:
    """The metadata of a dataset. Frames are read by `Frames`."""

    folder: Path
    version: str
    fps: float
    features: Mapping[str, Mapping[str, Any]]
    episodes: Sequence[Episode]
    tasks: Mapping[int, str]
    statistics: Mapping[str, Mapping[str, list[float]]]
    fingerprint: str

    @property
    def cameras(self) -> list[str]:
        """The features that are images."""
        return [name for name, each in self.features.items() if each["dtype"] in IMAGE_KINDS]

    def width(self, name: str) -> int:
        """Return the size of a feature that is a vector.

        Raises:
            DataError: there is no such feature, or it is not a vector of numbers.
        """
        if name not in self.features:
            raise DataError(f"{self.folder}: no feature {name!r}; it has {', '.join(self.features)}")
        shape, dtype = self.features[name]["shape"], self.features[name]["dtype"]
        if len(shape) != 1 or not dtype.startswith(("float", "int")):
            raise DataError(f"{self.folder}: feature {name!r} is {dtype} {shape}, expected a vector of numbers")
        return int(shape[0])


def open_lerobot(folder: Path) -> LeRobot:
    """Read the metadata of a dataset.

    Raises:
        DataError: it is not a dataset of a known version, or a file of its metadata cannot be used; the message names
            the file, and the episode and field.
    """
    info = _json(folder, "meta/info.json")
    version = info.get("codebase_version")
    if version not in VERSIONS:
        raise DataError(
            f"{folder}/meta/info.json: codebase_version is {version!r}; {' and '.join(VERSIONS)} can be read: convert "
            "the dataset with LeRobot"
        )
    fps, features = info.get("fps"), info.get("features")
    if not isinstance(fps, int | float) or not fps > 0:
        raise DataError(f"{folder}/meta/info.json: fps is {fps!r}, expected frames per second above 0")
    if not isinstance(features, dict) or not all(
        isinstance(each, dict) and isinstance(each.get("dtype"), str) and isinstance(each.get("shape"), list)
        for each in features.values()
    ):
        raise DataError(f"{folder}/meta/info.json: features has no dtype and shape for each feature")
    videos = [name for name, each in features.items() if each["dtype"] == "video"]
    read = _episodes_v2 if version == "v2.1" else _episodes_v3
    episodes = read(folder, info, videos)
    if not episodes:
        raise DataError(f"{folder}: the dataset has no episodes")
    tasks = _tasks_v2(folder) if version == "v2.1" else _tasks_v3(folder)
    statistics = _statistics_v2(folder) if version == "v2.1" else _statistics_v3(folder)
    digest = hashlib.blake2b(json.dumps(info, sort_keys=True).encode(), digest_size=16)
    for file in dict.fromkeys(each.file for each in episodes):
        digest.update(File(folder / file).fingerprint.encode())
    return LeRobot(folder, version, float(fps), features, episodes, tasks, statistics, digest.hexdigest())


def statistics_fault(dataset: LeRobot, name: str) -> str:
    """Return why the statistics of a vector cannot normalise it, with the fix; "" if they can."""
    found, again = dataset.statistics.get(name, {}), "compute the statistics again with LeRobot"
    if missing := [kind for kind in KINDS if kind not in found]:
        return f"the statistics lack {missing[0]!r} of {name!r}; {again}"
    for kind in KINDS:
        if len(found[kind]) != dataset.width(name):
            return (
                f"statistics: {kind!r} of {name!r} has {len(found[kind])} numbers, not {dataset.width(name)}; {again}"
            )
        if not all(map(math.isfinite, found[kind])):
            return f"statistics: {kind!r} of {name!r} is {found[kind]}; numbers must be finite; {again}"
    return ""


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
        table = _parquet(self._dataset.folder, name, [*self._columns, *BOOKKEEPING])
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
        for name, expected in {"episode_index": np.full(rows, episode.number), "frame_index": np.arange(rows)}.items():
            wrong = np.flatnonzero(found[name] != expected)
            if len(wrong):
                at = int(wrong[0])
                raise DataError(
                    f"{episode.file}, episode {episode.number}, frame {at}, field {name!r}: is {found[name][at]}, "
                    f"expected {expected[at]}"
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


def _episodes_v2(folder: Path, info: Mapping[str, Any], videos: Sequence[str]) -> list[Episode]:
    episodes = []
    size = int(info.get("chunks_size", 1000))
    for line, row in enumerate(_json_lines(folder, "meta/episodes.jsonl"), 1):
        where = f"{folder}/meta/episodes.jsonl, line {line}"
        number, length = _number(row, "episode_index", where), _number(row, "length", where, least=1)
        names = {"episode_chunk": number // size, "episode_index": number}
        paths = {key: (_path(info, "video_path", folder, video_key=key, **names), 0.0) for key in videos}
        episodes.append(Episode(number, length, _path(info, "data_path", folder, **names), 0, paths))
    return episodes


def _episodes_v3(folder: Path, info: Mapping[str, Any], videos: Sequence[str]) -> list[Episode]:
    rows: list[tuple[str, Mapping[str, Any]]] = []
    for path in sorted((folder / "meta/episodes").glob("chunk-*/file-*.parquet")):
        name = path.relative_to(folder).as_posix()
        columns = ["episode_index", "length", "data/chunk_index", "data/file_index", "dataset_from_index"]
        parts = ("chunk_index", "file_index", "from_timestamp")
        columns += [f"videos/{key}/{part}" for key in videos for part in parts]
        table = _parquet(folder, name, columns)
        rows += [(f"{name}, record {at + 1}", row) for at, row in enumerate(table.to_pylist())]
    begins: dict[str, int] = {}
    episodes = []
    for where, row in rows:
        place = {"chunk_index": row["data/chunk_index"], "file_index": row["data/file_index"]}
        file = _path(info, "data_path", folder, **place)
        begin = _number(row, "dataset_from_index", where)
        begins[file] = min(begins.get(file, begin), begin)
        paths = {}
        for key in videos:
            at = {part: row[f"videos/{key}/{part}"] for part in ("chunk_index", "file_index")}
            start = row[f"videos/{key}/from_timestamp"]
            paths[key] = (_path(info, "video_path", folder, video_key=key, **at), float(start))
        number, length = _number(row, "episode_index", where), _number(row, "length", where, least=1)
        episodes.append(Episode(number, length, file, begin, paths))
    return [
        Episode(each.number, each.length, each.file, each.first - begins[each.file], each.videos)
        for each in sorted(episodes, key=lambda each: each.number)
    ]


def _tasks_v2(folder: Path) -> dict[int, str]:
    rows = _json_lines(folder, "meta/tasks.jsonl")
    where = f"{folder}/meta/tasks.jsonl"
    return {_number(row, "task_index", where): str(row.get("task", "")) for row in rows}


def _tasks_v3(folder: Path) -> dict[int, str]:
    table = _parquet(folder, "meta/tasks.parquet", None)
    texts = [name for name in table.column_names if name != "task_index"]
    if "task_index" not in table.column_names or len(texts) != 1:
        raise DataError(f"{folder}/meta/tasks.parquet: has {table.column_names}, expected task_index and the texts")
    return {int(row["task_index"]): str(row[texts[0]]) for row in table.to_pylist()}


def _statistics_v3(folder: Path) -> dict[str, dict[str, list[float]]]:
    found = _json(folder, "meta/stats.json")
    return {name: {kind: _flat(values) for kind, values in each.items()} for name, each in found.items()}


def _statistics_v2(folder: Path) -> dict[str, dict[str, list[float]]]:
    """Return the statistics of all episodes together: a variance is the mean of variances and squared means."""
    parts: dict[str, list[dict[str, NDArray[np.float64]]]] = {}
    for row in _json_lines(folder, "meta/episodes_stats.jsonl"):
        for name, each in row.get("stats", {}).items():
            parts.setdefault(name, []).append({kind: np.array(_flat(values)) for kind, values in each.items()})
    merged = {}
    for name, own in parts.items():
        if not all({"min", "max", "mean", "std", "count"} <= set(each) for each in own):
            continue
        count = np.array([each["count"][0] for each in own])[:, None]
        mean = (np.stack([each["mean"] for each in own]) * count).sum(0) / count.sum()
        square = (np.stack([each["std"] ** 2 + each["mean"] ** 2 for each in own]) * count).sum(0) / count.sum()
        merged[name] = {
            "min": np.stack([each["min"] for each in own]).min(0).tolist(),
            "max": np.stack([each["max"] for each in own]).max(0).tolist(),
            "mean": mean.tolist(),
            "std": np.sqrt(np.maximum(square - mean**2, 0)).tolist(),
            "count": [float(count.sum())],
        }
    return merged


def _parquet(folder: Path, name: str, columns: Sequence[str] | None) -> Any:
    from pyarrow import ArrowException, parquet

    path = folder / name
    if not path.is_file():
        raise DataError(f"{path}: does not exist; copy the dataset again")
    try:
        file = parquet.ParquetFile(path)
        names = file.schema_arrow.names
        missing = [each for each in columns or () if each not in names]
        if missing:
            raise DataError(f"{path}: field {missing[0]!r} is missing; the file has {', '.join(names)}")
        return file.read(columns=list(columns) if columns is not None else None, use_threads=False)
    except ArrowException as error:
        raise DataError(f"{path}: not a readable Parquet file: {error}") from error


def _json(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    if not path.is_file():
        raise DataError(f"{path}: does not exist; name the folder of a LeRobot dataset")
    if path.stat().st_size > MAX_JSON_BYTES:
        raise DataError(f"{path}: larger than {MAX_JSON_BYTES >> 20} MiB")
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise DataError(f"{path}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise DataError(f"{path}: is a {type(found).__name__}, expected an object")
    return found


def _json_lines(folder: Path, name: str) -> list[dict[str, Any]]:
    path = folder / name
    if not path.is_file():
        raise DataError(f"{path}: does not exist; copy the dataset again")
    if path.stat().st_size > MAX_JSON_BYTES:
        raise DataError(f"{path}: larger than {MAX_JSON_BYTES >> 20} MiB")
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: is a {type(row).__name__}, expected an object")
        rows.append(row)
    return rows


def _number(row: Mapping[str, Any], name: str, where: str, least: int = 0) -> int:
    value = row.get(name)
    if not isinstance(value, int) or value < least:
        raise DataError(f"{where}: field {name!r} is {value!r}, expected a whole number of {least} or more")
    return value


def _path(info: Mapping[str, Any], template: str, folder: Path, **names: Any) -> str:
    """Fill in a path of `info.json`; it must stay inside the dataset."""
    try:
        path = _filled(str(info[template])[:MAX_TEMPLATE], names)
    except (KeyError, ValueError) as error:
        shown = str(info.get(template))[:100]
        raise DataError(f"{folder}/meta/info.json: {template} {shown!r} cannot be filled in: {error}") from error
    if not (folder / path).resolve().is_relative_to(folder.resolve()):
        raise DataError(f"{folder}/meta/info.json: {template} {path!r} leaves the dataset")
    return path


def _filled(template: str, names: Mapping[str, Any]) -> str:
    """Fill in a template that the dataset brings: plain names, so that it reaches no attribute, and small widths.

    Raises:
        ValueError: a field is another one.
    """
    for _, name, width, conversion in Formatter().parse(template):
        if name is not None and (name not in names or conversion or not _WIDTH.fullmatch(width or "")):
            raise ValueError(f"{{{name}:{width}}} is no field of a path")
    return template.format(**names)


def _place(table: Any, row: int) -> str:
    return f"episode {table['episode_index'][row]}, frame {table['frame_index'][row]}"


def _flat(values: Any) -> list[float]:
    found: list[float] = np.asarray(values, np.float64).reshape(-1).tolist()
    return found


def _bytes(columns: Mapping[str, NDArray[Any]]) -> int:
    return sum(each.nbytes for each in columns.values())
