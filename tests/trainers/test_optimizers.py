"""Groups by parameter name, several optimizers as one, and 8-bit state."""

import sys

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW
from transformers import LlamaConfig, LlamaForCausalLM

from torchyard_trainers.core.checkpoints.shards import DcpShards, capture, fill_all
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.optimizers import adamw, as_one, groups, muon, parts_of, trainable
from torchyard_trainers.core.parallel import Parallel
from torchyard_trainers.core.step import set_learning_rate
from torchyard_trainers.core.world import World


def model(**more):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 64}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2, **more))


def names_of(model, group):
    names = {id(each): name for name, each in model.named_parameters()}
    return {names[id(each)] for each in group["params"]}


def test_norms_biases_and_embeddings_do_not_decay_and_a_head_has_its_own_rate():
    language = model(attention_bias=True)
    found = groups(language, weight_decay=0.1, rates={"lm_head.*": 10.0})
    by_kind = {(group["weight_decay"], group["lr_scale"]): names_of(language, group) for group in found}
    assert by_kind[0.1, 10.0] == {"lm_head.weight"}
    assert "model.embed_tokens.weight" in by_kind[0.0, 1.0]
    assert all(name.endswith((".bias", "norm.weight", "embed_tokens.weight")) for name in by_kind[0.0, 1.0])
    assert all(name.endswith("proj.weight") for name in by_kind[0.1, 1.0])
    assert sum(map(len, by_kind.values())) == len(list(language.parameters()))


def test_a_frozen_parameter_is_in_no_group():
    language = model()
    language.model.requires_grad_(requires_grad=False)
    (group,) = groups(language, weight_decay=0.1)
    assert names_of(language, group) == {"lm_head.weight"} == set(trainable(language))


def test_a_rate_for_a_parameter_that_does_not_exist_is_an_error():
    with pytest.raises(ConfigError, match=r"learning rate of 'value_head\.\*': no trainable parameter has such a name"):
        groups(model(), weight_decay=0.1, rates={"value_head.*": 2.0})


def test_muon_has_the_matrices_and_adamw_the_rest():
    language = model(tie_word_embeddings=True)
    matrices, rest = muon(language, 1e-3)
    assert isinstance(matrices, torch.optim.Muon)
    assert isinstance(rest, AdamW)
    assert {name.rsplit(".", 2)[-2][-5:] for group in matrices.param_groups for name in names_of(language, group)} == {
        "_proj"
    }
    (vectors,) = rest.param_groups
    assert "model.embed_tokens.weight" in names_of(language, vectors)


def test_muon_makes_the_step_of_pytorchs():
    torch.manual_seed(0)
    ours, theirs = nn.Linear(8, 4, bias=False), nn.Linear(8, 4, bias=False)
    theirs.load_state_dict(ours.state_dict())
    optimizers = [
        as_one(muon(ours, 0.1)),
        torch.optim.Muon(theirs.parameters(), lr=0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
    ]
    for _ in range(3):
        inputs = torch.randn(5, 8)
        for layer, optimizer in zip((ours, theirs), optimizers, strict=True):
            layer(inputs).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert torch.allclose(ours.weight, theirs.weight, atol=1e-7)


def test_several_optimizers_step_as_one():
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    one = as_one([SGD(first.parameters(), lr=1.0), AdamW(second.parameters(), lr=1.0)])
    for group in parts_of(one)[1].param_groups:
        group["lr_scale"] = 0.5
    set_learning_rate(one, 0.1)
    assert [group["lr"] for group in one.param_groups] == [0.1, 0.05]
    before = [each.weight.detach().clone() for each in (first, second)]
    (first(torch.ones(1, 2)) + second(torch.ones(1, 2))).sum().backward()
    one.step()
    one.zero_grad()
    assert torch.allclose(first.weight, before[0] - 0.1)
    assert torch.allclose(second.weight, before[1] * (1 - 0.05 * 0.01) - 0.05, atol=1e-6)
    assert first.weight.grad is None
    assert len(one.state) == 2  # SGD has none


def test_8_bit_state_without_torchao_is_a_clear_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(ConfigError, match=r"8-bit AdamW needs torchao, .* install torchyard\[lowbit\] or use adamw"):
        adamw(model(), 1e-3, bits=8)


@torch.compiler.set_stance("force_eager")
def test_8_bit_state_is_saved_and_loaded_without_a_change(tmp_path):
    pytest.importorskip("torchao", reason="torchao is not installed: pip install torchyard[lowbit]")
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 64)) for _ in range(2)]
    optimizers = [adamw(net, 1e-2, bits=8) for net in nets]
    shards = DcpShards(World(0, 1, 0, torch.device("cpu"), grouped=False))

    def step(net, optimizer):
        net(torch.eye(64)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step(nets[0], optimizers[0])
    shards.save(capture(Parallel("single", nets[0], nets[0]), optimizers[0], {}), tmp_path)
    fill_all(Parallel("single", nets[1], nets[1]), optimizers[1], {}, shards, tmp_path)
    first, second = (optimizer.state[net[0].weight] for net, optimizer in zip(nets, optimizers, strict=True))
    for name in ("exp_avg", "exp_avg_sq"):
        assert type(second[name]) is type(first[name]), "still 8 bits"
        assert torch.equal(first[name].dequantize(), second[name].dequantize())
    negative = first["exp_avg"].dequantize().view(-1, first["exp_avg"].block_size)
    assert (negative.amin(-1).abs() > negative.amax(-1)).any(), (
        "blocks whose largest value is negative are scaled otherwise"
    )
    for net, optimizer in zip(nets, optimizers, strict=True):
        step(net, optimizer)
    for one, other in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(one, other)
