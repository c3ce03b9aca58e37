"""Records of files: JSON lines, Parquet and tokens, on this machine and behind a URL."""

import datetime as dt
import gzip
import json
import multiprocessing
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from torchyard_trainers.core.data import files, jsonl
from torchyard_trainers.core.data import parquet as parquet_rows
from torchyard_trainers.core.data.files import File
from torchyard_trainers.core.data.jsonl import JsonLines
from torchyard_trainers.core.data.mixture import Mixture, hold_out
from torchyard_trainers.core.data.opening import open_rows
from torchyard_trainers.core.data.rows import BadRecordError, InMemory, field_of
from torchyard_trainers.core.exits import DataError, Exit, StorageError, exit_code


def records(count):
    return [{"text": "x" * (number % 7), "number": number} for number in range(count)]


def lines(path, found):
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return str(path)


def everything(found):
    return [found.row(index) for index in range(len(found))]


@given(
    st.lists(st.text("ab \t\r", max_size=5), max_size=30),
    st.integers(1, 9),
    st.integers(2, 6),
    st.sampled_from(["", "\n"]),
)
def test_lines_are_found_at_any_block_size_and_any_stride(texts, block, most, end):
    content = ("\n".join(texts) + end).encode()

    class Memory(File):
        size = len(content)

        def read(self, start, end):
            return content[start:end]

        def blocks(self, size=block):
            return super().blocks(size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl, "OFFSETS", most)
        found = JsonLines(Memory("memory.jsonl")) if content.strip() else []
        expected = [(number, text) for number, text in enumerate(content.split(b"\n"), 1) if text.strip()]
        assert [found._find(index) for index in range(len(found))] == expected
    assert not expected or len(found._offsets) == len(found._lines) <= most


def test_json_lines_are_read_in_any_order(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "OFFSETS", 16)
    found = open_rows([lines(tmp_path / "train.jsonl", records(1000))])
    assert len(found) == 1000
    assert [found.row(index)["number"] for index in (999, 0, 500, 501)] == [999, 0, 500, 501]
    assert everything(found) == records(1000)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "train.jsonl, line 3: not a JSON object: Expecting property name"),
        ("[1]", "train.jsonl, line 3: expected a JSON object, found list"),
        ('{"a": "\\ud83d\\ude00", "b": ["\\ud800"]}', "train.jsonl, line 3: field 'b' has half of a pair of escapes"),
        ("[" * 100_000, "train.jsonl, line 3: cannot be read as JSON: it is nested too deeply"),
        (
            '{"id": ' + "9" * 5000 + "}",
            "train.jsonl, line 3: cannot be read as JSON: it has an integer of more than 4,300 digits",
        ),
        ('{"text": "\udcff"}', "train.jsonl, line 3: not a JSON object in UTF-8: "),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path, line, words):
    path = tmp_path / "train.jsonl"
    path.write_bytes(b"{}\n\n" + line.encode("utf-8", "surrogateescape") + b"\n{}\n \n")
    found = JsonLines(File(path))
    assert len(found) == 3
    with pytest.raises(DataError) as error:
        found.row(1)
    assert str(error.value).startswith(words)
    assert exit_code(error.value) == Exit.DATA


