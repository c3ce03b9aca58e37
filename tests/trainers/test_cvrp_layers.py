"""Parts of the cvrp models that are computed in another way than they are written down: what comes out is the same."""

import pytest
import torch

from torchyard_trainers.cvrp import tours
from torchyard_trainers.cvrp.decoder import Tables
from torchyard_trainers.cvrp.encoders import AddAndNorm
from torchyard_trainers.cvrp.instances import generate
from torchyard_trainers.cvrp.policy import Policy


def test_the_norm_after_a_skip_has_the_gradient_of_its_formula():
    torch.manual_seed(0)
    norm = AddAndNorm(8)
    torch.nn.init.normal_(norm.weight)
    inputs = [torch.randn(3, 5, 8, requires_grad=True) for _ in range(2)]
    towards = torch.randn(3, 5, 8)
    wanted = [*inputs, norm.weight, norm.bias]
    total = sum(inputs)
    variance, mean = torch.var_mean(total, 1, correction=0, keepdim=True)
    formula = (total - mean) / (variance + 1e-5).sqrt() * norm.weight + norm.bias
    found = norm(*inputs)
    torch.testing.assert_close(found, formula)
    for gradient, expected in zip(
        torch.autograd.grad(found, wanted, towards), torch.autograd.grad(formula, wanted, towards), strict=True
    ):
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", ["am", "gt"])
def test_precomputed_tables_and_attention_give_the_same_scores(model):
    torch.manual_seed(4)
    policy = Policy(model, 32, 2, 1)
    instances = generate(1, "t", torch.arange(5), customers=7, capacity=20)
    memory = policy.decoder.remember(policy.encoder(instances))
    assert isinstance(memory.tables, Tables)
    state = tours.depart(instances, 3)
    for nodes in ([[1, 2, 3]], [[0, 4, 5]]):
        state = tours.visit(instances, state, torch.tensor(nodes).expand(5, 3))
        looked_up = policy.decoder(memory, instances, state)
        computed = policy.decoder(memory._replace(tables=None), instances, state)
        assert torch.allclose(looked_up, computed, atol=1e-5)


def test_a_dynamic_decoder_updates_the_embeddings_of_nodes_at_every_move():
    """The products that come apart are those with embeddings written out, situation by situation."""
    torch.manual_seed(5)
    policy = Policy("dgt", 16, 2, 1)
    decoder = policy.decoder
    instances = generate(1, "t", torch.arange(3), customers=5, capacity=20)
    memory = decoder.remember(policy.encoder(instances))
    state = tours.visit(instances, tours.depart(instances, 2), torch.tensor([[1, 2]] * 3))
    options = tours.feasible(instances, state)
    news = torch.nn.functional.silu(decoder.features(decoder._look(instances, state, options)))
    to_keys, to_values, to_pointers = (news @ part.T for part in decoder.renewal.weight.chunk(3, 0))
    query = decoder._query(memory, instances, state)
    for b in range(3):
        for s in range(2):
            keys = memory.keys[b].transpose(0, 1).flatten(1) + to_keys[b, s]
            values = memory.values[b].transpose(0, 1).flatten(1) + to_values[b, s]
            mixed = []
            for head in range(2):
                part = slice(8 * head, 8 * head + 8)
                scores = (keys[:, part] @ query[b, s, part] / 8**0.5).masked_fill(~options[b, s], -torch.inf)
                mixed.append(scores.softmax(0) @ values[:, part])
            pointers = memory.pointers[b] + to_pointers[b, s]
            expected = 10 * torch.tanh(pointers @ torch.cat(mixed) / 4)
            found = decoder(memory, instances, state)[b, s]
            assert torch.allclose(found[options[b, s]], expected[options[b, s]], atol=1e-5)
