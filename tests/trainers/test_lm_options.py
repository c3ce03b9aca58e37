"""`lm`: passes over the data, dropout of adapters, modules trained beside them, and new tokens."""

import json

import pytest
import torch
from little_rl import ALONE
from peft import PeftModel
from tests.support.trainers.families import save_family
from tests.support.trainers.gangs import Yard
from transformers import AutoModelForCausalLM, AutoTokenizer

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.export import hf
from torchyard_trainers.core.new_rows import fill_grown, new_rows
from torchyard_trainers.core.parallel import Parallel
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.weights import allocate, built, fill
from torchyard_trainers.core.workload import Session
from torchyard_trainers.lm.generation.talk import open_speaker
from torchyard_trainers.lm.params import resolve_params, with_steps
from torchyard_trainers.lm.task import LanguageModeling

NEW = ["<call>", "<return>"]
FILES = {"data": ["a.jsonl"]}


@pytest.mark.parametrize(
    ("given", "samples", "steps"),
    [
        ({"epochs": 1, "batch": 8}, 64, 8),
        ({"epochs": 2.5, "batch": 8}, 13, 5),  # 32.5 samples
        ({"epochs": 0.001, "batch": 8}, 13, 1),
        ({"epochs": 3, "batch": 8, "method": "dpo", "sftSteps": 4}, 16, 10),
        # A rollout of 2 minibatches of 12 completions has 6 prompts, and takes 2 x 3 steps.
        ({"epochs": 1, "batch": 12, "method": "grpo", "group": 4, "minibatches": 2, "iterations": 3}, 13, 18),
    ],
)
def test_epochs_are_steps_once_the_samples_are_counted(given, samples, steps):
    settings = with_steps(resolve_params(FILES | given, Parallelism()), samples)
    assert settings.steps == steps
    assert settings.warmup_steps == min(10, (steps - settings.sft_steps) // 10)
    as_steps = resolve_params(
        FILES | {name: each for name, each in given.items() if name != "epochs"} | {"steps": steps}, Parallelism()
    )
    assert as_steps.warmup_steps == settings.warmup_steps


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (FILES | {"epochs": 1, "steps": 9}, "trainer.params.epochs: 1, but steps is 9; remove one"),
        ({"epochs": 1}, "trainer.params.epochs: 1, but the samples of a task have no end; set steps, or data"),
        ({"loraDropout": 0.1}, "trainer.params.loraRank: is not set, but loraDropout is; set it, or remove it"),
        ({"method": "dpo", "loraRank": 1, "loraDropout": 0.1}, "loraDropout: is of method sft, not dpo; remove it"),
        ({"addTokens": NEW}, "trainer.params.addTokens: is set, but models with random weights read characters"),
        (
            {"pretrained": "m", "addTokens": NEW, "loraRank": 1},
            "with loraRank their embeddings stay frozen; set modulesToSave: [embed_tokens, lm_head]",
        ),
    ],
)
def test_options_that_contradict_each_other_are_named(given, words):
    with pytest.raises(ConfigError) as caught:
        resolve_params(given, Parallelism())
    assert words in str(caught.value)


def test_a_warm_up_that_is_longer_than_the_epochs_is_named():
    settings = resolve_params(FILES | {"epochs": 1, "warmupSteps": 9, "batch": 8}, Parallelism())
    with pytest.raises(
        ConfigError, match=r"trainer.params.warmupSteps: a warm-up of 9 steps does not fit into 2 steps"
    ):
        with_steps(settings, 16)


def begun(folder, **params):
    """A workload and its model with the weights of a folder."""
    work = LanguageModeling(resolve_params({"pretrained": str(folder), "steps": 2, **params}, Parallelism()))
    model = built(work)
    allocate(model, ALONE.device)
    fill(work, model, ALONE)
    return work, model


def exported(work, model, folder, form):
    computing = Precision("fp32", ALONE.device, sharded=False)
    reporter = Reporter(None, rank=0, local_rank=0, round_number=0)
    session = Session(Parallel("single", model, model.eval()), computing, ALONE, reporter, None)
    folder.mkdir()
    hf.write(work, session, folder, form, shared=True, verify=True)
    return folder


@torch.no_grad()
def logits(model, tokens):
    return model.eval()(input_ids=tokens).logits