def test_a_line_without_an_end_takes_no_memory_without_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "LONGEST_LINE", 100)
    (tmp_path / "long.jsonl").write_text("{}\n" + "x" * 500)
    monkeypatch.setattr(File, "blocks", lambda file: (file.read(at, at + 64) for at in range(0, file.size, 64)))
    with pytest.raises(DataError, match=r"long.jsonl, line 2: 125 bytes or more; a line has at most 100"):
        JsonLines(File(tmp_path / "long.jsonl"))


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 90071992\n"
KINDS = ("jsonl", "parquet", "npy", "bin")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("missing.jsonl", None, "missing.jsonl: No such file or directory; check the path"),
        ("empty.jsonl", b" \n", "the file has no records"),
        ("text.csv", b"a,b\n", "the file has no records"),
        ("book.xlsx", b"PK", "ends with .jsonl, .json, .csv, .txt, .parquet, .arrow, .bin or .npy; convert it: pandas"),
        ("data-00000-of-00001.arrow", b"ARROW1", "not an Arrow file"),
        ("all.json", b'[{"text": "a"}, {', "all.json, behind record 1: not a JSON array of records"),
        ("more.json", b'[{"text": "a"}] {}', "behind record 1: not a JSON array of records: something follows the arr"),
        ("train.jsonl.gz", b"..", "cannot be decompressed: Not a gzipped file"),
        (
            "half.csv.gz",
            gzip.compress(b"a,b\n" * 99, mtime=0)[:-9],
            "cannot be decompressed: Compressed file ended before",
        ),
        ("broken.parquet", b"PAR1", "not a Parquet file"),
        (
            "zipped.jsonl",
            b"\x1f\x8b\x08\x00",
            "the content is compressed, and cannot be read in any order; decompress it",
        ),
        ("wide.jsonl", "{}\n{}".encode("utf-16"), "the text is UTF-16; convert it to UTF-8"),
        (
            "array.jsonl",
            b"\xef\xbb\xbf [\n{},\n{}]",
            "it begins with a JSON array; write one object a line, or let its",
        ),
        ("old.jsonl", b"{}\r{}\r", "lines end with a carriage return alone"),
        ("few.bin", b"1234", "2 tokens, but a window needs 9"),
        ("odd.bin", b"12345", "5 bytes are no whole number of uint16"),
        ("broken.npy", b"\x93NUMPY\x01\x00\x02\x00[]", "not a .npy file"),
        ("deep.npy", b"\x93NUMPY\x01\x00\xff\xff" + b"-" * 70_000, "not a .npy file"),
        *((f"git.{kind}", POINTER, "is a pointer of Git LFS, not the file; run git lfs pull") for kind in KINDS),
        *((f"page.{kind}", b"<!DOCTYPE html>\n<p>Log in", "is a web page, not the file; download") for kind in KINDS),
        ("long.npy", b"\x93NUMPY\x01\x00\xff\xff1" + b"+1j" * 20_000, "not a .npy file"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error_of_the_data(tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as error:
        open_rows([str(tmp_path / name)], window=8)
    assert words in str(error.value)


def test_a_url_needs_its_package_and_a_pattern_a_file(tmp_path):
    with pytest.raises(DataError, match=r"abfs://bucket/train.jsonl: Install adlfs to access .*; add the package"):
        open_rows(["abfs://bucket/train.jsonl"])
    with pytest.raises(DataError, match=r"no file matches"):
        open_rows([f"{tmp_path}/*.jsonl"])


def test_a_numbered_file_that_a_pattern_should_match_must_exist(tmp_path):
    for number in (0, 2):
        lines(tmp_path / f"train-0000{number}-of-00003.jsonl", records(2))
    for pattern in ("*.jsonl", "train-0000?-of-00003.jsonl", "train-*"):
        with pytest.raises(
            DataError, match=r"train-00001-of-00003.jsonl is missing, but others of its files are there"
        ):
            open_rows([f"{tmp_path}/{pattern}"])
    assert len(open_rows([f"{tmp_path}/train-0000[02]-of-00003.jsonl"])) == 4, "a part that is wanted"
    lines(tmp_path / "data[1].jsonl", records(3))
    assert len(open_rows([f"{tmp_path}/data[1].jsonl"])) == 3, "a file whose name looks like a pattern"


def test_byte_order_mark_and_line_ends_of_windows_are_no_part_of_records(tmp_path):
    (tmp_path / "w.jsonl").write_bytes(b"\xef\xbb\xbf" + b'{"a": 1}\r\n{"a": 2}\r\n')
    assert everything(open_rows([str(tmp_path / "w.jsonl")])) == [{"a": 1}, {"a": 2}]


def test_values_of_parquet_are_those_of_python_or_are_named(tmp_path):
    moment = 1_700_000_000_000_000_123
    times = {
        "at": pa.array([moment], pa.timestamp("ns", "UTC")),
        "since": pa.array([moment], pa.duration("ns")),
        "clock": pa.array([3723_000_000_123], pa.time64("ns")),
    }
    parquet.write_table(pa.table({"text": ["a"], **times}), tmp_path / "times.parquet")
    row = open_rows([str(tmp_path / "times.parquet")]).row(0)
    assert row["at"] == dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC)
    assert (row["since"].total_seconds(), row["clock"]) == (1_700_000_000, dt.time(1, 2, 3))
    bad = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe"))
    for name, column in {"latin1": bad, "year": pa.array([10**18], pa.timestamp("us"))}.items():
        parquet.write_table(pa.table({"text": ["a"], "x": column}), tmp_path / f"{name}.parquet")
        with pytest.raises(DataError, match=rf"{name}.parquet, record 1: has a value that Python cannot hold: "):
            open_rows([str(tmp_path / f"{name}.parquet")]).row(0)


def test_damaged_pages_of_parquet_are_an_error_of_the_data(tmp_path):
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"text": [str(number) * 50 for number in range(300)]}), path, use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[4:200] = b"\xff" * 196
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"t.parquet, row group 0: .*; copy the file again$"):
        open_rows([str(path)]).row(0)


