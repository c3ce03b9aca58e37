"""Recordings of your own as a LeRobot dataset (version 2.0), without LeRobot: python own_dataset.py recordings"""

import io
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
from own_robot import Reach
from PIL import Image
from pyarrow import parquet

TASK, FPS, FILE = "reach the red disc", 10, "data/chunk-000/episode_{episode_index:06d}.parquet"
folder, robot, seen_of_all, rows = Path(sys.argv[1]), Reach(), [], []
for name in ("data/chunk-000", "meta"):
    (folder / name).mkdir(parents=True)
for episode in range(100):
    (seen, _), frames, done = robot.reset(seed=episode), [], False
    while not done:  # record one episode
        content, action, at = io.BytesIO(), robot.expert(), len(frames)
        Image.fromarray(seen["pixels"]).save(content, "PNG")
        place = {"timestamp": at / FPS, "frame_index": at, "episode_index": episode, "index": len(seen_of_all) + at}
        vectors = {"observation.state": seen["agent_pos"].tolist(), "action": action.tolist()}
        frames.append({**vectors, "observation.image": {"bytes": content.getvalue()}, **place, "task_index": 0})
        seen, _, done, _, _ = robot.step(action)
    parquet.write_table(pa.Table.from_pylist(frames), folder / FILE.format(episode_index=episode))
    rows.append({"episode_index": episode, "tasks": [TASK], "length": len(frames)})
    seen_of_all += frames
stats, kinds = {}, {"min": np.min, "max": np.max, "mean": np.mean, "std": np.std}
for name in vectors:
    values = np.array([frame[name] for frame in seen_of_all])
    stats[name] = {kind: of(values, 0).tolist() for kind, of in kinds.items()}
features = {name: {"dtype": "float32", "shape": [2]} for name in vectors}
features["observation.image"] = {"dtype": "image", "shape": list(seen["pixels"].shape)}
info = {"codebase_version": "v2.0", "fps": FPS, "features": features, "data_path": FILE}
files = {"info.json": [info], "stats.json": [stats], "episodes.jsonl": rows}
for name, tree in {**files, "tasks.jsonl": [{"task_index": 0, "task": TASK}]}.items():
    (folder / "meta" / name).write_text("".join(json.dumps(each) + "\n" for each in tree))
