"""`lm` with a base of 4 bits: model, training and export are those of transformers, bitsandbytes and peft."""

import json

import pytest
import torch
from little_rl import ALONE
from peft import LoraConfig, PeftModel, get_peft_model
from tests.support.trainers.families import FAMILIES, save_family
from tests.support.trainers.gangs import Yard
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from torchyard_trainers.core import quantization
from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.export import hf
from torchyard_trainers.core.parallel import Parallel
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.quantization import QuantizedLinear
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.weights import allocate, built, fill
from torchyard_trainers.core.workload import Session
from torchyard_trainers.lm.params import resolve_params
from torchyard_trainers.lm.task import LanguageModeling

WIDE = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 32}  # a block has 64 numbers of a row
TOKENS = torch.randint(3, 90, (2, 17), generator=torch.Generator().manual_seed(3))
LORA = {"loraRank": 2, "loraAlpha": 8, "quantize": "nf4"}
NF4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of a family whose output layer is not tied."""
    patch = pytest.MonkeyPatch()
    patch.setitem(FAMILIES, "mistral", FAMILIES["mistral"] | WIDE)
    yield save_family("mistral", tmp_path_factory.mktemp("base"))
    patch.undo()


def begun(folder, **params):
    work = LanguageModeling(resolve_params({"pretrained": str(folder), "steps": 2, **LORA, **params}, Parallelism()))
    model = built(work)
    allocate(model, ALONE.device)
    fill(work, model, ALONE)
    return work, model


def quantized(folder):
    return AutoModelForCausalLM.from_pretrained(folder, quantization_config=NF4, dtype=torch.float32, device_map="cpu")


def logits(model):
    """In `eval` mode, bitsandbytes computes in bf16 on some CPUs."""
    return model.train()(input_ids=TOKENS).logits


def loss_of(model):
    found = logits(model)[:, :-1]
    return cross_entropy(found.flatten(0, 1), TOKENS[:, 1:].flatten())


def test_training_is_that_of_transformers_with_bitsandbytes_and_peft(folder):
    _, model = begun(folder)
    assert sum(isinstance(each, QuantizedLinear) for each in model.modules()) == 14, "all but the output layer"
    peer = quantized(folder)
    torch.testing.assert_close(logits(model.lm), logits(peer), rtol=0, atol=1e-5)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    peer = get_peft_model(peer, LoraConfig(r=2, lora_alpha=8, target_modules=targets))
    ours = {name: each for name, each in model.lm.named_parameters() if each.requires_grad}
    theirs = {name: each for name, each in peer.named_parameters() if each.requires_grad}
    assert {f"base_model.model.{name}" for name in ours} == set(theirs)
    with torch.no_grad():
        for name, each in ours.items():
            theirs[f"base_model.model.{name}"].copy_(each)
    losses = []
    for lm, parameters in ((model.lm, ours), (peer, theirs)):
        optimizer, measured = torch.optim.AdamW(parameters.values(), lr=1e-2), []
        for _ in range(8):
            loss = loss_of(lm)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            measured.append(loss.item())
        losses.append(measured)
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    assert losses[0][-1] < losses[0][0] - 0.1


@torch.no_grad()
def test_exports_are_the_trained_model_in_peft_and_in_transformers(folder, tmp_path):
    work, model = begun(folder, loraTargets=["q_proj", "down_proj"])
    for each in model.parameters():
        if each.requires_grad:
            each.add_(torch.randn_like(each) * 0.2)
    reporter = Reporter(None, rank=0, local_rank=0, round_number=0)
    computing = Precision("fp32", ALONE.device, sharded=False)
    session = Session(Parallel("single", model, model.eval()), computing, ALONE, reporter, None)
    for form in ("hf", "hf-merged"):
        (tmp_path / form).mkdir()
        hf.write(work, session, tmp_path / form, form, shared=True, verify=True)
    expected = logits(model.lm)
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path / "hf-merged", output_loading_info=True)
    assert not any(info[each] for each in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    torch.testing.assert_close(logits(loaded), expected, rtol=0, atol=1e-4)
    adapted = PeftModel.from_pretrained(quantized(folder), tmp_path / "hf")
    torch.testing.assert_close(logits(adapted), expected, rtol=0, atol=1e-4)


def test_a_layer_has_the_gradient_of_the_matrix_that_it_stands_for():
    layer = QuantizedLinear(torch.nn.Linear(128, 96).requires_grad_(requires_grad=False))
    layer.put(layer.weight, layer.scales, torch.randn(96, 128))
    matrix, states = layer.dequantized(), torch.randn(5, 128, requires_grad=True)
    torch.testing.assert_close(layer(states), states @ matrix.T + layer.bias)
    (found,) = torch.autograd.grad(layer(states).square().sum(), states)
    (expected,) = torch.autograd.grad((states @ matrix.T + layer.bias).square().sum(), states)
    torch.testing.assert_close(found, expected)
    assert layer.weight.numel() + layer.scales.numel() == 96 * 128 // 2 + 96 * 128 // 16
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(states).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"quantize": "nf4"}, "trainer.params.loraRank: is not set, but quantize is; set it, or remove it"),
        (
            {"quantize": "nf4", "loraRank": 1},
            "trainer.params.quantize: nf4, but pretrained is not set; set it, or remove",
        ),
        (
            {"quantize": "nf4", "loraRank": 1, "pretrained": "m", "method": "grpo", "engine": "vllm"},
            "trainer.params.quantize: nf4, but engine vllm gets weights of 16 bits; use engine: torch",
        ),
    ],
)
def test_fields_that_do_not_go_with_4_bits_are_named(given, words):
    with pytest.raises(ConfigError) as caught:
        resolve_params(given, Parallelism())
    assert words in str(caught.value)


def test_a_package_that_is_missing_and_a_model_without_blocks_are_named(folder, tmp_path, monkeypatch):
    with pytest.raises(
        ConfigError, match=r"quantize: nf4, but the model has no frozen linear layer whose rows are a mult"
    ):
        begun(save_family("phi", tmp_path / "narrow"))
    monkeypatch.setattr(quantization, "find_spec", lambda _: None)
    with pytest.raises(
        ConfigError, match=r"quantize: nf4 needs bitsandbytes, .*; install torchyard\[qlora\] or remove"
    ):
        begun(folder)


@pytest.mark.e2e
def test_ranks_that_hold_rows_of_4_bits_and_of_new_tokens_train_as_one_process(folder, fork_server, tmp_path):
    rows = [{"prompt": f"<call>{number}", "completion": f"{number}!"} for number in range(30)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    params = LORA | {"pretrained": str(folder), "data": [str(tmp_path / "a.jsonl")], "steps": 3, "batch": 8, "lr": 1e-2}
    params |= {"addTokens": ["<call>"], "modulesToSave": ["embed_tokens", "lm_head"]}
    params |= {"warmupSteps": 0, "logEvery": 1, "evalSamples": 2, "evalCompletions": 0}
    losses = []
    for strategy, world in (("single", 1), ("fsdp", 2)):
        (tmp_path / strategy).mkdir()
        yard = Yard(fork_server, tmp_path / strategy)
        common = {"device": "cpu", "logging": {"tensorboard": False}, "parallelism": {"strategy": strategy}}
        yard.train({"trainer": {"name": "lm", "params": params}, **common}, world)
        losses.append(yard.losses())
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
