"""Weights apart from the architecture: from a Hugging Face folder, or initial ones, into any sharding."""

import json

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from tests.support.trainers.gangs import Yard
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3Config

from torchyard_trainers.core.checkpoints.commits import SHARDS
from torchyard_trainers.core.exits import ConfigError, DataMismatchError
from torchyard_trainers.core.pretrained import INDEX, Pretrained, stream
from torchyard_trainers.core.weights import allocate, parameters_on_meta
from torchyard_trainers.core.world import World

CPU = torch.device("cpu")
ALONE = World(0, 1, 0, CPU, grouped=False)


def language(**more):
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 31, "head_dim": 8}
    torch.manual_seed(0)
    config = Qwen3Config(**sizes, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True, **more)
    return AutoModelForCausalLM.from_config(config)


@pytest.fixture
def folder(tmp_path):
    """A tied model in bf16, in several files."""
    language().to(torch.bfloat16).save_pretrained(tmp_path / "model", max_shard_size="4KB")
    assert (tmp_path / "model" / INDEX).is_file()
    return tmp_path / "model"


def empty(folder):
    with parameters_on_meta():
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)


def test_a_streamed_model_computes_what_transformers_loads(folder):
    model = empty(folder)
    assert all(each.is_meta for each in model.parameters())
    allocate(model, CPU)
    stream(Pretrained(folder), model, ALONE)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    text = torch.arange(12).view(2, 6)
    assert model.lm_head.weight is model.model.embed_tokens.weight, "still tied"
    assert {each.dtype for each in model.parameters()} == {torch.float32}
    assert torch.equal(model.eval()(input_ids=text).logits, theirs(input_ids=text).logits)


def test_missing_unexpected_and_mis_shaped_tensors_are_named_in_one_error(folder):
    index = json.loads((folder / INDEX).read_text())
    norm, up = "model.norm.weight", "model.layers.0.mlp.up_proj.weight"
    for name in (norm, up):
        path = folder / index["weight_map"][name]
        tensors = load_file(path)
        if name == norm:
            tensors["model.extra.weight"] = tensors.pop(name)
            index["weight_map"]["model.extra.weight"] = index["weight_map"].pop(name)
        else:
            tensors[name] = tensors[name][:-1].clone()
        save_file(tensors, path)
    (folder / INDEX).write_text(json.dumps(index))
    model = empty(folder)
    allocate(model, CPU)
    with pytest.raises(DataMismatchError) as caught:
        stream(Pretrained(folder), model, ALONE)
    assert str(caught.value) == (
        f"trainer.params.pretrained: {folder} does not fit the model: 1 missing: {norm}; 1 unexpected: "
        f"model.extra.weight; 1 of another shape: {up} [31, 16] for [32, 16]. Name a folder with this architecture, or "
        "change the model"
    )


@pytest.mark.parametrize(
    ("weight_map", "error", "message"),
    [
        ({"a": "../secret.safetensors"}, ConfigError, r"names \.\./secret\.safetensors; only safetensors files of"),
        ({"a": "model.bin"}, ConfigError, r"names model\.bin; only safetensors"),
        ({"a": "lost.safetensors"}, DataMismatchError, "names lost.safetensors, which does not exist"),
        (None, ConfigError, "has no weight_map"),
    ],
)
def test_an_invalid_index_is_rejected(tmp_path, weight_map, error, message):
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(error, match=rf"^trainer\.params\.pretrained: {tmp_path}.*{message}"):
        stream(Pretrained(tmp_path), nn.Linear(1, 1), ALONE)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("pytorch_model-00001-of-00002.bin", r"has pytorch_model.bin, which can hold code; convert it: load it with"),
        ("model.Q4_K_M.gguf", r"has GGUF only; convert it: from_pretrained\(FOLDER, gguf_file=NAME\)"),
        ("model.fp16.safetensors", r"has model.fp16.safetensors, but no model.safetensors and no index of its parts"),
        ("flax_model.msgpack", r"has neither model\.safetensors nor .*name a folder of a Hugging Face model"),
    ],
)
def test_weights_of_another_format_are_refused_with_the_way_to_convert_them(tmp_path, file, message):
    (tmp_path / file).touch()
    with pytest.raises(ConfigError, match=f"^checkpoint.initFrom: {tmp_path} {message}"):
        stream(Pretrained(tmp_path, field="checkpoint.initFrom"), nn.Linear(1, 1), ALONE)


