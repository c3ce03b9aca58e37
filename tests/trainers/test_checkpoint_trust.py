"""A checkpoint is data: whatever an attacker writes into one is refused with 67, and none of it runs."""

import json
import os
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.trainers.attacks import pickle_that_runs, seal
from tests.support.trainers.gangs import config
from torch.distributed.checkpoint.filesystem import SerializationFormat

from torchyard_trainers.core.checkpoints import commits
from torchyard_trainers.core.checkpoints.checkpoint import Checkpoints
from torchyard_trainers.core.checkpoints.index import DTYPES, decode, encode
from torchyard_trainers.core.checkpoints.shards import DcpShards
from torchyard_trainers.core.exits import CheckpointError
from torchyard_trainers.core.world import World

WORLD = World(0, 1, 0, torch.device("cpu"), grouped=False)


def state():
    return {"weights": torch.arange(12.0).reshape(4, 3), "rate": 0.5}


@pytest.fixture
def saved(tmp_path):
    folder = tmp_path / "dcp"
    DcpShards(WORLD).save(state(), folder)
    return folder


def refusal(folder):
    with pytest.raises(CheckpointError) as refused:
        DcpShards(WORLD).load(state(), folder)
    return str(refused.value)


def change(folder, *path, to):
    index = json.loads((folder / "index.json").read_text())
    *way, last = path
    place = index
    for key in way:
        place = place[key]
    place[last] = to
    (folder / "index.json").write_text(json.dumps(index))


def test_the_attack_itself_runs_code_where_a_pickle_is_loaded(tmp_path, monkeypatch):
    for table in ("_member_map_", "_value2member_map_"):  # which the attack replaces
        monkeypatch.setattr(SerializationFormat, table, getattr(SerializationFormat, table))
    pickle.loads(pickle_that_runs(f"open({str(tmp_path / 'mark')!r}, 'w')"))
    assert (tmp_path / "mark").exists()


@pytest.mark.parametrize("name", [".metadata", "index.json", "__0_0.bin"])
@pytest.mark.parametrize("kind", ["names nothing forbidden", "calls a function"])
def test_a_pickle_in_any_file_of_a_checkpoint_is_never_loaded(saved, tmp_path, name, kind):
    mark = tmp_path / "mark"
    code = f"open({str(mark)!r}, 'w')"
    content = pickle_that_runs(code) if kind == "names nothing forbidden" else pickle.dumps(Calls(code))
    (saved / name).write_bytes(content)
    if name == "index.json":
        assert "index.json" in refusal(saved)
    else:  # ignored, or taken for numbers
        DcpShards(WORLD).load(state(), saved)
    assert not mark.exists()


class Calls:
    """Runs code as soon as it is unpickled."""

    def __init__(self, code):
        self.code = code

    def __reduce__(self):
        return exec, (self.code,)


def test_an_index_of_an_earlier_version_is_rejected_with_a_fix(saved, tmp_path):
    (saved / "index.json").unlink()
    (saved / ".metadata").write_bytes(pickle_that_runs(f"open({str(tmp_path / 'mark')!r}, 'w')"))
    assert "its index is the pickle .metadata, which could run code and is not read; start from" in refusal(saved)
    assert not (tmp_path / "mark").exists()


CHUNK = ("tensors", "weights", "chunks", 0)


@pytest.mark.parametrize(
    ("path", "to", "why"),
    [
        ((*CHUNK, "file"), "../secret", "not the name of a file"),
        ((*CHUNK, "file"), "/etc/passwd", "not the name of a file"),
        ((*CHUNK, "file"), "__0_0.bin/../../secret", "not the name of a file"),
        ((*CHUNK, "start"), -4, ">= 0"),
        ((*CHUNK, "start"), 2**60, "<= 9007199254740992"),
        ((*CHUNK, "start"), 4, "shorter than the index says"),
        ((*CHUNK, "bytes"), 2**40, "bytes instead of 48"),
        ((*CHUNK, "bytes"), True, "Expected `int`"),
        ((*CHUNK, "sizes"), [2**30, 2**30], "beyond the tensor's shape"),
        ((*CHUNK, "sizes"), [4], "another number of dimensions"),
        ((*CHUNK, "offsets"), [1, 0], "beyond the tensor's shape"),
        (("tensors", "weights", "shape"), [2**40, 2**40], "chunks hold 12 elements"),
        (("tensors", "weights", "shape"), [1] * 100, "length <= 16"),
        (("tensors", "weights", "chunks"), [], "chunks hold 0 elements"),
        (("tensors", "weights", "dtype"), "os.system", "unknown dtype"),
        (("tensors", "weights", "dtype"), "float64", "bytes instead of 96"),
        (("tensors", "weights", "reduce"), "os.system", "unknown field"),
        (("tensors", "weights"), {"dtype": "float32", "shape": [4, 2], "chunks": []}, "chunks hold 0"),
        (("tensors",), [], "Expected `object`"),
        (("values", "weights"), 1, "is a tensor here and a value"),
        (("values", "rate"), {"reduce": "os.system"}, "neither a tuple nor a dict"),
        (("values", "rate"), {"dict": [[{"dict": []}, 1]]}, "keys are"),
        (("schema",), 2, "<= 1"),
    ],
)
def test_an_index_that_refers_to_missing_data_is_rejected(saved, path, to, why):
    change(saved, *path, to=to)
    if path == ("values", "weights"):
        index = json.loads((saved / "index.json").read_text())
        del index["tensors"]["weights"]
        (saved / "index.json").write_text(json.dumps(index))
    assert why in refusal(saved)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b"[" * 100_000, b'{"schema": 1' + b"0" * 5000 + b"}", b"\xff\x00"]
)
def test_an_index_that_is_not_one_is_refused(saved, content):
    (saved / "index.json").write_bytes(content)
    assert "index.json" in refusal(saved)


