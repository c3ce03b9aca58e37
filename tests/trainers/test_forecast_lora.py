"""A forecast counts a frozen base once, in the precision that computes, and optimizer state of adapters only."""

import resource
from contextlib import contextmanager

import pytest
from folder_lm import FolderLm
from transformers import Qwen3Config

from torchyard_trainers import registry
from torchyard_trainers.core.config import Config, Parallelism, Trainer
from torchyard_trainers.core.memory.forecast import forecast, imagined_world
from torchyard_trainers.core.parallel import state_bytes
from torchyard_trainers.core.weights import built

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 512, "head_dim": 32}


@pytest.mark.parametrize(("strategy", "ranks"), [("single", 1), ("fsdp", 2)])
def test_a_frozen_base_costs_its_weights_and_adapters_cost_a_training_state(tmp_path, strategy, ranks):
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    Qwen3Config(**SIZES, **heads, tie_word_embeddings=True).save_pretrained(tmp_path)

    def make():
        work = FolderLm({"folder": str(tmp_path), "lora": True, "pretrained": False})
        work.evaluate = lambda session: {}
        return work

    model = built(make())
    adapters = sum(each.numel() for each in model.parameters() if each.requires_grad)
    base = sum(each.numel() for each in model.parameters()) - adapters
    assert state_bytes(model, precision="bf16") == 16 * adapters + 2 * base  # what the choice of a strategy counts
    assert state_bytes(model, precision="fp32") == 16 * adapters + 4 * base
    with imagined_world(ranks, ranks) as world:
        usage = forecast(
            make,
            world,
            strategy,
            settings=Parallelism(),
            precision="bf16",
            micro_batch=2,
            real=False,
            on_gpu=False,
        )
    assert usage.parameters == pytest.approx((2 * base + 4 * adapters) / ranks, rel=0.01)
    assert usage.optimizer == pytest.approx(8 * adapters / ranks, rel=0.05)
    assert usage.gradients <= 4 * adapters * 1.01


@pytest.mark.parametrize("params", [{}, {"loraRank": 8}])
def test_no_process_builds_the_weights_of_a_large_preset(params):
    with resident(limit=1 << 30):
        work = registry.build(Config(trainer=Trainer(name="lm", params={"model": "llama3-8b", **params})))
        model = built(work)
    assert sum(each.numel() for each in model.parameters()) > 8e9
    assert all(each.is_meta for each in model.parameters())


@contextmanager
def resident(limit):
    """Limit the resident memory that a `with` block may add."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < limit
