"""The metadata of LeRobot datasets, versions 2.0, 2.1 and 3.0; `lerobot_frames` reads their frames.

Frames are rows of Parquet files, with images in them or videos beside them.
"""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchyard_trainers.core.data.files import File
from torchyard_trainers.core.data.parquet import decoded
from torchyard_trainers.core.exits import DataError
from torchyard_trainers.core.hub import HEAD, folder_fix, other_than_file
from torchyard_trainers.core.json_text import parse_json

VERSIONS = ("v2.0", "v2.1", "v3.0")
INFO = "meta/info.json"
IMAGE_KINDS = ("image", "video")
KINDS = ("min", "max", "mean", "std")  # of statistics
QUANTILES = ("q01", "q99")  # which newer datasets have as well
MAX_JSON_BYTES = 64 << 20
MAX_RECORDS = 1_000_000  # episodes, and tasks
MAX_TEMPLATE = 1000  # characters
MAX_FPS, MAX_SECONDS = 1e6, 1e12
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
        if len(shape) != 1 or not dtype.startswith(("float", "int", "uint")):
            raise DataError(f"{self.folder}: feature {name!r} is {dtype} {shape}, expected a vector of numbers")
        return int(shape[0])


def open_lerobot(folder: Path) -> LeRobot:
    """Read the metadata of a dataset.

    Raises:
        DataError: it is not a dataset of a known version, or a file of its metadata cannot be used; the message names
            the file, and the episode and field.
    """
    info = _json(folder, INFO)
    version = info.get("codebase_version")
    if version not in VERSIONS:
        raise DataError(
            f"{folder}/meta/info.json: codebase_version is {version!r}; {', '.join(VERSIONS)} can be read: convert the "
            "dataset with LeRobot"
        )
    fps, features = info.get("fps"), info.get("features")
    if not isinstance(fps, int | float) or isinstance(fps, bool) or not 0 < fps <= MAX_FPS:
        raise DataError(
            f"{folder}/meta/info.json: fps is {fps!r}, expected frames per second above 0, up to {MAX_FPS:g}"
        )
    if not isinstance(features, dict) or not all(
        isinstance(each, dict) and isinstance(each.get("dtype"), str) and isinstance(each.get("shape"), list)
        for each in features.values()
    ):
        raise DataError(f"{folder}/meta/info.json: features has no dtype and shape for each feature")
    for name, each in features.items():
        if not all(type(size) is int and size > 0 for size in each["shape"]):
            raise DataError(
                f"{folder}/meta/info.json: the shape of feature {name!r} is {each['shape']}, expected whole numbers of "
                "1 or more"
            )
    videos = [name for name, each in features.items() if each["dtype"] == "video"]
    read = _episodes_v3 if version == "v3.0" else _episodes_v2
    episodes = read(folder, info, videos)
    if not episodes:
        raise DataError(f"{folder}: the dataset has no episodes")
    again = [number for number, times in Counter(each.number for each in episodes).items() if times > 1]
    if again:
        raise DataError(f"{folder}: the metadata lists episode {again[0]} more than once; remove the other entries")
    tasks = _tasks_v3(folder) if version == "v3.0" else _tasks_v2(folder)
    statistics = _of_episodes(folder) if version == "v2.1" else _of_all_frames(folder)
    digest = hashlib.blake2b(json.dumps(info, sort_keys=True).encode(), digest_size=16)
    for file in dict.fromkeys(each.file for each in episodes):
        digest.update(File(folder / file).fingerprint.encode())
    return LeRobot(folder, version, float(fps), features, episodes, tasks, statistics, digest.hexdigest())


def statistics_fault(dataset: LeRobot, name: str, *, quantiles: bool = False) -> str:
    """Return why the statistics of a vector cannot normalise it, with the fix; "" if they can.

    Args:
        dataset: whose statistics they are.
        name: of the vector.
        quantiles: whether `QUANTILES` are needed, too, which version 3.0 has.
    """
    found, again = dataset.statistics.get(name, {}), "compute the statistics again with LeRobot"
    kinds = (*KINDS, *QUANTILES) if quantiles else KINDS
    if missing := [kind for kind in kinds if kind not in found]:
        version = " (version 3.0 has quantiles)" if missing[0] in QUANTILES else ""
        return f"the statistics lack {missing[0]!r} of {name!r}; {again}{version}"
    for kind in kinds:
        if len(found[kind]) != dataset.width(name):
            return (
                f"statistics: {kind!r} of {name!r} has {len(found[kind])} numbers, not {dataset.width(name)}; {again}"
            )
        if not all(map(math.isfinite, found[kind])):
            return f"statistics: {kind!r} of {name!r} is {found[kind]}; numbers must be finite; {again}"
    for low, high in (("min", "max"), *([QUANTILES] if quantiles else [])):
        for least, most in zip(found[low], found[high], strict=True):
            if least > most:
                return f"statistics: {low!r} of {name!r} is {least:g}, above {high!r}, {most:g}; {again}"
    return ""