def test_an_index_is_not_read_beyond_its_bound(saved):
    with (saved / "index.json").open("r+b") as file:
        file.truncate(1 << 40)
    assert "bytes; at most" in refusal(saved)


@pytest.mark.parametrize("name", ["index.json", "__0_0.bin"])
def test_links_and_pipes_in_a_checkpoint_are_not_followed(saved, tmp_path, name):
    secret = tmp_path / "secret"
    (saved / name).rename(secret)
    (saved / name).symlink_to(secret)
    assert f"{name} is a symbolic link" in refusal(saved)
    (saved / name).unlink()
    os.mkfifo(saved / name)
    assert f"{name} is not a regular file" in refusal(saved)


@pytest.mark.parametrize(
    "attack",
    [
        lambda folder: folder.joinpath("COMMIT").write_text(json.dumps({"files": {"../../secret": {"bytes": 6}}})),
        lambda folder: folder.joinpath("COMMIT").write_text(json.dumps({"files": {"/etc/hostname": {"bytes": 6}}})),
        lambda folder: folder.joinpath("COMMIT").write_text(json.dumps({"files": {"state.json": 1}})),
        lambda folder: folder.joinpath("COMMIT").write_text("[" * 100_000),
        lambda folder: (folder.joinpath("dcp").rename(folder / "x"), folder.joinpath("dcp").symlink_to(folder / "x")),
        lambda folder: (folder.joinpath("COMMIT").unlink(), os.mkfifo(folder / "COMMIT")),
        lambda folder: (folder.joinpath("state.json").write_text("[" * 100_000), seal(folder)),
        lambda folder: (folder.joinpath("state.json").write_text('{"step": "9"}'), seal(folder)),
        lambda folder: (folder.joinpath("state.json").write_text('{"step": 7, "metrics": 1}'), seal(folder)),
    ],
)
def test_a_step_folder_that_leads_elsewhere_or_holds_no_record_is_refused(tmp_path, attack):
    def owner(round_number):
        return Checkpoints(tmp_path, WORLD, round_number=round_number, job="job")

    owner(1).save(7, state(), {"step": 7}, keep=1)
    attack(commits.step_folder(tmp_path, 7))
    with pytest.raises(CheckpointError):
        owner(2).restore(lambda shards, folder: shards.load(state(), folder))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=8,
)


@given(VALUES)
@settings(max_examples=200, deadline=None)
def test_values_beside_tensors_come_back_as_they_were(value):
    found = decode(json.loads(json.dumps(encode("value", value))))
    assert found == value
    assert type(found) is type(value)


def test_a_value_that_only_a_pickle_could_hold_is_refused_when_it_is_saved(tmp_path):
    with pytest.raises(RuntimeError) as failed:
        DcpShards(WORLD).save({"note": Calls("pass")}, tmp_path)
    assert "note is of type" in str(failed.value.__cause__)


@pytest.mark.parametrize("dtype", list(DTYPES.values()), ids=list(DTYPES))
def test_tensors_of_every_dtype_come_back_bit_for_bit(tmp_path, dtype):
    bits = torch.randint(0, 2 if dtype is torch.bool else 256, (6 * dtype.itemsize,), dtype=torch.uint8)
    kept = bits.view(dtype).reshape(2, 3).t()
    read = torch.zeros_like(kept)
    DcpShards(WORLD).save({"x": kept, "scalar": kept[0, 0].clone(), "empty": kept[:0].clone()}, tmp_path)
    DcpShards(WORLD).load(found := {"x": read, "scalar": read[0, 0].clone(), "empty": read[:0].clone()}, tmp_path)
    for name, tensor in (("x", kept), ("scalar", kept[0, 0])):
        same = [each.contiguous().reshape(-1).view(torch.uint8) for each in (found[name], tensor)]
        assert torch.equal(*same)


@pytest.mark.e2e
def test_resuming_from_a_checkpoint_that_contains_code_ends_with_67_and_runs_no_code(yard):
    yard.train(config(params={"steps": 3}))
    elsewhere, mark = yard.root / "elsewhere", yard.root / "mark"
    yard.checkpoints.rename(elsewhere)
    folder = elsewhere / "step-00000003"
    for name in ("dcp/.metadata", "dcp/index.json"):
        (folder / name).write_bytes(pickle_that_runs(f"open({str(mark)!r}, 'w')"))
    seal(folder)
    gang = yard.start(config(checkpoint={"resumeFrom": str(elsewhere)}), world=2)
    assert set(gang.wait()) == {67}, gang.output()
    assert "index.json" in yard.failure()["message"]
    assert not mark.exists()
