"""Writes small LeRobot datasets, versions 2.1 and 3.0, with images in Parquet files or in videos."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

FPS = 10


def episodes_of(lengths: list[int], *, size: int = 32, seed: int = 0) -> list[dict[str, Any]]:
    """Episodes of two tasks: a bright square moves to the left or right, the action is how far, the state where."""
    random = np.random.default_rng(seed)
    found = []
    for number, length in enumerate(lengths):
        task = number % 2
        at = random.uniform(0.3, 0.7) + np.arange(length + 1) * (0.02 if task else -0.02)
        images = np.full((length, size, size, 3), 40, np.uint8)
        for frame in range(length):
            left = int(at[frame] * (size - 8))
            images[frame, size // 2 - 4 : size // 2 + 4, left : left + 8] = (230, 200 * task, 30)
        state = np.stack([at[:-1], np.full(length, 7.0)], 1).astype(np.float32)
        action = np.diff(at)[:, None].astype(np.float32) * 10
        found.append({"task": task, "state": state, "action": action, "images": images})
    return found


TASKS = ("move left", "move to the right")


def write_lerobot(
    folder: Path, version: str, lengths: list[int], *, video: bool = False, cameras: int = 1, parts: int = 1
) -> Path:
    """Write a dataset, whose actions have so many equal parts; return its folder."""
    episodes = [{**each, "action": each["action"].repeat(parts, 1)} for each in episodes_of(lengths)]
    size = episodes[0]["images"].shape[1]
    names = [f"observation.images.camera{number}" for number in range(cameras)]
    kind = "video" if video else "image"
    features = {
        "observation.state": {"dtype": "float32", "shape": [2], "names": ["position", "constant"]},
        "action": {"dtype": "float32", "shape": [parts], "names": ["step", "again"][:parts]},
        **{name: {"dtype": kind, "shape": [size, size, 3], "names": ["height", "width", "channels"]} for name in names},
    }
    v3 = version == "v3.0"
    info = {
        "codebase_version": version,
        "fps": FPS,
        "total_episodes": len(lengths),
        "total_frames": sum(lengths),
        "chunks_size": 1000,
        "features": features,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
        if v3
        else "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
        if v3
        else "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    }
    (folder / "meta").mkdir(parents=True)
    (folder / "meta/info.json").write_text(json.dumps(info))
    tables, begin = [], 0
    for number, episode in enumerate(episodes):
        tables.append(_table(number, begin, episode, [] if video else names))
        begin += len(episode["state"])
    if v3:
        _write_v3(folder, episodes, tables, names if video else [])
    else:
        _write_v2(folder, episodes, tables, names if video else [], version)
    return folder


def rename_features(folder: Path, names: dict[str, str]) -> None:
    """Rename features of a dataset of version 3.0, in its metadata and frames."""
    for path in (folder / "meta/info.json", folder / "meta/stats.json"):
        tree = json.loads(path.read_text())
        part = tree.get("features", tree)
        for old, new in names.items():
            if old in part:
                part[new] = part.pop(old)
        path.write_text(json.dumps(tree))
    for path in folder.glob("data/*/*.parquet"):
        table = parquet.read_table(path)
        _save(table.rename_columns([names.get(each, each) for each in table.column_names]), path)


def _table(number: int, begin: int, episode: dict[str, Any], images: list[str]) -> Any:
    length, one = len(episode["state"]), episode["action"].shape[1] == 1  # which is written as a number
    columns: dict[str, Any] = {
        "observation.state": pa.array(episode["state"].tolist(), pa.list_(pa.float32(), 2)),
        "action": pa.array(episode["action"].squeeze(1).tolist() if one else episode["action"].tolist()),
        "timestamp": pa.array(np.arange(length, dtype=np.float32) / FPS),
        "frame_index": pa.array(np.arange(length)),
        "episode_index": pa.array(np.full(length, number)),
        "index": pa.array(np.arange(begin, begin + length)),
        "task_index": pa.array(np.full(length, episode["task"])),
    }
    for name in images:
        columns[name] = pa.array(
            [{"bytes": _png(each), "path": None} for each in episode["images"]],
            pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
        )
    return pa.table(columns)


def _write_v2(folder: Path, episodes: list[dict[str, Any]], tables: list[Any], videos: list[str], version: str) -> None:
    for number, (episode, table) in enumerate(zip(episodes, tables, strict=True)):
        _save(table, folder / f"data/chunk-000/episode_{number:06d}.parquet")
        for name in videos:
            _video([episode], folder / f"videos/chunk-000/{name}/episode_{number:06d}.mp4")
    rows = [
        {"episode_index": number, "tasks": [TASKS[each["task"]]], "length": len(each["state"])}
        for number, each in enumerate(episodes)
    ]
    _lines(folder / "meta/episodes.jsonl", rows)
    _lines(folder / "meta/tasks.jsonl", [{"task_index": number, "task": text} for number, text in enumerate(TASKS)])
    if version == "v2.0":
        every = {
            name: {kind: each[kind] for kind in each if kind != "count"} for name, each in _statistics(episodes).items()
        }
        (folder / "meta/stats.json").write_text(json.dumps(every))
        return
    statistics = [{"episode_index": number, "stats": _statistics([each])} for number, each in enumerate(episodes)]
    _lines(folder / "meta/episodes_stats.jsonl", statistics)


def _write_v3(folder: Path, episodes: list[dict[str, Any]], tables: list[Any], videos: list[str]) -> None:
    # Two files, so that rows of the second one do not begin at 0 of the dataset.
    half = (len(tables) + 1) // 2
    rows, begin = [], 0
    for file, numbers in enumerate((range(half), range(half, len(tables)))):
        if not numbers:
            continue
        _save(
            pa.concat_tables([tables[number] for number in numbers]), folder / f"data/chunk-000/file-{file:03d}.parquet"
        )
        for name in videos:
            _video([episodes[number] for number in numbers], folder / f"videos/{name}/chunk-000/file-{file:03d}.mp4")
        second = 0.0
        for number in numbers:
            length = len(tables[number])
            row = {
                "episode_index": number,
                "tasks": [TASKS[episodes[number]["task"]]],
                "length": length,
                "data/chunk_index": 0,
                "data/file_index": file,
                "dataset_from_index": begin,
                "dataset_to_index": begin + length,
            }
            for name in videos:
                row |= {f"videos/{name}/chunk_index": 0, f"videos/{name}/file_index": file}
                row |= {f"videos/{name}/from_timestamp": second, f"videos/{name}/to_timestamp": second + length / FPS}
            rows.append(row)
            begin, second = begin + length, second + length / FPS
    _save(pa.Table.from_pylist(rows), folder / "meta/episodes/chunk-000/file-000.parquet")
    tasks = pa.table({"task_index": list(range(len(TASKS))), "__index_level_0__": list(TASKS)})
    _save(tasks, folder / "meta/tasks.parquet")
    (folder / "meta/stats.json").write_text(json.dumps(_statistics(episodes)))


def _statistics(episodes: list[dict[str, Any]]) -> dict[str, Any]:
    found = {}
    for name, key in (("observation.state", "state"), ("action", "action")):
        values = np.concatenate([each[key] for each in episodes]).astype(np.float64)
        found[name] = {
            "min": values.min(0).tolist(),
            "max": values.max(0).tolist(),
            "mean": values.mean(0).tolist(),
            "std": values.std(0).tolist(),
            "count": [len(values)],
        }
    return found


def _png(pixels: Any) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def _video(episodes: list[dict[str, Any]], path: Path) -> None:
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"crf": "10", "g": "4"})
        stream.height, stream.width = episodes[0]["images"].shape[1:3]
        stream.pix_fmt = "yuv444p"
        for pixels in np.concatenate([each["images"] for each in episodes]):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())


def _save(table: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path)


def _lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