def test_a_small_parquet_file_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_rows, "MOST_DECODED", 1 << 20)
    path = tmp_path / "bomb.parquet"
    parquet.write_table(pa.table({"text": ["x" * 1000] * 5000}), path)
    assert path.stat().st_size < 8000
    with pytest.raises(DataError, match=r"bomb.parquet: [0-9,]+ bytes decode to more than 1 MiB"):
        open_rows([str(path)]).row(0)


@pytest.mark.parametrize("name", ["pipe.jsonl", "pipe.parquet"])
def test_a_pipe_is_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match=f"{name}: neither a file nor a folder; copy its content into a file"):
        open_rows([str(tmp_path / name)])


def test_a_folder_is_the_files_in_it_or_names_what_to_do(tmp_path):
    data, saved = tmp_path / "snapshot" / "data", tmp_path / "saved" / "train"
    data.mkdir(parents=True)
    saved.mkdir(parents=True)
    lines(data / "b.jsonl", records(9)[5:])
    lines(data / "a.jsonl", records(9)[:5])
    (data / "README.md").touch()
    assert everything(open_rows([str(data)])) == records(9)
    with pytest.raises(DataError, match=r"name the files below it, such as .*snapshot/data/\*\.jsonl"):
        open_rows([str(data.parent)])
    (saved / "data-00000-of-00001.arrow").touch()
    with pytest.raises(DataError, match=r"saved: the folder has no files that end with .*/saved/train/\*\.arrow"):
        open_rows([str(saved.parent)])
    (data / "b.csv").touch()
    with pytest.raises(DataError, match=r"files of several kinds \(a.jsonl, b.csv\), which may hold the same records"):
        open_rows([str(data)])


SPLITS = ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001", "data/validation/0")


@pytest.mark.parametrize(
    ("names", "split", "expected"),
    [
        (SPLITS[:3], None, "has the splits test, train, and training on all of them leaves nothing .* choose one with"),
        (SPLITS[:3], "train", [0, 1]),
        (SPLITS, "dev", [3]),
        (SPLITS[:3], "validation", "has no split 'validation'; its files are of test, train"),
        (SPLITS[3:], "validation", [0]),
        (("train_sft-00000-of-00001", "train_gen-00000-of-00001"), "train", "may be each of .* train_gen, train_sft"),
        (("train_sft-00000-of-00001", "test_sft-00000-of-00001"), "train", [0]),
        (("a", "test"), None, r"has the splits \(no split\), test"),
        (("my.train", "my.test"), None, "has the splits test, train"),
        (("train1", "train2", "contest"), None, [0, 1, 2]),
        (("chats-00000-of-00001", "math-00000-of-00001"), None, [0, 1]),
    ],
)
def test_splits_of_a_folder_or_pattern_are_not_mixed(tmp_path, names, split, expected):
    folder = tmp_path / "test-of-splits"
    for number, name in enumerate(names):
        path = folder / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines(path, [{"file": number}])
    for url in (str(folder), f"{folder}/**/*.jsonl"):
        if isinstance(expected, str):
            with pytest.raises(DataError, match=expected):
                open_rows([url], split=split)
        else:
            assert sorted(row["file"] for row in everything(open_rows([url], split=split))) == expected


