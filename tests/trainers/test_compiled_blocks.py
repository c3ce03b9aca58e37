"""Code of compiled blocks: identical blocks share it, also where each reads its own part of a cache."""

from functools import partial

import pytest
import torch
from torch._dynamo.utils import counters

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.kv_cache import hand_out_layers, reading, writing, written
from torchyard_trainers.core.parallel import compile_blocks
from torchyard_trainers.core.recompilations import warn_of_many_shapes
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.lm.models import build_model, decoder_layers
from torchyard_trainers.lm.tokens import character_tokenizer


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


@pytest.mark.parametrize(
    ("dynamic", "graphs", "words"),
    [(True, 3, []), (False, 8, ["parallelism.compile: blocks met more shapes than PyTorch compiles for"])],
)
def test_samples_of_many_lengths_share_code_or_a_warning_says_how(only_traced, dynamic, graphs, words):
    model = build_model("tiny-qwen3", character_tokenizer(), seed=1)
    settings = Parallelism(compile=True, dynamic_shapes=dynamic, deterministic=False)
    reporter = Reporter(None, rank=0, local_rank=0, round_number=1)
    counters.clear()
    compile_blocks(decoder_layers(model.lm), dynamic=dynamic)
    with warn_of_many_shapes(reporter, settings):
        for rows, length in [(4, 20 + 7 * number) for number in range(10)] + [(2, 33)]:
            tokens = torch.full((rows, length), 5)
            model(tokens, tokens).backward()
    assert counters["stats"]["unique_graphs"] <= graphs
    assert [text.partition(",")[0] for text in reporter.facts["warnings"]] == words
