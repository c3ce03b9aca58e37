"""`vla` exports a Hugging Face folder that transformers loads, and goes on from such a folder."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.trainers.gangs import AT_ONCE, Yard
from tests.support.trainers.lerobot import write_lerobot
from tests.support.trainers.tokenizers import write_tokenizer
from transformers import PI0ForConditionalGeneration

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.pretrained import canonical, is_adapter
from torchyard_trainers.core.vocabulary import open_vocabulary
from torchyard_trainers.core.weights import allocate, built, fill
from torchyard_trainers.core.world import World
from torchyard_trainers.vla.data.instructions import Instructions
from torchyard_trainers.vla.demonstrations import keys_of
from torchyard_trainers.vla.models import config_of
from torchyard_trainers.vla.params import resolve_params
from torchyard_trainers.vla.tabletop import WORDS, sentence
from torchyard_trainers.vla.task import VisionLanguageAction

SMALL = {
    "batch": 6,
    "warmupSteps": 0,
    "evalEpisodes": 4,
    "evalSamples": 6,
    "flowSteps": 2,
    "evalEvery": 2,
    "logEvery": 1,
}


TOKENS = {"[unk]": 3, "reach": 4}


def settings(steps, parallelism=None, **params):
    trainer = {"name": "vla", "params": SMALL | {"steps": steps} | params}
    own = {
        "parallelism": AT_ONCE | (parallelism or {}),
        "export": {"formats": ["hf"]},
        "logging": {"tensorboard": False},
    }
    return {"trainer": trainer, "device": "cpu", **own}


@pytest.fixture(scope="module")
def exported(fork_server, tmp_path_factory):
    """A run of two processes that exports, its last metrics, and the folder of the export."""
    yard = Yard(fork_server, tmp_path_factory.mktemp("exported"))
    yard.train(settings(2, {"strategy": "fsdp"}), world=2)
    return yard, yard.metrics()[-1], yard.checkpoints / "export" / "hf"


@pytest.mark.e2e
def test_transformers_loads_the_export_with_the_same_weights_and_statistics_lie_beside_them(exported):
    yard, _, folder = exported
    loaded, info = PI0ForConditionalGeneration.from_pretrained(folder, output_loading_info=True)
    assert not any(info[each] for each in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    final = load_file(yard.checkpoints / "final" / "model.safetensors")
    state = loaded.state_dict()
    assert {f"pi0.{name}" for name in state} == set(final)
    assert all(torch.equal(tensor, final[f"pi0.{name}"]) for name, tensor in state.items())
    statistics = json.loads((folder / "normalization.json").read_text())
    assert statistics["normalization"] == "min-max"
    assert statistics["statistics"]["action"]["max"] == [1.0, 1.0]
    assert (folder / "words.txt").read_text().split()[:3] == ["reach", "the", "object"]


@pytest.mark.e2e
@pytest.mark.parametrize("world", [1, 2])
def test_a_run_goes_on_from_the_export_where_it_was(exported, fork_server, tmp_path, world):
    _, last, folder = exported
    yard = Yard(fork_server, tmp_path)
    yard.train(settings(1, {"strategy": "fsdp"} if world > 1 else None, pretrained=str(folder)), world)
    summary = json.loads((yard.checkpoints / "final" / "summary.json").read_text())
    assert summary["flowLossUntrained"] == pytest.approx(last["flowLoss"], abs=1e-5)


@pytest.mark.e2e
def test_an_export_does_not_know_the_words_of_other_instructions_nor_larger_actions(exported, tmp_path):
    _, _, folder = exported
    data = write_lerobot(tmp_path / "data", "v2.1", [4, 4, 4])
    given = {"data": str(data), "pretrained": str(folder)}
    with pytest.raises(ConfigError, match=r"words.txt lacks 'move' of the instruction 'move left'"):
        VisionLanguageAction(resolve_params(given, Parallelism()))


def as_lerobot(name):
    """The name of a weight in files that LeRobot publishes: as transformers saves it, in a policy."""
    return "model." + name.replace("vision_tower.", "vision_tower.vision_model.")


@pytest.mark.parametrize("named", [str, as_lerobot], ids=["transformers", "lerobot"])
def test_a_pi0_that_transformers_saved_and_one_with_published_names_are_read_weight_by_weight(tmp_path, named):
    torch.manual_seed(6)
    model = PI0ForConditionalGeneration(config_of("tiny-pi0", None, chunk=4))
    model.save_pretrained(tmp_path)
    write_tokenizer(tmp_path, TOKENS)
    file = tmp_path / "model.safetensors"
    save_file({named(name): each for name, each in load_file(file).items()}, file)
    work = VisionLanguageAction(resolve_params({"pretrained": str(tmp_path)}, Parallelism()))
    policy = built(work)
    allocate(policy, torch.device("cpu"))
    fill(work, policy, World(0, 1, 0, torch.device("cpu"), grouped=False, local_size=1))
    found = policy.pi0.state_dict()
    wrong = [name for name, each in model.state_dict().items() if not torch.equal(found[name], each)]
    assert not wrong
    assert found.keys() == model.state_dict().keys()


def test_sizes_of_a_config_that_contradict_each_other_are_named(tmp_path):
    config = config_of("tiny-pi0", None, chunk=4)
    config.vlm_config.vision_config.num_attention_heads = 7
    config.save_pretrained(tmp_path)
    write_tokenizer(tmp_path, TOKENS)
    work = VisionLanguageAction(resolve_params({"pretrained": str(tmp_path)}, Parallelism()))
    with pytest.raises(ConfigError, match=r"pretrained: its config.json: no model can be made of it: embed"):
        work.build()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, r"pretrained: .*config.json is not a file of a model; name a folder that save_pretrained"),
        ("{", r"config.json is not a config of a model"),
        ('{"model_type": "gemma"}', r"has model_type 'gemma', expected pi0"),
    ],
)
def test_a_folder_of_another_kind_is_named(tmp_path, config, message):
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(ConfigError, match=message):
        VisionLanguageAction(resolve_params({"pretrained": str(tmp_path)}, Parallelism()))
    with pytest.raises(ConfigError, match=r"trainer.params.model: tiny-pi0, but the geometry is that of"):
        resolve_params({"pretrained": str(tmp_path), "model": "tiny-pi0"}, Parallelism())


def test_the_tokenizer_of_a_pretrained_model_encodes_instructions(tmp_path):
    write_tokenizer(tmp_path, {"[unk]": 3, "move": 4, "up": 5})
    found = Instructions(["move", "move up"], vocabulary=open_vocabulary(tmp_path, None, source=""))
    tokens, mask = found.of(torch.tensor([1, 0]))
    assert tokens.tolist() == [[4, 5], [4, 0]]
    assert mask.tolist() == [[True, True], [True, False]]
    assert (found.highest, found.assets()) == (5, {"tokenizer.json": tmp_path / "tokenizer.json"})
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer.json cannot be read"):
        open_vocabulary(tmp_path, None, source="")


# What lies in a folder of weights, beside them, and what the error says.
WITHOUT = {
    "nothing": ({}, r"no tokenizer.json, .* copy that of google/paligemma-3b-pt-224 \(pi0 has PaliGemma's\) into it"),
    "lerobot": (
        {
            "policy_preprocessor.json": json.dumps(
                {"steps": [{"config": {}}, {"config": {"tokenizer_name": "some/tokenizer"}}]}
            )
        },
        r"copy that of some/tokenizer into it, or set trainer.params.tokenizer to its folder",
    ),
    "sentencepiece": ({"tokenizer.model": ""}, r"it has tokenizer.model: convert that by AutoTokenizer"),
    "other images": (
        {"preprocessor_config.json": json.dumps({"image_mean": [0.485, 0.456, 0.406]})},
        r"has image_mean \[0.485, 0.456, 0.406\], but images are scaled by \[0.5, 0.5, 0.5\] here",
    ),
}


@pytest.mark.parametrize(("files", "message"), WITHOUT.values(), ids=WITHOUT)
@pytest.mark.parametrize("model", ["tiny-pi0", "tiny-paligemma"])
def test_a_folder_without_a_tokenizer_is_refused_and_the_tokenizer_named(tmp_path, model, files, message):
    config_of(model, None, chunk=4).save_pretrained(tmp_path)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        VisionLanguageAction(resolve_params({"pretrained": str(tmp_path)}, Parallelism()))


def test_a_tokenizer_in_a_folder_of_its_own_encodes_instructions_of_a_pretrained_model(tmp_path):
    model, tokens = tmp_path / "model", tmp_path / "tokens"
    config_of("tiny-pi0", None, chunk=4).save_pretrained(model)
    tokens.mkdir()
    given = {"pretrained": str(model), "tokenizer": str(tokens)}
    with pytest.raises(ConfigError, match=r"trainer.params.tokenizer: .*tokens has no tokenizer.json"):
        VisionLanguageAction(resolve_params(given, Parallelism()))
    numbers = {word: 20 + place for place, word in enumerate(["[unk]", *WORDS])}
    write_tokenizer(tokens, numbers)
    work = VisionLanguageAction(resolve_params(given, Parallelism()))
    assert work.tabletop.instructions.tokens[0].tolist() == [numbers[word] for word in sentence(0).split()]
    assert work.assets()["tokenizer.json"] == tokens / "tokenizer.json"
    write_tokenizer(tokens, {"[unk]": 3, "the": 64})
    with pytest.raises(ConfigError, match=r"has tokens up to number 64, but the model knows 64; both must be of the"):
        VisionLanguageAction(resolve_params(given, Parallelism()))
    (model / "words.txt").write_text("reach\n")
    with pytest.raises(ConfigError, match=r"was trained with the words of its words.txt; remove one"):
        VisionLanguageAction(resolve_params(given, Parallelism()))


def adapted(**params):
    """A policy with adapters and random weights, and its workload."""
    work = VisionLanguageAction(resolve_params({"loraRank": 2} | params, Parallelism()))
    policy = built(work)
    allocate(policy, torch.device("cpu"))
    fill(work, policy, World(0, 1, 0, torch.device("cpu"), grouped=False, local_size=1))
    return work, policy


@pytest.mark.parametrize("model", [{}, {"model": "tiny-paligemma"}, {"model": "tiny-paligemma", "head": "tokens"}])
def test_with_adapters_the_vision_language_model_is_frozen_and_all_that_trains_gets_a_gradient(model):
    work, policy = adapted(**model)
    plain = VisionLanguageAction(resolve_params(model, Parallelism()))
    before = built(plain)
    allocate(before, torch.device("cpu"))
    before.load_state_dict(
        {canonical(name): each for name, each in policy.state_dict().items() if not is_adapter(name)}
    )
    ids = torch.arange(6)
    shown, keys = work.tabletop.demonstrations(ids), keys_of(work.settings, ids, "flow")[:, None]
    losses = work.objective.losses(policy, shown, keys).loss
    torch.testing.assert_close(losses, work.objective.losses(before, shown, keys).loss)
    losses.mean().backward()
    trained = {name for name, each in policy.named_parameters() if each.requires_grad}
    trunk = "pi0.model.vlm." if not model else "vlm."
    assert {name for name in trained if name.startswith(trunk) and ".lora_" not in name} == set()
    assert any(".lora_A." in name for name in trained)
    assert [name for name, each in policy.named_parameters() if each.requires_grad and each.grad is None] == []
    expert = {name for name in trained if not name.startswith(trunk)}
    assert bool(expert) == (model.get("head") != "tokens")
    assert len(work.optimizer(policy).param_groups) >= 1


@pytest.mark.e2e
def test_with_adapters_pi0_is_exported_whole_and_paligemma_as_adapters(fork_server, tmp_path):
    yards = []
    for name, params in {"pi0": {}, "paligemma": {"model": "tiny-paligemma"}}.items():
        (tmp_path / name).mkdir()
        yard = Yard(fork_server, tmp_path / name)
        yard.train(settings(2, loraRank=2, lr=0.01, **params))
        yards.append(yard.checkpoints / "export" / "hf")
    loaded, info = PI0ForConditionalGeneration.from_pretrained(yards[0], output_loading_info=True)
    assert not any(info[each] for each in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    final = load_file(yards[0].parents[1] / "final" / "model.safetensors")
    name = "model.vlm.language_model.layers.0.self_attn.q_proj"
    base, down, up = (final[f"pi0.{name}.{part}.weight"] for part in ("base_layer", "lora_A.default", "lora_B.default"))
    torch.testing.assert_close(loaded.state_dict()[f"{name}.weight"], base + 2 * up @ down)
    assert up.abs().max() > 0
    assert json.loads((yards[1] / "adapter_config.json").read_text())["r"] == 2
    assert not (yards[1] / "model.safetensors").exists()