def test_lines_in_a_json_file_are_records(tmp_path):
    lines(tmp_path / "a.json", records(3))
    assert everything(open_rows([str(tmp_path / "a.json")])) == records(3)


def test_a_name_that_is_too_long_is_no_file():
    with pytest.raises(DataError, match="File name too long"):
        open_rows(["x" * 300 + ".jsonl"])


@pytest.mark.parametrize("given", ["owner/set", "https://huggingface.co/datasets/owner/set"])
def test_the_name_of_a_dataset_on_the_hub_is_not_taken_for_a_file(given):
    with pytest.raises(DataError, match=r"name its files: hf://datasets/owner/set/\*\*/\*\.parquet"):
        open_rows([given])


def test_several_files_are_one_set(tmp_path):
    lines(tmp_path / "b.jsonl", records(9)[5:])
    lines(tmp_path / "a.jsonl", records(9)[:5])
    found = open_rows([f"{tmp_path}/*.jsonl"])
    assert everything(found) == records(9)
    assert found.where(5) == "b.jsonl, line 1"


def test_parquet_is_read_by_row_groups_and_keeps_few_of_them(tmp_path, monkeypatch):
    path = tmp_path / "train.parquet"
    table = pa.Table.from_pylist(records(100))
    parquet.write_table(table, path, row_group_size=8)
    assert everything(open_rows([str(path)])) == records(100)
    monkeypatch.setattr(parquet_rows, "CACHED", 300)
    found = open_rows([str(path)])
    assert [found.row(index)["number"] for index in (99, 0, 50)] == [99, 0, 50]
    assert len(found._kept) <= 2
    assert found.cached_bytes == sum(table.nbytes for table in found._kept.values()) > 0
    assert found.where(50) == "train.parquet, record 51"
    assert open_rows([str(path)], columns=["text"]).row(6) == {"text": "x" * 6}
    with pytest.raises(DataError, match=r"field 'prompt' is missing; the file has text, number"):
        open_rows([str(path)], columns=["prompt"])


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_windows_of_tokens_overlap_by_the_target_of_their_last_token(tmp_path, dtype):
    tokens = np.arange(30, dtype=dtype)
    tokens.tofile(tmp_path / "t.bin")
    np.save(tmp_path / "t.npy", tokens)
    for name in ("t.bin", "t.npy"):
        found = open_rows([str(tmp_path / name)], window=7, dtype=dtype)
        assert [row["tokens"].tolist() for row in everything(found)] == [
            list(range(at, at + 8)) for at in range(0, 28, 7)
        ]


class Ranges(BaseHTTPRequestHandler):
    """Serves byte ranges of files, as an object store does."""

    content: dict
    broken = 0

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, *, body):
        if self.path not in self.content:
            self.send_error(404)
            return
        if type(self).broken and body:
            type(self).broken -= 1
            self.send_error(503)
            return
        found, code = self.content[self.path], 200
        total = len(found)
        if asked := self.headers.get("Range"):
            first, last = asked.removeprefix("bytes=").split("-")
            found, code = found[int(first) : int(last) + 1 if last else None], 206
        self.send_response(code)
        self.send_header("Content-Length", str(len(found)))
        self.send_header("Accept-Ranges", "bytes")
        if code == 206:
            self.send_header("Content-Range", f"bytes {first}-{int(first) + len(found) - 1}/{total}")
        self.end_headers()
        if body:
            self.wfile.write(found)

    def log_message(self, *_):
        pass


