"""Samples of records: bad ones, lengths, and the loader."""

import json
import os

import pytest
import torch

from torchyard_trainers.core.data import scan as scanning
from torchyard_trainers.core.data.loader import Loader
from torchyard_trainers.core.data.mixture import Concatenated, Mixture, hold_out
from torchyard_trainers.core.data.opening import open_rows
from torchyard_trainers.core.data.rows import TooLongError, field_of
from torchyard_trainers.core.data.samples import Samples, Windows
from torchyard_trainers.core.data.scan import Size, scan
from torchyard_trainers.core.data_wait import DataWait
from torchyard_trainers.core.exits import DataError, StorageError


def encode(row):
    return torch.tensor([ord(letter) for letter in field_of(row, "text", str)])


def collate(found):
    return [each.tolist() for each in found]


@pytest.fixture
def found(tmp_path):
    rows = [{"text": "abc"}, {"text": "d"}, {"txt": "e"}, {"text": "fg"}, {"text": 7}]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return open_rows([str(tmp_path / "t.jsonl")])


def test_a_bad_record_is_named_with_file_line_and_field(found):
    source = Samples(found, encode, collate)
    assert len(source) == 5
    assert source.lengths() is None
    assert source.read([3, 1]) == [[102, 103], [100]]
    with pytest.raises(DataError, match=r"^t.jsonl, line 3: field 'text' is missing; the record has 'txt'$"):
        source.read([1, 2])


@pytest.mark.parametrize("processes", [0, 2])
def test_a_scan_names_the_first_bad_record_or_skips_and_counts_all(found, tmp_path, processes, monkeypatch):
    monkeypatch.setattr(scanning, "CHUNK", 2)
    with pytest.raises(DataError, match=r"^t.jsonl, line 3: field 'text' is missing"):
        scan(found, encode, len, processes=processes, cache=tmp_path / "cache")
    result = scan(found, encode, len, skip_bad=True, processes=processes, cache=tmp_path / "cache")
    assert result.lengths.tolist() == [3, 1, 0, 2, 0]
    assert result.bad == 2
    assert result.problems[1] == "t.jsonl, line 5: field 'text' is a number, expected text"
    source = Samples(found, encode, collate, scan=result)
    assert len(source) == 3
    assert list(source.lengths()) == [3, 1, 2]
    assert source.read([2, 0]) == [[102, 103], [97, 98, 99]]
    assert source.row(2) == {"text": "fg"}


def test_a_scan_is_made_once_for_a_content_and_an_encoding(found, tmp_path):
    calls = []

    def counted(row):
        calls.append(row)
        return encode(row)

    options = {"skip_bad": True, "cache": tmp_path / "cache"}
    first = scan(found, counted, len, encoding="letters", **options)
    assert len(calls) == 5
    again = scan(found, counted, len, encoding="letters", **options)
    assert len(calls) == 5
    assert again.lengths.tolist() == first.lengths.tolist()
    assert again.problems == first.problems
    words = r"line 3: field 'text' is missing.* \(2 of 5 records cannot be used; .* The next ones: t.jsonl, line 5: "
    with pytest.raises(DataError, match=words):
        scan(found, counted, len, encoding="letters", cache=tmp_path / "cache")
    scan(found, counted, len, encoding="words", **options)
    assert len(calls) == 10
    stored = next((tmp_path / "cache").glob("*.scan"))
    stored.write_bytes(stored.read_bytes()[:-1])  # cut off by a full disk
    scan(found, counted, len, encoding="letters", **options)
    scan(found, counted, len, encoding="words", **options)
    assert len(calls) == 15