def _episodes_v2(folder: Path, info: Mapping[str, Any], videos: Sequence[str]) -> list[Episode]:
    episodes = []
    size = _number({"chunks_size": 1000, **info}, "chunks_size", f"{folder}/meta/info.json", least=1)
    for where, row in _json_lines(folder, "meta/episodes.jsonl"):
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
        table = read_parquet(folder, name, columns, MAX_RECORDS - len(rows))
        rows += [(f"{name}, record {at + 1}", row) for at, row in enumerate(table.to_pylist())]
    begins: dict[str, int] = {}
    episodes = []
    for where, row in rows:
        place = {part: _number(row, f"data/{part}", where) for part in ("chunk_index", "file_index")}
        file = _path(info, "data_path", folder, **place)
        begin = _number(row, "dataset_from_index", where)
        begins[file] = min(begins.get(file, begin), begin)
        paths = {}
        for key in videos:
            at = {part: _number(row, f"videos/{key}/{part}", where) for part in ("chunk_index", "file_index")}
            start = _second(row, f"videos/{key}/from_timestamp", where)
            paths[key] = (_path(info, "video_path", folder, video_key=key, **at), start)
        number, length = _number(row, "episode_index", where), _number(row, "length", where, least=1)
        episodes.append(Episode(number, length, file, begin, paths))
    return [
        Episode(each.number, each.length, each.file, each.first - begins[each.file], each.videos)
        for each in sorted(episodes, key=lambda each: each.number)
    ]


def _tasks_v2(folder: Path) -> dict[int, str]:
    rows = _json_lines(folder, "meta/tasks.jsonl")
    return {_number(row, "task_index", where): _text(row, "task", where) for where, row in rows}


def _tasks_v3(folder: Path) -> dict[int, str]:
    table = read_parquet(folder, "meta/tasks.parquet", None, MAX_RECORDS)
    names = table.column_names
    # The texts are the index of a table of pandas, beside which others may have columns of their own.
    texts = [name for name in ("__index_level_0__", "task") if name in names] or [*{*names} - {"task_index"}]
    if "task_index" not in names or len(texts) != 1:
        raise DataError(f"{folder}/meta/tasks.parquet: has {table.column_names}, expected task_index and the texts")
    where = f"{folder}/meta/tasks.parquet"
    return {_number(row, "task_index", where): _text(row, texts[0], where) for row in table.to_pylist()}


def _of_all_frames(folder: Path) -> dict[str, dict[str, list[float]]]:
    """Return the statistics of all episodes, as versions 2.0 and 3.0 have them."""
    if not (folder / "meta/stats.json").exists():
        return {}  # which matters only if they normalise
    found = _json(folder, "meta/stats.json")
    return {name: _kinds(each, name, f"{folder}/meta/stats.json") for name, each in found.items()}


def _of_episodes(folder: Path) -> dict[str, dict[str, list[float]]]:
    """Return the statistics of all episodes from those of each: variances are means of variances and squared means."""
    parts: dict[str, list[dict[str, NDArray[np.float64]]]] = {}
    if not (folder / "meta/episodes_stats.jsonl").exists():
        return {}
    for where, row in _json_lines(folder, "meta/episodes_stats.jsonl"):
        own = row.get("stats", {})
        if not isinstance(own, dict):
            raise DataError(f"{where}: field 'stats' is {own!r}, expected an object")
        for name, each in own.items():
            found = _kinds(each, name, where)
            parts.setdefault(name, []).append({kind: np.array(values) for kind, values in found.items()})
    merged = {}
    for name, episodes in parts.items():
        sizes = {tuple(len(each[kind]) for kind in KINDS if kind in each) for each in episodes}
        if not all({*KINDS, "count"} <= set(each) and len(each["count"]) == 1 for each in episodes) or len(sizes) > 1:
            continue
        count = np.array([each["count"][0] for each in episodes])[:, None]
        mean = (np.stack([each["mean"] for each in episodes]) * count).sum(0) / count.sum()
        square = (np.stack([each["std"] ** 2 + each["mean"] ** 2 for each in episodes]) * count).sum(0) / count.sum()
        merged[name] = {
            "min": np.stack([each["min"] for each in episodes]).min(0).tolist(),
            "max": np.stack([each["max"] for each in episodes]).max(0).tolist(),
            "mean": mean.tolist(),
            "std": np.sqrt(np.maximum(square - mean**2, 0)).tolist(),
            "count": [float(count.sum())],
        }
    return merged


