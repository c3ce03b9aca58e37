"""`checkpoint.initFrom`: a run begins with the weights, and nothing else, of another run or a Hugging Face folder."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from tests.support.trainers.gangs import config
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from torchyard_trainers.core.checkpoints.starting_weights import match
from torchyard_trainers.core.exits import ConfigError, DataMismatchError, Exit
from torchyard_trainers.core.weights import built


def tensors(*names, frozen=()):
    return {name: nn.Parameter(torch.zeros(2), requires_grad=name not in frozen) for name in names}


def test_a_whole_model_fills_the_base_below_adapters_and_a_new_head_is_named():
    held = tensors("lm.q.base_layer.weight", "lm.q.lora_A.default.weight", "lm.norm.weight", "head.weight")
    wanted, left = match(held, {"lm.q.weight", "lm.norm.weight", "old_head.weight"}, frozen_are_read=False)
    assert wanted == {"lm.q.weight": held["lm.q.base_layer.weight"], "lm.norm.weight": held["lm.norm.weight"]}
    assert left == ["head"]


def test_a_checkpoint_of_adapters_needs_a_base_that_was_read():
    adapter, base = "lm.q.lora_A.default.weight", "lm.q.base_layer.weight"
    held = tensors(adapter, base, frozen={base})
    assert match(held, {adapter}, frozen_are_read=True) == ({adapter: held[adapter]}, [])
    with pytest.raises(DataMismatchError, match=r"1 missing: lm\.q\.base_layer\.weight; name a run of this model"):
        match(held, {adapter}, frozen_are_read=False)


def test_a_tied_weight_may_have_one_name():
    held = tensors("lm.embedding.weight")
    held["lm.head.weight"] = held["lm.embedding.weight"]
    assert [*match(held, {"lm.embedding.weight"}, frozen_are_read=False)[0]] == ["lm.embedding.weight"]


@pytest.mark.parametrize(
    ("there", "says"),
    [
        ({"lm.a.weight"}, r"1 missing: lm\.b\.weight"),
        ({"lm.a.weight", "lm.b.weight", "lm.c.weight"}, r"1 unexpected: lm\.c\.weight"),
        ({"lm.a.weight", "lm.b.weight", "lm.a.lora_A.default.weight"}, r"1 unexpected: lm\.a\.lora_A"),
        ({"encoder.weight"}, r"2 missing: lm\.a\.weight, lm\.b\.weight"),
    ],
)
def test_weights_of_another_model_are_refused(there, says):
    with pytest.raises(DataMismatchError, match=says):
        match(tensors("lm.a.weight", "lm.b.weight"), there, frozen_are_read=False)


@pytest.mark.e2e
def test_a_run_begins_with_the_weights_of_another_run_of_other_settings(yard):
    yard.train(config(params={"steps": 3}))
    source = yard.root / "source"
    shutil.move(yard.checkpoints, source)
    tiny = {"seed": 8, "steps": 1, "lr": 1e-7, "lrFinal": 1e-7, "batch": 6}
    yard.train(config(params=tiny, checkpoint={"initFrom": str(source)}), world=2)
    before, after = (load_file(folder / "final" / "model.safetensors") for folder in (source, yard.checkpoints))
    assert max(before[name].sub(after[name]).abs().max() for name in before) < 1e-6
    assert [*yard.losses()] == [1]
    run = json.loads((yard.checkpoints / "run.json").read_text())
    assert run["initFrom"] == {"folder": str(source / "step-00000003"), "step": 3}

    shutil.rmtree(source)  # not read again
    yard.train(config(params=tiny | {"steps": 2}, checkpoint={"initFrom": str(source)}))
    assert [*yard.losses()] == [1, 2]
    shutil.rmtree(yard.checkpoints)
    gang = yard.start(config(params=tiny, checkpoint={"initFrom": str(source)}))
    assert gang.wait() == [Exit.CHECKPOINT]
    assert f"checkpoint.initFrom: {source} holds neither a checkpoint nor" in yard.failure()["message"]


@pytest.mark.e2e
def test_a_run_begins_with_a_hugging_face_folder(yard, calm, tmp_path):
    folder = tmp_path / "model"
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 31, "head_dim": 8}
    Qwen3ForCausalLM(Qwen3Config(**sizes, num_attention_heads=2, num_key_value_heads=1)).save_pretrained(folder)

    def settings(*, pretrained, **checkpoint):
        params = {"folder": str(folder), "pretrained": pretrained, "steps": 2}
        return {
            "trainer": {"name": "folder_lm:FolderLm", "params": params},
            "device": "cpu",
            "logging": {"tensorboard": False},
            "parallelism": {"strategy": "fsdp" if checkpoint else "single", "precision": "fp32"},
            "checkpoint": checkpoint,
        }

    calm.train(settings(pretrained=True))
    yard.train(settings(pretrained=False, initFrom=str(folder)), world=2)
    assert yard.losses() == pytest.approx(calm.losses(), rel=1e-5)
    assert json.loads((yard.checkpoints / "run.json").read_text())["initFrom"] == {"folder": str(folder)}


class LazyWork:
    """A workload whose model has a layer without a size."""

    pretrained = None

    def __init__(self, *, deferred):
        self.deferred = deferred

    def build(self):
        return nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(3))


@pytest.mark.parametrize("deferred", [False, True])
def test_a_lazy_layer_is_named_before_anything_computes_with_it(deferred):
    with pytest.raises(ConfigError, match=r"has a lazy layer '1' \(LazyLinear\), whose weights have no size before"):
        built(LazyWork(deferred=deferred))