@pytest.fixture
def store(tmp_path):
    handler = type("Handler", (Ranges,), {"content": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    handler.url = f"http://127.0.0.1:{server.server_port}"
    yield handler
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_remote_file_is_read_by_ranges_also_in_forked_processes(tmp_path, store):
    lines(tmp_path / "t.jsonl", records(50))
    parquet.write_table(pa.Table.from_pylist(records(50)), tmp_path / "t.parquet", row_group_size=9)
    np.arange(51, dtype="<u2").tofile(tmp_path / "t.bin")
    for name in ("t.jsonl", "t.parquet", "t.bin"):
        store.content[f"/{name}"] = (tmp_path / name).read_bytes()
        local = open_rows([str(tmp_path / name)], window=5)
        remote = open_rows([f"{store.url}/{name}"], window=5)
        assert remote.fingerprint == local.fingerprint
        assert str(everything(remote)) == str(everything(local))
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert str(pool.map(remote.row, range(len(local)))) == str(everything(local))


def test_an_error_of_a_remote_store_that_passes_is_tried_again_and_one_that_stays_is_storage(store, monkeypatch):
    monkeypatch.setattr(files, "PAUSE", 0.0)
    store.content["/t.jsonl"] = b'{"a": 1}\n'
    found = open_rows([f"{store.url}/t.jsonl"])
    store.broken = 2
    assert found.row(0) == {"a": 1}
    store.broken = 99
    with pytest.raises(StorageError, match=r"t.jsonl cannot be read: ClientResponseError: 503") as error:
        found.row(0)
    assert exit_code(error.value) == Exit.STORAGE
    with pytest.raises(DataError, match=r"other.jsonl: it does not exist"):
        open_rows([f"{store.url}/other.jsonl"])


def test_files_in_any_file_system_of_fsspec_can_have_wildcards():
    with fsspec.open("memory://set/a.jsonl", "wb") as file:
        file.write(b'{"a": 1}\n{"a": 2}')
    assert everything(open_rows(["memory://set/*.jsonl"])) == [{"a": 1}, {"a": 2}]


def test_a_fingerprint_follows_the_content_alone(tmp_path):
    first, same, other = (tmp_path / name for name in ("a.bin", "b.bin", "c.bin"))
    content = bytearray(os.urandom(5 << 20))
    first.write_bytes(content)
    same.write_bytes(content)
    content[-1] ^= 1
    other.write_bytes(content)
    assert File(first).fingerprint == File(same).fingerprint != File(other).fingerprint


@given(st.lists(st.tuples(st.integers(1, 40), st.floats(0.05, 5)), min_size=1, max_size=4))
def test_a_mixture_has_every_record_and_its_proportions(parts):
    sets = [InMemory([{"set": number, "row": row} for row in range(size)]) for number, (size, _) in enumerate(parts)]
    weights = [weight for _, weight in parts]
    found = [(row["set"], row["row"]) for row in everything(Mixture(sets, weights))]
    for number, (size, weight) in enumerate(parts):
        mine = [row for each, row in found if each == number]
        assert set(mine) == set(range(size))
        assert abs(len(mine) - len(found) * weight / sum(weights)) <= len(parts) + 1


def test_a_mixture_needs_a_weight_for_each_set():
    with pytest.raises(ValueError, match="one positive weight for each of its 2 sets"):
        Mixture([InMemory(records(1)), InMemory(records(2))], [1.0, 0.0])
    for least in (1e-300, 1e-17):
        with pytest.raises(DataError, match=r"sets of 1, 2 records: a pass over all of them would have more tha"):
            Mixture([InMemory(records(1)), InMemory(records(2))], [1.0, least])


@given(st.integers(2, 60), st.integers(1, 59), st.integers(0, 5))
def test_validation_records_are_in_no_training_set(size, count, seed):
    every = InMemory(records(size))
    if count >= size:
        with pytest.raises(DataError, match="which leaves none"):
            hold_out(every, count, seed)
        return
    train, validation = hold_out(every, count, seed)
    assert len(validation) == count
    numbers = [row["number"] for row in [*everything(train), *everything(validation)]]
    assert sorted(numbers) == list(range(size))
    again = hold_out(InMemory(records(size)), count, seed)[1]
    assert everything(again) == everything(validation)
    assert train.where(0) == f"rows, record {train.row(0)['number'] + 1}"


def test_a_field_is_named_with_what_is_wrong():
    with pytest.raises(BadRecordError, match=r"field 'prompt' is missing; the record has 'a', 'b'"):
        field_of({"b": 1, "a": 2}, "prompt", str)
    with pytest.raises(BadRecordError, match=r"field 'a' is a number, expected text"):
        field_of({"a": 2}, "a", str)
