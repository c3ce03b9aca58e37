"""Files of a large model are written by all ranks, and none holds the whole model."""

import json

import pytest
import torch
from safetensors.torch import load_file

from torchyard_trainers.core.export import sharded
from torchyard_trainers.core.export.sharded import Entry, write_files
from torchyard_trainers.core.export.verify import ExportError
from torchyard_trainers.core.world import World

ALONE = World(0, 1, 0, torch.device("cpu"), grouped=False)
TENSORS = {f"layer{number}": torch.full((10,), float(number)) for number in range(5)}


def entries(made=None):
    def entry(name, tensor):
        def make():
            if made is not None:
                made.append(name)
            return tensor

        return Entry(name, 40, make)

    return [entry(name, tensor) for name, tensor in TENSORS.items()]


def test_a_model_is_split_into_files_with_an_index(tmp_path):
    files = write_files(entries(), tmp_path, "model", ALONE, shared=True, verify=True, limit=80)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 200}
    assert sorted(set(index["weight_map"].values())) == [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    read = {name: load_file(tmp_path / file)[name] for name, file in index["weight_map"].items()}
    assert all(torch.equal(read[name], tensor) for name, tensor in TENSORS.items())
    assert set(files) == {path.name for path in tmp_path.iterdir()}
    assert all(files[path.name]["bytes"] == path.stat().st_size for path in tmp_path.iterdir())


def test_every_rank_gathers_but_writes_its_own_files_only(tmp_path):
    made = []
    other = World(1, 2, 1, torch.device("cpu"), grouped=False)
    files = write_files(entries(made), tmp_path, "model", other, shared=True, verify=True, limit=80)
    assert made == list(TENSORS)
    assert {path.name for path in tmp_path.iterdir()} == {"model-00002-of-00003.safetensors"} <= set(files)
    nothing = write_files(entries(), tmp_path / "none", "model", other, shared=False, verify=True)
    assert nothing == {}


def test_a_file_that_reads_back_differently_is_an_error(tmp_path, monkeypatch):
    save = sharded.save
    monkeypatch.setattr(sharded, "save", lambda held, path: save({name: each + 1 for name, each in held.items()}, path))
    with pytest.raises(ExportError, match=r"model\.safetensors: layer0, .* read back differently than written"):
        write_files(entries(), tmp_path, "model", ALONE, shared=True, verify=True)