def test_a_file_that_git_has_not_fetched_is_named(tmp_path):
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(DataMismatchError, match=r"model.safetensors is a pointer of Git LFS, .*; run git lfs pull"):
        stream(Pretrained(tmp_path), nn.Linear(1, 1), ALONE)


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("module.{}", "have 'module.' of DistributedDataParallel or DeepSpeed; save the model inside with save_pretr"),
        ("_orig_mod.module.{}", "have '_orig_mod.' of torch.compile, and 'module.' of DistributedDataParallel or Deep"),
        ("model.{}", "have 'model.' of a module that holds the model, such as a LightningModule; save the model insi"),
        (
            "base_model.model.{}",
            r"have 'base_model.model.' of a model of peft; merge .*: model.merge_and_unload\(\).save",
        ),
    ],
)
def test_weights_that_were_saved_inside_of_a_wrapper_are_said_to_be(tmp_path, named, said):
    language().save_pretrained(tmp_path)
    path, model = tmp_path / "model.safetensors", empty(tmp_path)
    allocate(model, CPU)
    save_file({named.format(name): each for name, each in load_file(path).items()}, path)
    with pytest.raises(DataMismatchError, match=f"^trainer.params.pretrained: {tmp_path} does not fit .*: .*{said}"):
        stream(Pretrained(tmp_path, converts=True), model, ALONE)


def test_a_tied_weight_that_a_file_has_twice_must_be_the_same(tmp_path):
    language().save_pretrained(tmp_path)
    path, model = tmp_path / "model.safetensors", empty(tmp_path)
    allocate(model, CPU)
    tensors = load_file(path)
    head = tensors["model.embed_tokens.weight"].to(torch.bfloat16)
    save_file(tensors | {"lm_head.weight": head}, path)
    stream(Pretrained(tmp_path), model, ALONE)
    assert model.lm_head.weight.equal(tensors["model.embed_tokens.weight"]), "rounded differently, and the same"
    head[7, 3] += 1
    save_file(tensors | {"lm_head.weight": head}, path)
    with pytest.raises(DataMismatchError, match=r"has other values than the weights that config\.json ties it to; set"):
        stream(Pretrained(tmp_path), model, ALONE)


def settings(folder, strategy, **params):
    return {
        "trainer": {"name": "folder_lm:FolderLm", "params": {"folder": str(folder), **params}},
        "device": "cpu",
        "logging": {"tensorboard": False},
        "parallelism": {"strategy": strategy, "precision": "fp32"},
    }


@pytest.mark.e2e
@pytest.mark.parametrize(("pretrained", "others"), [(True, [("fsdp", 2)]), (False, [("ddp", 2), ("fsdp", 3)])])
def test_one_process_ddp_and_fsdp_begin_and_train_alike(calm, tmp_path, folder, pretrained, others):
    """The same weights at every world size, the same losses, and the same greedy texts from gathered parameters."""
    calm.train(settings(folder, "single", pretrained=pretrained))
    expected = calm.metrics()
    for strategy, world in others:
        (tmp_path / f"{strategy}{world}").mkdir()
        other = Yard(calm.server, tmp_path / f"{strategy}{world}")
        other.train(settings(folder, strategy, pretrained=pretrained), world)
        for ours, one in zip(other.metrics(), expected, strict=True):
            assert ours["loss"] == pytest.approx(one["loss"], abs=1e-5)
            assert ours["gradNorm"] == pytest.approx(one["gradNorm"], abs=1e-5)
            assert ours["greedy"] == one["greedy"]


TEXT = torch.arange(6).view(2, 3)


@pytest.mark.e2e
def test_an_export_computes_what_was_trained(yard, folder):
    yard.train(settings(folder, "fsdp") | {"export": {"formats": ["hf"]}}, 2)
    exported = yard.checkpoints / "export" / "hf"
    manifest = json.loads((exported / "manifest.json").read_text())
    assert set(manifest["files"]) == {
        "model.safetensors",
        "config.json",
        "generation_config.json",
        "chat_template.jinja",
    }
    assert AutoModelForCausalLM.from_pretrained(exported).dtype == torch.bfloat16, "as the folder of `pretrained` is"
    theirs = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    assert float(theirs(input_ids=TEXT).logits.square().sum()) == pytest.approx(yard.metrics()[-1]["logits"], rel=5e-3)
    assert not (yard.checkpoints / "export" / "safetensors").exists(), "the same weights once more"


@pytest.mark.e2e
def test_peft_loads_adapters_that_were_trained_under_fsdp(yard, folder):
    given = settings(folder, "fsdp", lora=True) | {"export": {"formats": ["hf", "hf-merged"]}}
    yard.train(given, 2)
    trained = yard.metrics()[-1]["logits"]
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert float(base(input_ids=TEXT).logits.square().sum()) != pytest.approx(trained, rel=1e-3)
    adapted = PeftModel.from_pretrained(base, yard.checkpoints / "export" / "hf")
    merged = AutoModelForCausalLM.from_pretrained(yard.checkpoints / "export" / "hf-merged", dtype=torch.float32)
    for theirs, rounding in ((adapted, 1e-5), (merged, 5e-3)):
        assert float(theirs(input_ids=TEXT).logits.square().sum()) == pytest.approx(trained, rel=rounding)
    names = json.loads((yard.checkpoints / "step-00000004" / SHARDS / "index.json").read_text())["tensors"]
    assert all(".lora_" in name for name in names), "no frozen weight and no state of one"
