"""The parts of `lm`: parameters, tasks, tokens, models, batches; each against what it must equal."""

from contextlib import nullcontext

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.device import as_shapes
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.losses import IGNORE
from torchyard_trainers.lm import models
from torchyard_trainers.lm.data.batches import documents, encode
from torchyard_trainers.lm.models import PRESETS, build_model
from torchyard_trainers.lm.params import resolve_params
from torchyard_trainers.lm.tasks import TASKS, exact_match, rows_of, shaped
from torchyard_trainers.lm.tokens import CHARACTERS, character_tokenizer

# Published numbers of parameters; the first is ours.
PARAMETERS = {
    "tiny-qwen3": 74_368,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
}


@pytest.fixture(scope="module")
def tokenizer():
    return character_tokenizer()


@pytest.fixture
def model(tokenizer):
    return build_model("tiny-qwen3", tokenizer, seed=1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"task": "arithmetic", "length": 16}, "trainer.params.length: 16, but arithmetic has at most 15 digits"),
        ({"task": "arithmetic", "symbols": 3}, "trainer.params.symbols: 3, but arithmetic has digits; remove it"),
        ({"steps": 5, "warmupSteps": 6}, "trainer.params.warmupSteps: a warm-up of 6 steps does not fit into 5 steps"),
        ({"model": "tiny-qwen"}, "trainer.params.model: 'tiny-qwen' is not known; did you mean"),
        ({"learningRate": 0.1}, "unknown field `learningRate`"),
    ],
)
def test_a_mistake_is_named(given, message):
    with pytest.raises(ConfigError) as caught:
        resolve_params(given, Parallelism())
    assert message in str(caught.value)


