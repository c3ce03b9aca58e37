"""Files that are read from a copy, and folders of `save_to_disk`: the records that other programs read in them."""

import csv
import gzip
import json

import numpy as np
import pyarrow as pa
import pytest

from torchyard_trainers.core.data import cache, copied
from torchyard_trainers.core.data.opening import open_rows
from torchyard_trainers.core.exits import DataError

TABLE = [{"prompt": 'a, "quoted"\nline', "completion": "1"}, {"prompt": "ü", "completion": None}]


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    """Copies of this test alone."""
    monkeypatch.setattr(cache.tempfile, "gettempdir", lambda: str(tmp_path))


def everything(found):
    return [found.row(index) for index in range(len(found))]


def table(path, delimiter=","):
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["", *TABLE[0]])  # as pandas names the index
        writer.writerows([number, *row.values()] for number, row in enumerate(TABLE))
    return path


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("b.csv", ";"), ("c.tsv", "\t")])
def test_cells_of_tables_are_texts_and_empty_ones_null(tmp_path, name, delimiter):
    path = table(tmp_path / name, delimiter)
    assert everything(open_rows([str(path)])) == TABLE
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    found = open_rows([str(packed)])
    assert (everything(found), found.where(1)) == (TABLE, f"{name}.gz, record 2")


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("block", [7, 1 << 20])
def test_a_json_array_is_read_in_blocks_of_any_size(tmp_path, monkeypatch, block, indent):
    monkeypatch.setattr(copied, "BLOCK", block)
    rows = [{"text": ']}[{\\"', "n": {"a": [1, None]}}, {}, {"text": "ü" * 40}]
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=indent))
    assert everything(open_rows([str(tmp_path / "a.json")])) == rows


def test_compressed_lines_of_json_and_of_text_are_records(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n\n{"a": 2}'))
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(b'\n{"a": 1}\n{"a": 2}\n'))
    (tmp_path / "c.txt").write_bytes(b"\xef\xbb\xbfone\r\n\r\n two")
    assert everything(open_rows([f"{tmp_path}/*.gz"])) == [{"a": 1}, {"a": 2}] * 2
    assert everything(open_rows([str(tmp_path / "c.txt")])) == [{"text": "one"}, {"text": " two"}]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"a,b\n1,2\n1,2,3\n", "a.csv, record 2: line 3 has 3 cells, and the header 2"),
        ("a.json", b'[{"a": 1}, 7]', "a.json, record 2: expected a JSON object, found a number"),
        ("a.jsonl.gz", gzip.compress(b"{}\n{\n", mtime=0), "a.jsonl.gz, record 2: line 2 is not a JSON object"),
    ],
)
def test_one_bad_record_of_a_copy_is_named_when_it_is_read(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    found = open_rows([str(tmp_path / name)])
    found.row(0)
    with pytest.raises(DataError, match=words):
        found.row(1)


def test_a_small_gzip_file_does_not_fill_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(copied, "MOST_DECOMPRESSED", 1 << 20)
    (tmp_path / "bomb.txt.gz").write_bytes(gzip.compress(b"x\n" * (4 << 20)))
    with pytest.raises(DataError, match=r"bomb.txt.gz: [0-9,]+ bytes decompress to more than 1 MiB"):
        open_rows([str(tmp_path / "bomb.txt.gz")])
    assert not list(cache.own_folder().glob("*.part*"))
    assert not list(cache.own_folder().glob("*.jsonl"))


def test_a_file_is_copied_once_while_its_content_stays(tmp_path, monkeypatch):
    path, reports = table(tmp_path / "a.csv"), []
    monkeypatch.setattr(copied, "_write", lambda *a, write=copied._write: (reports.append(a[1].name), write(*a))[1])
    first, again = (open_rows([str(path)]).fingerprint for _ in range(2))
    path.write_text("prompt\nother\n")
    other = open_rows([str(path)])
    assert (first == again, everything(other), reports) == (True, [{"prompt": "other"}], ["a.csv", "a.csv"])
    assert other.fingerprint != first


def saved(folder, rows, size=2):
    """Write what `Dataset.save_to_disk` of datasets 4 does: streams of Arrow, and a file that lists them."""
    folder.mkdir(parents=True)
    whole = pa.Table.from_pylist(rows)
    with (
        pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as file,
        pa.ipc.new_stream(file, whole.schema) as out,
    ):
        out.write_table(whole, max_chunksize=size)
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_fingerprint": "5c", "_split": None}
    (folder / "state.json").write_text(json.dumps(state))


def test_folders_of_save_to_disk_are_read_by_split(tmp_path):
    rows = [{"text": str(number), "n": [number]} for number in range(5)]
    saved(tmp_path / "one", rows)
    assert everything(open_rows([str(tmp_path / "one")])) == rows
    saved(tmp_path / "all" / "train_sft", rows)
    saved(tmp_path / "all" / "validation", rows[:2])
    (tmp_path / "all" / "dataset_dict.json").write_text(json.dumps({"splits": ["train_sft", "validation"]}))
    for split, expected in (("train_sft", rows), ("dev", rows[:2])):
        assert everything(open_rows([str(tmp_path / "all")], split=split)) == expected
    for split, words in ((None, "has the splits train_sft, validation, and"), ("test", "has no split 'test'; it has")):
        with pytest.raises(DataError, match=words):
            open_rows([str(tmp_path / "all")], split=split)


@pytest.mark.parametrize("name", ["../secret.arrow", "/etc/passwd", 7])
def test_a_state_that_names_files_elsewhere_is_an_error(tmp_path, name):
    saved(tmp_path / "one", [{"text": "a"}])
    (tmp_path / "one" / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    with pytest.raises(DataError, match=r"state.json: names no files of data; save the dataset again"):
        open_rows([str(tmp_path / "one")])


def test_a_damaged_batch_is_an_error_of_the_data(tmp_path):
    saved(tmp_path / "one", [{"text": "x" * 100}] * 4)
    path = next((tmp_path / "one").glob("*.arrow"))
    content = bytearray(path.read_bytes())
    at = content.index(np.array([0, 100, 200], "<i4").tobytes())  # offsets of the first batch
    content[at : at + 12] = np.array([0, 2**30, 2**30], "<i4").tobytes()
    path.write_bytes(content)
    with pytest.raises(
        DataError, match=r"data-00000-of-00001.arrow, record 1: cannot be read: .*; write the file again"
    ):
        open_rows([str(tmp_path / "one")]).row(0)
