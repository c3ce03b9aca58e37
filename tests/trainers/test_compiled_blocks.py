"""Code of compiled blocks: identical blocks share it, also where each reads its own part of a cache."""

from functools import partial

import pytest
import torch
from torch._dynamo.utils import counters

from torchyard_trainers.core.kv_cache import hand_out_layers, reading, writing, written
from torchyard_trainers.core.parallel import compile_blocks


@pytest.fixture
def only_traced(monkeypatch):
    """Trace compiled functions, and run the plain code of what was traced."""
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    yield
    torch._dynamo.reset()


def decoder(layers):
    from transformers import GemmaConfig, GemmaModel

    torch.manual_seed(0)
    config = GemmaConfig(
        vocab_size=8,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        attn_implementation="sdpa",
    )
    model = GemmaModel(config)
    hand_out_layers(model.layers)

    return model


def passes(model):
    """Return the sum of the hidden states of a pass after a prefix, and its gradient by the prefix."""
    prefix = torch.ones(1, 3, 16, requires_grad=True)
    cache = writing(len(model.layers))
    model(inputs_embeds=prefix, past_key_values=cache)
    after = torch.ones(2, 2, 16)
    found = model(inputs_embeds=after, past_key_values=reading(written(cache)), use_cache=False).last_hidden_state
    (gradient,) = torch.autograd.grad(found.square().sum(), prefix)
    return found, gradient


def test_a_deep_model_that_reads_a_cache_is_compiled_as_often_as_a_flat_one(only_traced):
    graphs = []
    for layers in (3, 12):
        model = decoder(layers)
        plain = passes(model)
        counters.clear()
        compile_blocks(list(model.layers))
        torch.testing.assert_close(passes(model), plain)
        graphs.append(counters["stats"]["unique_graphs"])
        assert not counters["graph_break"]
        torch._dynamo.reset()
    assert graphs[0] == graphs[1] > 0
