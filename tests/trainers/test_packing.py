"""Packing by tokens: the algebra, and that a packed step is the same step."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchyard_trainers.core.data.packing import concatenated, pack

steps = st.tuples(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 8), st.integers(0, 60)).map(
    lambda each: (each[0], each[1], max(each[0]) + each[2])
)


@given(steps)
def test_every_sample_counts_once_within_the_budget_in_equally_many_micro_batches(step):
    lengths, world, budget = step
    plans = [pack(lengths, world, rank, budget) for rank in range(world)]
    assert len({len(plan) for plan in plans}) == 1
    counted = []
    for plan in plans:
        for slots in plan:
            assert slots.positions
            assert len(slots.positions) == len(slots.weights)
            assert sum(lengths[position] for position in slots.positions) <= budget
            counted += [position for position, weight in zip(slots.positions, slots.weights, strict=True) if weight]
    assert sorted(counted) == list(range(len(lengths)))


@given(steps)
def test_a_plan_has_few_micro_batches_and_is_pure(step):
    lengths, world, budget = step
    rounds = len(pack(lengths, world, 0, budget))
    # First-fit decreasing needs at most 11/9 of the fewest bins, and one more (Dosa 2007).
    fewest = -(-sum(lengths) // budget)
    if max(lengths) * 2 <= budget:
        assert rounds <= -(-(2 * fewest) // world)
    assert pack(tuple(lengths), world, world - 1, budget) == pack(lengths, world, world - 1, budget)


def test_micro_batches_of_one_round_are_about_equally_long():
    lengths = [37 * number % 101 + 1 for number in range(256)]
    plans = [pack(lengths, 4, rank, 1024) for rank in range(4)]
    for at in range(len(plans[0])):
        tokens = [sum(lengths[position] for position in plan[at].positions) for plan in plans]
        assert max(tokens) - min(tokens) <= 0.05 * max(tokens)


def test_a_sample_longer_than_the_budget_is_an_error():
    with pytest.raises(ValueError, match="a sample of 9 tokens is longer than a micro-batch of 8 tokens"):
        pack([3, 9], 1, 0, 8)


def test_positions_restart_at_each_document():
    found = concatenated([torch.tensor([5, 6, 7]), torch.tensor([8]), torch.tensor([9, 10])])
    assert found["tokens"].tolist() == [[5, 6, 7, 8, 9, 10]]
    assert found["positions"].tolist() == [[0, 1, 2, 0, 0, 1]]
    assert found["document"].tolist() == [[0, 0, 0, 1, 2, 2]]


def test_a_model_of_transformers_sees_packed_documents_alone():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=32,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
        )
    ).eval()
    documents = [torch.randint(32, (size,)) for size in (5, 2, 9)]
    packed = concatenated(documents)
    with torch.no_grad():
        together = model(packed["tokens"], position_ids=packed["positions"], use_cache=False).logits[0]
        alone = [model(each[None], use_cache=False).logits[0] for each in documents]
    assert torch.allclose(together, torch.cat(alone), atol=1e-5)