@pytest.mark.parametrize(("family", "whole"), [("mistral", ["embed_tokens", "lm_head"]), ("gpt2", ["wte"])])
def test_new_tokens_and_modules_beside_adapters_load_in_peft_and_transformers(tmp_path, family, whole):
    folder = save_family(family, tmp_path / "base")
    work, model = begun(folder, loraRank=2, modulesToSave=whole, addTokens=NEW)
    base = AutoModelForCausalLM.from_pretrained(folder)
    old = len(base.get_input_embeddings().weight)
    rows = model.lm.get_input_embeddings().weight
    torch.testing.assert_close(rows[:old], base.get_input_embeddings().weight, rtol=0, atol=0)
    base.resize_token_embeddings(old + len(NEW))  # whose new rows are drawn around the same mean
    torch.testing.assert_close(rows, base.get_input_embeddings().weight, rtol=0, atol=1e-3)
    learned = [name for name, each in model.named_parameters() if each.requires_grad]
    assert all(".lora_" in name or any(f".{each}." in name for each in whole) for name in learned)
    with torch.no_grad():
        for each in model.parameters():
            each.add_(torch.randn_like(each) * 0.1 * each.requires_grad)
    adapters, merged = (exported(work, model, tmp_path / form, form) for form in ("hf", "hf-merged"))
    tokens = AutoTokenizer.from_pretrained(adapters)("reverse <call>ab<return>", return_tensors="pt")["input_ids"]
    assert {old, old + 1} <= set(tokens[0].tolist())
    loaded, info = AutoModelForCausalLM.from_pretrained(merged, output_loading_info=True)
    assert not any(info[each] for each in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    expected = logits(model.lm, tokens)
    torch.testing.assert_close(logits(loaded, tokens), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(logits(PeftModel.from_pretrained(base, adapters), tokens), expected, rtol=0, atol=1e-5)
    assert loaded.config.tie_word_embeddings == (family == "gpt2")
    for each in (adapters, merged):
        talks = open_speaker(each, "cpu")
        torch.testing.assert_close(logits(talks.model.lm, tokens), expected, rtol=0, atol=1e-5)
        assert talks.tokenizer.convert_tokens_to_ids(NEW) == [old, old + 1]


def test_adapters_drop_what_they_read(tmp_path):
    _, model = begun(save_family("gpt2", tmp_path / "base"), loraRank=2, loraDropout=0.3)
    tokens = torch.arange(5, 25)[None]
    with torch.no_grad():
        for each in model.parameters():
            each.add_(torch.randn_like(each) * 0.1 * each.requires_grad)
        first, second = (model.lm.train()(input_ids=tokens).logits for _ in range(2))
    assert (first - second).abs().max() > 1e-3
    assert torch.equal(logits(model.lm, tokens), logits(model.lm, tokens)), "not in evaluation"


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"modulesToSave": ["wpe2"]}, "modulesToSave: 'wpe2': the model has no such module; its embedding and output"),
        ({"modulesToSave": ["mlp"]}, "modulesToSave: 'mlp': transformer.h.0.mlp has no weights of its own; name the"),
        ({"modulesToSave": ["c_fc"]}, "modulesToSave: 'c_fc': transformer.h.0.mlp.c_fc has adapters; leave it out"),
        (
            {"modulesToSave": ["ln_f"], "addTokens": NEW},
            "leaves out weights of the tokens in addTokens; set it to [wte",
        ),
        ({"modulesToSave": ["wte"], "addTokens": ["a"]}, "addTokens: 'a' is a token of the tokenizer already"),
    ],
)
def test_modules_and_tokens_that_do_not_fit_the_model_are_named(tmp_path, params, words):
    folder = save_family("gpt2", tmp_path / "base")
    with pytest.raises(ConfigError) as caught:
        begun(folder, loraRank=2, **params)
    assert words in str(caught.value)


def test_new_rows_have_the_mean_and_a_part_of_the_covariance_of_the_old_ones_on_any_shard():
    whole = torch.randn(5000, 3, generator=torch.Generator().manual_seed(0)) @ torch.tensor(
        [[2.0, 0, 0], [1, 1, 0], [0, 0, 3]]
    )
    rows = new_rows(whole, 5000, 4000, "x")
    torch.testing.assert_close(rows.mean(0), whole.mean(0), rtol=0, atol=1e-5)
    torch.testing.assert_close(rows.double().T.cov() * 1e9, whole.double().T.cov(), rtol=0.15, atol=0.3)

    class Stored:
        def get_shape(self):
            return list(whole.shape)

        def __getitem__(self, at):
            return whole[at]

    full, added = torch.full((5010, 3), torch.nan), range(4996, 5006)  # of padded rows in the file, and behind them
    fill_grown(full, (slice(0, 5010), slice(0, 3)), Stored(), added, "x")
    assert torch.equal(full[:4996], whole[:4996])
    torch.testing.assert_close(full[4996:5006], whole[:4996].mean(0).expand(10, 3), rtol=0, atol=1e-3)
    assert not full[5006:].any()
    parts = [torch.full((835, 3), torch.nan) for _ in range(6)]
    for number, part in enumerate(parts):
        fill_grown(part, (slice(number * 835, (number + 1) * 835), slice(0, 3)), Stored(), added, "x")
    assert torch.equal(torch.cat(parts), full)


@pytest.mark.e2e
def test_epochs_with_dropout_and_new_tokens_are_the_same_run_after_a_stop(fork_server, tmp_path):
    folder = save_family("gpt2", tmp_path / "base")
    rows = [{"prompt": f"<call>{number}", "completion": f"{number}<return>"} for number in range(30)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    small = {"batch": 8, "lr": 3e-3, "lrFinal": 3e-3, "schedule": "constant", "evalSamples": 2, "evalCompletions": 0}
    lora = {"pretrained": str(folder), "addTokens": NEW, "loraRank": 2, "modulesToSave": ["wte"], "loraDropout": 0.3}
    files = {"data": [str(tmp_path / "a.jsonl")], "holdOut": 0.2, "logEvery": 1, "warmupSteps": 0}

    def run(name, epochs):
        (tmp_path / name).mkdir(exist_ok=True)
        yard = Yard(fork_server, tmp_path / name)
        trainer = {"name": "lm", "params": small | lora | files | {"epochs": epochs}}
        common = {"device": "cpu", "logging": {"tensorboard": False}, "parallelism": {"microBatchSize": 4}}
        yard.train({"trainer": trainer, **common})
        return yard

    straight = run("straight", 2)
    assert sorted(straight.losses()) == [1, 2, 3, 4, 5, 6], "2 x 24 samples in steps of 8"
    run("stopped", 1)
    again = run("stopped", 2)
    assert again.losses() == straight.losses()
    assert json.loads((again.checkpoints / "DONE").read_text())["step"] == 6
    assert again.report()["epoch"] == 2