def letters(tmp_path, *texts):
    (tmp_path / "w.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in texts))
    return open_rows([str(tmp_path / "w.jsonl")])


def test_a_long_record_becomes_windows_that_have_every_token_once(tmp_path):
    found = letters(tmp_path, "abcdefg", "hi", "jklmno")
    result = scan(found, encode, len, cache=tmp_path)
    windows = Windows(3, lambda sample, number: sample[3 * number : 3 * number + 3])
    source = Samples(found, encode, collate, scan=result, windows=windows)
    assert list(source.lengths()) == [3, 3, 1, 2, 3, 3]
    read = source.read([5, 0, 1, 2, 3, 4])
    assert "".join(chr(each) for part in read[1:] + read[:1] for each in part) == "abcdefghijklmno"
    assert source.row(2) == {"text": "abcdefg"}
    whole = Samples(found, encode, collate, scan=result)
    assert source.fingerprint != whole.fingerprint
    long = Windows(9, lambda sample, number: sample)
    assert Samples(found, encode, collate, scan=result, windows=long).fingerprint == whole.fingerprint


def test_a_record_that_is_too_long_is_skipped_and_counted_and_one_that_is_cut_is_counted(tmp_path):
    def sample(row):
        if len(row["text"]) > 6:
            raise TooLongError("text", "is too long", len(row["text"]))
        return encode(row)[:4]

    def size(each):
        return Size(len(each), 1 if len(each) == 4 else 0)

    found = letters(tmp_path, "abcdefg", "hi", "jklmn")
    result = scan(found, sample, size, cache=tmp_path)
    assert (result.bad, result.too_long, result.truncated, result.lost_tokens) == (0, 1, 1, (1, 7))
    assert Samples(found, sample, collate, scan=result).read([0, 1]) == [[104, 105], [106, 107, 108, 109]]


def test_parts_and_mixtures_of_a_file_are_scanned_once_and_in_its_own_order(tmp_path):
    read = []

    def counted(row):
        read.append(row["text"])
        return encode(row)

    texts = ["x" * (1 + number % 7) for number in range(40)]
    found = letters(tmp_path, *texts)
    train, held = hold_out(found, 10, 3)
    for rows in (train, held, Mixture([train, held], [1, 1]), Concatenated([held, train])):
        result = scan(rows, counted, len, cache=tmp_path / "cache")
        assert result.lengths.tolist() == [len(rows.row(index)["text"]) for index in range(len(rows))]
    assert read == texts


def test_a_pass_in_which_the_first_records_are_all_bad_ends_early(tmp_path, monkeypatch):
    monkeypatch.setattr(scanning, "CHUNK", 3)
    found = letters(tmp_path, *range(9))
    with pytest.raises(DataError, match=r"line 1: field 'text' is a number.* \(so are the 2 records after it\)"):
        scan(found, encode, len, cache=tmp_path)


def test_a_long_pass_reports_its_progress(tmp_path, monkeypatch):
    monkeypatch.setattr(scanning, "CHUNK", 2)
    monkeypatch.setattr(scanning, "QUIET_SECONDS", -1.0)
    lines = []
    scan(letters(tmp_path, *"abcde"), encode, len, cache=tmp_path, report=lines.append)
    assert [line.rpartition(",")[0] for line in lines[0::2]] == [
        "checking records: 2 of 5, 40 %",
        "checking records: 5 of 5, 100 %",
    ]


def test_data_without_a_usable_record_is_an_error(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"a": 1}\n{"b": 1}')
    found = open_rows([str(tmp_path / "t.jsonl")])
    result = scan(found, encode, len, skip_bad=True, cache=tmp_path)
    with pytest.raises(DataError, match=r"none of the 2 records can be used: t.jsonl, line 1: field 'text'"):
        Samples(found, encode, collate, scan=result)


def test_the_default_cache_belongs_to_this_user_alone(found, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    scan(found, encode, len, skip_bad=True)
    (folder,) = tmp_path.glob("torchyard-data-*")
    assert folder.stat().st_mode & 0o777 == 0o700
    other = os.getuid() + 1
    folder.rename(tmp_path / f"torchyard-data-{other}")
    monkeypatch.setattr(os, "getuid", lambda: other)
    with pytest.raises(DataError, match="belongs to another user"):
        scan(found, encode, len, skip_bad=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_tensors_of_a_batch_are_as_they_were_read_and_independent_of_each_other(workers):
    class Numbered:
        fingerprint = "numbered"

        def __len__(self):
            return 4

        def lengths(self):
            return None

        def read(self, ids):
            number = torch.tensor(ids)[:, None].expand(-1, 3)
            flags = torch.tensor([each > 2 for each in ids])
            return {"flags": flags, "number": number, "empty": flags[:0].half(), "names": [str(each) for each in ids]}

    def batches(_step, _size):
        return [[3, 1]]

    cpu = torch.device("cpu")
    with Loader(Numbered(), batches, 1, cpu, workers=workers, wait=DataWait()) as loader:
        (data,) = loader.step(0, None)
    assert data["names"] == ["3", "1"]
    assert data["flags"].tolist() == [True, False]
    assert (data["empty"].shape, data["empty"].dtype) == ((0,), torch.float16)
    assert data["number"].tolist() == [[3, 3, 3], [1, 1, 1]]
    learned = (torch.ones(3, requires_grad=True) * data["number"]).sum()
    data["flags"].logical_not_()  # autograd has kept the numbers, which this does not change
    learned.backward()
    data["number"][0, 0] = 7  # which torch refuses where elements share memory
    assert data["number"].tolist() == [[7, 3, 3], [1, 1, 1]]


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_of_worker_processes_keep_their_kind(found, workers):
    class Lost:
        fingerprint = "lost"

        def __len__(self):
            return 5

        def lengths(self):
            return None

        def read(self, ids):
            raise StorageError(f"{ids} cannot be read")

    def batches(_step, _size):
        return [[3, 1], [2]]

    cpu = torch.device("cpu")
    with Loader(Samples(found, encode, collate), batches, 1, cpu, workers=workers, wait=DataWait()) as loader:
        read = loader.step(0, None)
        assert next(read) == [[102, 103], [100]]
        with pytest.raises(DataError, match=r"t.jsonl, line 3: field 'text'"):
            next(read)
    with (
        Loader(Lost(), batches, 1, cpu, workers=workers, wait=DataWait()) as loader,
        pytest.raises(StorageError, match=r"\[3, 1\] cannot be read"),
    ):
        list(loader.step(0, None))