def test_the_global_batch_of_the_job_overrides_the_preset():
    assert resolve_params({}, Parallelism(global_batch_size=6)).batch == 6


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_the_published_number_of_parameters(name, tokenizer):
    with torch.device("meta"):
        model = build_model(name, tokenizer, seed=1)
    assert sum(each.numel() for each in model.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("task", TASKS)
def test_a_row_depends_on_seed_and_id_only_and_its_wrong_answer_is_of_the_same_form(task):
    rows = rows_of(task, 1, range(50), length=3, symbols=4)
    assert rows[7:9] == rows_of(task, 1, [7, 8], length=3, symbols=4)
    assert rows != rows_of(task, 2, range(50), length=3, symbols=4)
    assert rows != rows_of(task, 1, range(50), length=3, symbols=4, held_out=True)
    assert len(set(rows)) > 30
    for row in rows:
        assert sum(a != b for a, b in zip(row.answer, row.wrong, strict=True)) == 1
    mappings = [row._asdict() for row in rows]
    assert exact_match([], [row.answer for row in rows], mappings) == [1.0] * 50
    assert exact_match([], [row.wrong for row in rows], mappings) == [0.0] * 50


def test_the_answers_are_right():
    for row in rows_of("reverse", 1, range(20), length=5, symbols=8):
        assert row.answer == row.prompt.removeprefix("reverse ").removesuffix("=")[::-1]
    for row in rows_of("sort", 1, range(20), length=5, symbols=8):
        assert row.answer == "".join(sorted(row.prompt.removeprefix("sort ").removesuffix("=")))
    for row in rows_of("arithmetic", 1, range(20), length=15, symbols=8):
        left, right = row.prompt.removesuffix("=").split("+")
        assert int(left) + int(right) == int(row.answer)


def test_the_shaped_reward_rises_with_each_right_character():
    (row,) = rows_of("reverse", 1, [3], length=4, symbols=8)
    texts = ["", "z" * 4, row.answer[:1], row.answer[:2], row.answer + "a", row.answer]
    found = shaped([""] * 6, texts, [row._asdict()] * 6)
    assert found == [0, 0, 1 / 8, 2 / 8, 4 / 10, 1]


def test_the_tokenizer_reads_back_from_its_folder(tokenizer, tmp_path):
    from transformers import AutoTokenizer

    tokenizer.save_pretrained(tmp_path)
    found = AutoTokenizer.from_pretrained(tmp_path)
    tokens = found(CHARACTERS)["input_ids"]
    assert tokens == encode(tokenizer, [CHARACTERS])[0]
    assert len(set(tokens)) == len(CHARACTERS)
    assert found.decode([*tokens, found.eos_token_id], skip_special_tokens=True) == CHARACTERS
    assert (found.pad_token_id, found.eos_token_id) == (tokenizer.pad_token_id, tokenizer.eos_token_id)


def test_labels_are_the_tokens_of_the_completion_shifted_by_one():
    batch = documents([[5, 6], [7]], [[8, 9], [4]], pad=0)
    assert batch.tokens.tolist() == [[5, 6, 8], [7, 0, 0]]
    assert batch.labels.tolist() == [[IGNORE, 8, 9], [4, IGNORE, IGNORE]]
    assert batch.counted.tolist() == [2, 1]


def test_the_loss_is_that_of_transformers_whatever_the_padding(model):
    batch = documents([[5, 6, 9], [7]], [[8, 9, 4], [4, 2]], pad=0)
    found = model(batch.tokens, batch.labels)
    wanted = 0.0
    for row, length in ((0, 5), (1, 2)):
        logits = model.lm(input_ids=batch.tokens[row : row + 1, :length]).logits[0]
        wanted += functional.cross_entropy(logits, batch.labels[row, :length], reduction="sum", ignore_index=IGNORE)
    assert found.shape == wanted.shape == ()
    assert found.item() == pytest.approx(wanted.item(), rel=1e-5)


def test_scores_are_log_probabilities_entropies_and_choices_of_the_labels(model):
    batch = documents([[5, 6, 9], [7]], [[8, 9, 4], [4, 2]], pad=0)
    scores = model(batch.tokens, batch.labels, scores=True, temperature=0.5)
    log_softmax = (model.lm(input_ids=batch.tokens).logits / 0.5).log_softmax(-1)
    at = (batch.labels != IGNORE).nonzero()
    wanted = torch.stack([log_softmax[row, place, batch.labels[row, place]] for row, place in at])
    entropy = torch.stack([-(log_softmax[row, place].exp() * log_softmax[row, place]).sum() for row, place in at])
    greedy = torch.stack([log_softmax[row, place].argmax() == batch.labels[row, place] for row, place in at])
    assert scores.log_probability.shape == wanted.shape == (5,)
    torch.testing.assert_close(scores.log_probability, wanted)
    torch.testing.assert_close(scores.entropy, entropy)
    assert scores.greedy.equal(greedy)
    assert scores.log_probability.requires_grad
    assert not scores.entropy.requires_grad


def test_no_more_than_a_chunk_of_logits_exists_when_labels_are_scored(model, monkeypatch):
    batch = documents([[5, 6, 9], [7]], [[8, 9, 4], [4, 2]], pad=0)
    head, weights = model.lm.get_output_embeddings(), tuple(model.parameters())
    computed, found = [], []
    head.register_forward_hook(lambda _head, _inputs, logits: computed.append(len(logits)))
    for labels in (100, 2):
        monkeypatch.setattr(models, "CHUNK_ON_GPU", labels * len(head.weight))
        scores = model(batch.tokens, batch.labels, scores=True, temperature=0.5)
        gradients = torch.autograd.grad(scores.log_probability.square().sum(), weights)
        found.append(([each.detach() for each in scores], gradients))
    assert computed[0] == 5
    assert sorted(computed[1:]) == [1, 1, 2, 2, 2, 2]  # once more in the backward pass
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shapes", [False, True])
def test_attention_needs_no_mask_also_where_tensors_are_shapes(shapes, tokenizer, monkeypatch):
    model, seen = build_model("tiny-qwen3", tokenizer, seed=1), []

    def attention(query, key, value, **options):
        seen.append((options.get("attn_mask"), key.shape[1]))
        return query

    monkeypatch.setattr(functional, "scaled_dot_product_attention", attention)
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    with FakeTensorMode(allow_non_fake_inputs=True) if shapes else nullcontext(), as_shapes(wanted=shapes):
        model(tokens.clone(), tokens.clone())
    assert seen == [(None, 2)] * 2  # in each layer; its two heads of keys are not repeated
