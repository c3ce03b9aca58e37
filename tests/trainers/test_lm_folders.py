"""`lm` exports folders that transformers and peft load with the same logits, and trains on from such folders."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.support.trainers.families import save_family
from tests.support.trainers.gangs import AT_ONCE, Yard

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.lm.folder import TOKENIZER_FILES
from torchyard_trainers.lm.generation.talk import open_speaker
from torchyard_trainers.lm.params import resolve_params
from torchyard_trainers.lm.task import LanguageModeling

GENERATION = "generation_config.json"
# As Llama 2 has them: settings of sampling, and that nothing is sampled. transformers loads this, and does not save it.
PUBLISHED = {"do_sample": False, "temperature": 0.6, "top_p": 0.9}
# Beside its chat template a tokenizer may have named ones, for example for calls of functions.
NAMED_TEMPLATE = "additional_chat_templates/tool_use.jinja"
SMALL = {"batch": 8, "warmupSteps": 0, "lrFinal": 3e-3, "evalSamples": 8, "evalEvery": 2, "logEvery": 1}


def settings(steps, parallelism=None, formats=("hf",), **params):
    own = {
        "parallelism": AT_ONCE | (parallelism or {}),
        "export": {"formats": list(formats)},
        "logging": {"tensorboard": False},
    }
    return {"trainer": {"name": "lm", "params": SMALL | {"steps": steps} | params}, "device": "cpu", **own}


@pytest.fixture(scope="module")
def exported(fork_server, tmp_path_factory):
    """A run of two processes that exports; the folder of its export and its last metrics."""
    yard = Yard(fork_server, tmp_path_factory.mktemp("exported"))
    yard.train(settings(2, {"strategy": "fsdp"}), world=2)
    folder = yard.checkpoints / "export" / "hf"
    (folder / GENERATION).write_text(json.dumps({**json.loads((folder / GENERATION).read_text()), **PUBLISHED}))
    (folder / NAMED_TEMPLATE).parent.mkdir()
    (folder / NAMED_TEMPLATE).write_text("{{ tools }}")
    return yard, folder, yard.metrics()[-1]


def logits(model, folder):
    from transformers import AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(folder)("reverse abcd=dcba", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        return model.eval()(input_ids=tokens).logits


@pytest.mark.e2e
def test_transformers_loads_the_export_with_the_trainers_weights_and_tokenizer(exported):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    yard, folder, _ = exported
    loaded, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info[each] for each in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    final = load_file(yard.checkpoints / "final" / "model.safetensors")
    assert all(torch.equal(each, final[f"lm.{name}"]) for name, each in loaded.state_dict().items())
    work = LanguageModeling(resolve_params(SMALL | {"steps": 2}, Parallelism()))
    ours = work.build()
    ours.load_state_dict(final)
    tokens = work.tokenizer("reverse abcd=", return_tensors="pt")["input_ids"]
    theirs = AutoTokenizer.from_pretrained(folder)("reverse abcd=", return_tensors="pt")["input_ids"]
    assert tokens.equal(theirs)
    torch.testing.assert_close(ours.eval()(tokens), loaded.eval()(input_ids=tokens).logits[:, -1], rtol=0, atol=1e-6)
    assert json.loads((folder / GENERATION).read_text())["eos_token_id"] == work.tokenizer.eos_token_id


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("strategy", "params"),
    [
        ("single", {}),
        ("ddp", {"method": "dpo", "sftSteps": 0}),
        ("fsdp", {"method": "ppo", "sftSteps": 0, "maxNewTokens": 4}),
    ],
)
def test_every_method_continues_from_its_own_export(exported, fork_server, tmp_path, strategy, params):
    from transformers import AutoTokenizer

    _, folder, last = exported
    yard = Yard(fork_server, tmp_path)
    yard.train(settings(2, {"strategy": strategy}, pretrained=str(folder), **params), 1 if strategy == "single" else 2)
    summary = json.loads((yard.checkpoints / "final" / "summary.json").read_text())
    assert summary["evalLossUntrained"] == pytest.approx(last["evalLoss"], abs=1e-5)
    assert yard.metrics()[-1]["step"] == 2
    templates = AutoTokenizer.from_pretrained(yard.checkpoints / "export" / "hf").chat_template
    assert templates == AutoTokenizer.from_pretrained(folder).chat_template
    assert templates["tool_use"] == "{{ tools }}"


@pytest.mark.e2e
def test_a_folder_that_was_not_trained_here_is_evaluated(exported, yard):
    _, folder, last = exported
    evaluation = settings(2, pretrained=str(folder), evalEvery=1)
    evaluation["trainer"]["mode"] = "eval"
    yard.train(evaluation)
    done = json.loads((yard.checkpoints / "DONE").read_text())
    assert done["metrics"]["evalLoss"] == pytest.approx(last["evalLoss"], abs=1e-5)
    evaluation["checkpoint"] = {"resumeFrom": str(yard.root / "nothing")}
    gang = yard.start(evaluation)
    assert gang.wait() != [0], "a checkpoint that is named must exist"


@pytest.mark.e2e
def test_adapters_are_the_same_run_everywhere_and_load_in_peft(exported, fork_server, tmp_path, monkeypatch):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    _, folder, _ = exported
    relative = os.path.relpath(folder)  # of the folder that a run trains in
    lora = {"pretrained": relative, "loraRank": 2, "loraAlpha": 8, "loraTargets": ["q_proj", "v_proj"]}
    losses = {}
    for strategy, world in (("single", 1), ("ddp", 2), ("fsdp", 2)):
        (tmp_path / strategy).mkdir()
        yard = Yard(fork_server, tmp_path / strategy)
        yard.train(settings(3, {"strategy": strategy}, ("hf", "hf-merged"), **lora), world)
        losses[strategy] = [line["loss"] for line in yard.metrics() if "loss" in line]
        assert losses[strategy] == pytest.approx(losses["single"], abs=1e-5)
    out = yard.checkpoints / "export"
    assert not list((out / "hf").glob("model*.safetensors")), "adapters only"
    base = AutoModelForCausalLM.from_pretrained(folder)
    before = logits(base, folder)
    adapted = logits(PeftModel.from_pretrained(base, out / "hf"), out / "hf")
    merged = logits(AutoModelForCausalLM.from_pretrained(out / "hf-merged"), out / "hf-merged")
    assert (adapted - before).abs().max() > 1e-3, "training changed something"
    assert PUBLISHED.items() <= json.loads((out / "hf-merged" / GENERATION).read_text()).items()
    torch.testing.assert_close(adapted, merged, rtol=0, atol=1e-5)
    monkeypatch.chdir(tmp_path)
    config = json.loads((out / "hf" / "adapter_config.json").read_text())
    assert Path(config["base_model_name_or_path"]).samefile(folder)
    for path in (out / "hf", yard.checkpoints):
        talks = open_speaker(path, "cpu").model
        torch.testing.assert_close(logits(talks.lm, out / "hf"), merged, rtol=0, atol=1e-5)


def test_a_folder_of_the_cache_of_the_hub_is_answered_with_the_one_to_name(tmp_path):
    from torchyard_trainers.lm.folder import read_config

    (tmp_path / "snapshots" / "0a1b").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"is a folder of the Hub's cache; name snapshots/0a1b in it"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"pretrained: .*config.json is not a file of a model; name a folder that save_pretrained"),
        ({"config.json": "{"}, r"config.json is not a config of a model"),
        (
            {"config.json": '{"model_type": "pi0"}'},
            r"has model_type 'pi0', which transformers does not know as a causal",
        ),
        (
            {"config.json": '{"model_type": "llama", "quantization_config": {"bits": 4}}'},
            r"config.json describes quantized weights",
        ),
    ],
)
def test_a_folder_that_cannot_be_trained_is_named(tmp_path, files, message):
    from torchyard_trainers.lm.folder import read_config, read_tokenizer

    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_config(tmp_path)
    with pytest.raises(ConfigError, match=r"has no tokenizer; copy the tokenizer.json"):
        read_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("Qwen/Qwen3-0.6B", r"hf download Qwen/Qwen3-0.6B --local-dir FOLDER"),
        ("https://huggingface.co/Qwen/Qwen3-0.6B/tree/main", r"run hf download Qwen/Qwen3-0.6B --local-dir FOLDER"),
        ("gpt2", r"check the path, or if it is a model of the Hugging Face Hub, run hf download gpt2 --local-dir"),
        ("~/models/none", r"none does not exist; write the whole path: neither ~ nor variables of a shell"),
        ("/models/none", r"trainer.params.pretrained: /models/none does not exist; check the path"),
        (
            "adapters",
            r"adapters has adapters only; name the folder of their base model, and this one in checkpoint.init",
        ),
        ("gguf", r"gguf is GGUF; convert it: from_pretrained\(FOLDER, gguf_file=NAME\)"),
        ("gguf/model.gguf", r"is GGUF; convert it"),
        ("lfs/config.json", r"lfs/config.json is a file; name the folder that it is in"),
        ("lfs", r"lfs/config.json is a pointer of Git LFS, not the file; run git lfs pull in its folder"),
    ],
)
def test_a_path_that_is_no_folder_of_a_model_is_named_with_the_fix(tmp_path, monkeypatch, path, message):
    from torchyard_trainers.lm.folder import read_config

    monkeypatch.chdir(tmp_path)
    both = [f"both/{name}" for name in ("config.json", "model.safetensors", "adapter_config.json")]
    for name in ("adapters/adapter_config.json", "gguf/model.gguf", "lfs/config.json", *both):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ConfigError, match=message):
        read_config(Path(path))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pretrained": "/m", "model": "tiny-qwen3"}, "trainer.params.model: tiny-qwen3, but the geometry is that of"),
        ({"loraAlpha": 8.0}, "trainer.params.loraRank: is not set, but loraAlpha is"),
    ],
)
def test_fields_that_contradict_each_other_are_named(given, message):
    with pytest.raises(ConfigError, match=message):
        resolve_params(given, Parallelism())


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"])
def test_settings_of_a_tokenizer_without_its_vocabulary_are_refused(tmp_path, name):
    save_family("gpt2", tmp_path / "model")
    tokens = tmp_path / "tokens"
    tokens.mkdir()
    for file in TOKENIZER_FILES:
        if (tmp_path / "model" / file).is_file():
            (tmp_path / "model" / file).rename(tokens / file)
    (tmp_path / "model" / name).write_text('{"eos_token": "</s>"}')
    params = {"pretrained": str(tmp_path / "model")}
    with pytest.raises(ConfigError, match=rf"has the settings of a tokenizer \({name}\), but no vocabulary; copy"):
        LanguageModeling(resolve_params(params, Parallelism())).build()
    work = LanguageModeling(resolve_params(params | {"tokenizer": str(tokens)}, Parallelism()))
    work.build()
    assert work.assets()["tokenizer.json"] == tokens / "tokenizer.json"
    with pytest.raises(ConfigError, match=r"tokenizer: .* but models with random weights read characters"):
        resolve_params({"tokenizer": str(tokens)}, Parallelism())
