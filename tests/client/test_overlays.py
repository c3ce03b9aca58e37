"""Curves of many runs on one axis: their means, extremes and gaps, and files without an index."""

import json
import math

from torchyard.client import histories, overlays
from torchyard.client.histories import INDEX
from torchyard.client.overlays import of_files


def write(folder, name, values, every=1):
    path = folder / name / "metrics.jsonl"
    path.parent.mkdir()
    rows = ({"step": step * every, "loss": value, "lr": 1.0} for step, value in enumerate(values))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_runs_of_any_length_have_cells_of_one_width(tmp_path):
    paths = {
        "short": write(tmp_path, "short", [1.0, "NaN", 3.0]),
        "long": write(tmp_path, "long", [float(step % 2) + 100 * (step == 777) for step in range(4000)]),
        "sparse": write(tmp_path, "sparse", [5.0, 6.0], every=2000),
        "none": tmp_path / "none" / "metrics.jsonl",
    }
    found = of_files(paths, "")
    assert (found.metric, found.metrics, found.width, found.without) == ("loss", ["loss", "lr"], 8.0, 1)
    short, long, sparse = found.lines
    assert (list(short.cells), short.last, short.low, short.high, short.bad) == ([2.0], 3.0, 1.0, 3.0, 1)
    assert (len(long.cells), long.cells[0], long.high, long.step) == (500, 0.5, 101.0, 3999)
    assert [place for place, value in enumerate(sparse.cells) if not math.isnan(value)] == [0, 250]


def test_files_without_an_index_are_read_over_several_requests(tmp_path, monkeypatch):
    monkeypatch.setattr(overlays, "MOST_BYTES", 1)
    for module in (overlays, histories):
        monkeypatch.setattr(module, "SMALL_BYTES", 1000)
    values = [1.5] * 500
    paths = {each: write(tmp_path, each, values) for each in ("one", "two", "three")}
    assert [of_files(paths, "loss").later for _ in range(3)] == [2, 1, 0]
    assert all(path.with_name(INDEX).is_file() for path in paths.values())
    assert {line.last for line in of_files(paths, "loss").lines} == {1.5}


def test_a_value_too_large_for_the_drawing_is_a_gap(tmp_path):
    (line,) = of_files({"run": write(tmp_path, "run", [1.0, 1e300, -1e300])}, "loss").lines
    assert math.isnan(line.cells[1])
    assert (line.low, line.high) == (-1e300, 1e300)