def _kinds(values: Any, name: str, where: str) -> dict[str, list[float]]:
    """Return the statistics of one feature that are used, each as a flat list of numbers."""
    if not isinstance(values, dict):
        raise DataError(f"{where}: the statistics of {name!r} are {str(values)[:60]}, expected an object")
    found = {}
    for kind in (*KINDS, *QUANTILES, "count"):
        if kind not in values:
            continue
        try:
            found[kind] = np.asarray(values[kind], np.float64).reshape(-1).tolist()
        except (ValueError, TypeError, OverflowError) as error:
            raise DataError(
                f"{where}: {kind!r} of {name!r} is {str(values[kind])[:60]}, expected numbers; compute the statistics "
                "again with LeRobot"
            ) from error
    if min(found.get("std", []), default=0) < 0:
        raise DataError(
            f"{where}: 'std' of {name!r} is {found['std']}, expected 0 or more; compute the statistics again with "
            "LeRobot"
        )
    return found


def read_parquet(folder: Path, name: str, columns: Sequence[str] | None, most: int | None = None) -> Any:
    """Return columns of a Parquet file of a dataset as a table of pyarrow; None: all.

    Args:
        folder: of the dataset.
        name: of the file.
        columns: their names.
        most: records that it may have; None: any number.

    Raises:
        DataError: the file is missing, damaged or too large, or lacks a column.
    """
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
        if most is not None and file.metadata.num_rows > most:
            raise DataError(f"{path}: has {file.metadata.num_rows:,} records; at most {MAX_RECORDS:,} are read")
        return decoded(file, path.stat().st_size, columns, range(file.num_row_groups), str(path))
    except ArrowException as error:
        with path.open("rb") as start:
            if other := other_than_file(start.read(HEAD)):
                raise DataError(f"{path} {other}") from error
        raise DataError(f"{path}: not a readable Parquet file: {error}") from error


def _json(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    try:
        found = parse_json(_content(folder, name))
    except ValueError as error:
        raise DataError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise DataError(f"{path}: is a {type(found).__name__}, expected an object")
    return found


def _json_lines(folder: Path, name: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the objects of a file, each with its place for messages; empty lines are skipped."""
    rows = []
    for number, line in enumerate(_content(folder, name).split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"{folder / name}, line {number}"
        try:
            row = parse_json(line)
        except ValueError as error:
            raise DataError(f"{where}: cannot be read as JSON: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{where}: is a {type(row).__name__}, expected an object")
        rows.append((where, row))
    return rows


def _content(folder: Path, name: str) -> bytes:
    """Return a file of the metadata.

    Raises:
        DataError: it is missing, too large, or was not fetched.
    """
    path = folder / name
    if not folder.exists():
        raise DataError(f"{folder} does not exist; {folder_fix(str(folder), 'dataset')}")
    if not path.is_file():
        fix = "copy the dataset again" if (folder / INFO).is_file() else "name the folder of a LeRobot dataset"
        raise DataError(f"{path}: does not exist; {fix}")
    if path.stat().st_size > MAX_JSON_BYTES:
        raise DataError(f"{path}: larger than {MAX_JSON_BYTES >> 20} MiB")
    content = path.read_bytes()
    if other := other_than_file(content):
        raise DataError(f"{path} {other}")
    return content


def _number(row: Mapping[str, Any], name: str, where: str, least: int = 0) -> int:
    value = row.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**63:
        given = repr(value)[:60]
        raise DataError(f"{where}: field {name!r} is {given}, expected a whole number of {least} or more")
    return value


def _second(row: Mapping[str, Any], name: str, where: str) -> float:
    value = row.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= MAX_SECONDS:
        given = repr(value)[:60]
        raise DataError(f"{where}: field {name!r} is {given}, expected a time of 0 seconds or more")
    return float(value)


def _text(row: Mapping[str, Any], name: str, where: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value.strip():
        raise DataError(
            f"{where}: field {name!r} of task {row.get('task_index')} is {value!r}, expected its text, which is the "
            "instruction of its episodes; write one there"
        )
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
