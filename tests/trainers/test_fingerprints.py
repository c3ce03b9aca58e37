"""A run names what decides what its weights compute, so that a checkpoint is never read by another model."""

import json

import pytest
from torch._subclasses.fake_tensor import FakeTensorMode

from torchyard_trainers.core.checkpoints.checkpoint import compare_identity
from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import DataMismatchError
from torchyard_trainers.vla import params as vla
from torchyard_trainers.vla import tabletop
from torchyard_trainers.vla.models import config_of as vla_config
from torchyard_trainers.vla.task import VisionLanguageAction
from torchyard_trainers.vlm import params as vlm
from torchyard_trainers.vlm.models import config_of as vlm_config
from torchyard_trainers.vlm.task import VisionLanguagePolicy

CONFIG, TOKENS = "the config of the model is another one", "texts are encoded to other tokens"


def edited(*path, **values):
    """Return a change of a config.json: fields of the part at a path."""

    def edit(folder):
        tree = json.loads((folder / "config.json").read_text())
        part = tree
        for each in path:
            part = part[each]
        part |= values
        (folder / "config.json").write_text(json.dumps(tree))

    return edit


def words_reversed(folder):
    words = folder / "words.txt"
    words.write_text("\n".join(reversed(words.read_text().split())))


def nothing(_folder):
    """Change no file."""


@pytest.fixture(params=["vla", "vlm"])
def opened(request, tmp_path):
    """Return the name of a workload, a folder of a model for it, and a function that opens it with the folder."""
    if request.param == "vla":
        vla_config("tiny-pi0", None, chunk=4).save_pretrained(tmp_path)
        words = tabletop.WORDS
    else:
        vlm_config("tiny-qwen2-vl", None).save_pretrained(tmp_path)
        actions = ("forward", "backward", "left", "right", "up", "down", "close", "open", "gripper")
        words = ("reach", "the", "can", *actions)
    (tmp_path / "words.txt").write_text("\n".join(words))

    def opened():
        raw = {"pretrained": str(tmp_path)}
        if request.param == "vla":
            return VisionLanguageAction(vla.resolve_params(raw, Parallelism()))
        return VisionLanguagePolicy(vlm.resolve_params(raw, Parallelism()))

    return request.param, tmp_path, opened


def test_a_forecast_of_memory_needs_no_value_of_a_tensor_to_name_them(opened):
    _name, _folder, open_it = opened
    expected = open_it().fingerprints
    with FakeTensorMode():  # otherwise `torchyard plan` makes a real step of a model of billions
        assert open_it().fingerprints == expected


@pytest.mark.parametrize(
    ("change", "meaning"),
    [
        (lambda part: edited(*part, rope_parameters={"rope_theta": 500.0, "rope_type": "default"}), CONFIG),
        (lambda part: edited(*part, hidden_act="relu"), CONFIG),
        (lambda _part: words_reversed, TOKENS),
        (lambda _part: edited(transformers_version="9.0.0", dtype="bfloat16"), None),
        (lambda _part: nothing, None),
    ],
    ids=["positions", "activation", "words", "who wrote it", "nothing"],
)
def test_another_model_with_weights_of_the_same_shapes_is_named(opened, tmp_path, change, meaning):
    name, folder, open_it = opened
    first = open_it()
    record = tmp_path / "run.json"
    record.write_text(json.dumps({"identity": {**first.identity, **first.fingerprints}}))
    part = ("vlm_config", "text_config") if name == "vla" else ("text_config",)
    change(part)(folder)
    second = open_it()
    assert first.identity == second.identity, "the order of samples does not depend on files of a model"
    identity = {**second.identity, **second.fingerprints}
    if meaning is None:
        compare_identity(record, identity)
        return
    with pytest.raises(DataMismatchError, match=meaning):
        compare_identity(record, identity)
    record.write_text(json.dumps({"identity": dict(first.identity)}))  # an earlier version recorded no such thing
    compare_identity(record, identity)
