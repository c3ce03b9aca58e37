"""Completions: greedy ones are those of transformers, sampled ones belong to their sample."""

import pytest
import torch
from tests.trainers.test_graphs import Rerun
from transformers import AutoConfig, AutoModelForCausalLM

from torchyard_trainers.core import graphs
from torchyard_trainers.lm.generation.engine import Sampling, WeightsEngine, left_padded, texts_of

CPU = torch.device("cpu")
VOCABULARY, END, PAD = 40, 2, 0
TINY = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": PAD,
    "bos_token_id": 1,
    "eos_token_id": END,
    "initializer_range": 0.6,  # so that completions vary
}
KINDS = {
    "qwen3": {},
    "llama": {},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
}
PROMPTS = [[5, 6, 7, 8, 9], [10], [11, 12, 13], [14, 15, 16, 17, 18, 19, 20, 21, 22]]


def model_of(kind):
    torch.manual_seed(3)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **TINY, **KINDS[kind])).eval()


class LastLogits(torch.nn.Module):
    """The interface of `lm.models.LanguageModel`, as far as generation uses it."""

    def __init__(self, lm):
        super().__init__()
        self.lm = lm
        self.calls = 0

    def forward(self, tokens, *, attention_mask, position_ids, cache):
        self.calls += 1
        return self.lm(
            input_ids=tokens,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]


def engine_of(lm, **options):
    return WeightsEngine(LastLogits(lm), lm.config, device=CPU, **options)


def rows(completions):
    return [row[:length] for row, length in zip(completions.tokens.tolist(), completions.lengths.tolist(), strict=True)]


@pytest.fixture(scope="module")
def qwen():
    return model_of("qwen3")


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_completions_of_ragged_prompts_are_those_of_transformers(kind):
    lm = model_of(kind)
    tokens, mask = left_padded(PROMPTS, CPU)
    expected = lm.generate(input_ids=tokens, attention_mask=mask, max_new_tokens=20, do_sample=False)
    found = engine_of(lm).generate(PROMPTS, torch.arange(4), Sampling(20, temperature=0, stop_tokens=(END,)))
    whole = expected[:, tokens.shape[1] :].tolist()
    wanted = [row[: row.index(END) + 1] if END in row else row for row in whole]
    assert rows(found) == wanted
    assert len({tuple(row) for row in wanted}) == 4
    assert found.stopped.tolist() == [END in row for row in wanted]


def test_completions_are_cut_off_where_the_positions_of_a_model_end():
    torch.manual_seed(3)
    sizes = {
        "vocab_size": VOCABULARY,
        "n_embd": 32,
        "n_layer": 1,
        "n_head": 2,
        "n_positions": 16,
        "initializer_range": 0.6,
    }
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    engine = engine_of(AutoModelForCausalLM.from_config(AutoConfig.for_model("gpt2", **sizes, **dropout)))
    short = engine.generate(PROMPTS, torch.arange(4), Sampling(7, temperature=0))
    found = engine.generate(PROMPTS, torch.arange(4), Sampling(12, temperature=0))
    assert found.lengths.tolist() == [11, 12, 12, 7]
    assert not found.stopped.any()
    assert [row[:7] for row in rows(found)] == rows(short)
    assert list(engine.stream(PROMPTS[3], Sampling(12, temperature=0))) == rows(found)[3]


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_completions_in_half_precision_are_what_the_model_finds_most_probable(kind, half):
    lm = model_of(kind)
    with torch.no_grad(), torch.autocast("cpu", half):
        found = rows(engine_of(lm).generate(PROMPTS, torch.arange(4), Sampling(12, temperature=0)))
        for prompt, completion in zip(PROMPTS, found, strict=True):
            logits = lm(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1].float()
            chosen = logits.gather(1, torch.tensor(completion)[:, None])[:, 0]
            assert ((logits.max(1).values - chosen) < 0.1 * logits.std(1)).all()


def test_sampled_completions_belong_to_their_id_and_not_to_the_batch(qwen):
    engine, sampling = engine_of(qwen), Sampling(12, temperature=0.8, top_k=20, top_p=0.9, stop_tokens=(END,), seed=5)
    ids = torch.tensor([100, 7, 12, 9])
    together = rows(engine.generate(PROMPTS, ids, sampling))
    for at, prompt in enumerate(PROMPTS):
        assert rows(engine.generate([prompt], ids[at : at + 1], sampling)) == [together[at]]
    backwards = engine.generate(PROMPTS[::-1], ids.flip(0), sampling)
    assert rows(backwards) == together[::-1]
    assert rows(engine.generate(PROMPTS, ids + 1, sampling)) != together
    assert rows(engine.generate(PROMPTS, ids, sampling._replace(held_out=True))) != together


def test_tokens_are_sampled_with_the_probabilities_of_the_model(qwen):
    count, temperature = 4000, 1.5
    prompt = PROMPTS[0]
    found = engine_of(qwen).generate([prompt] * count, torch.arange(count), Sampling(1, temperature=temperature))
    shares = found.tokens[:, 0].bincount(minlength=VOCABULARY) / count
    with torch.no_grad():
        expected = (qwen(torch.tensor([prompt])).logits[0, -1] / temperature).softmax(-1)
    assert torch.allclose(shares, expected, atol=0.035)


def test_a_completion_ends_with_the_token_that_completes_a_stop_string(qwen):
    def decode(tokens):
        return "".join(chr(ord("a") + token % 26) for token in tokens)

    engine, ids = engine_of(qwen, decode=decode), torch.arange(4)
    whole = rows(engine.generate(PROMPTS, ids, Sampling(16, seed=2)))
    stop = decode(whole[0])[3:5]
    found = engine.generate(PROMPTS, ids, Sampling(16, seed=2, stop=(stop,)))
    for row, expected, stopped in zip(rows(found), whole, found.stopped.tolist(), strict=True):
        text = decode(expected)
        end = text.find(stop)
        assert row == (expected[: end + 2] if end >= 0 else expected)
        assert stopped == (end >= 0)
    assert texts_of(found, decode, (stop,))[0] == decode(whole[0]).partition(stop)[0]


def test_generation_ends_when_all_completions_have_and_ranks_make_as_many_passes(qwen):
    first = int(qwen(torch.tensor([PROMPTS[0]])).logits[0, -1].argmax())
    sampling = Sampling(64, temperature=0, stop_tokens=(first,))
    alone = engine_of(qwen)
    found = alone.generate(PROMPTS[:1], torch.arange(1), sampling)
    assert (rows(found), alone._model.calls) == ([[first]], 1)
    # A collective pass: this rank is done at once, another one needs 20 tokens.
    answers = iter([False, False, True])
    gang = engine_of(qwen, all_ranks=lambda done: done and next(answers))
    again = gang.generate(PROMPTS[:1], torch.arange(1), sampling)
    assert (rows(again), gang._model.calls) == ([[first]], 24)


def test_a_model_in_training_generates_without_dropout_and_is_put_back(qwen):
    engine = engine_of(qwen)
    engine._model.train()
    seen = []
    engine._model.register_forward_hook(lambda module, *_: seen.append(module.training))
    engine.generate(PROMPTS[:1], torch.arange(1), Sampling(2))
    assert seen == [False, False]
    assert engine._model.training
    engine._model.eval()


def test_no_memory_is_taken_for_tokens_beyond_the_last_position(qwen):
    found = engine_of(qwen).generate([[7] * 253], torch.arange(1), Sampling(10**9, temperature=0))
    assert rows(found) == rows(engine_of(qwen).generate([[7] * 253], torch.arange(1), Sampling(3, temperature=0)))


def test_a_cut_off_completion_has_not_stopped(qwen):
    found = engine_of(qwen).generate(PROMPTS, torch.arange(4), Sampling(3))
    assert found.stopped.tolist() == [False] * 4
    assert found.lengths.tolist() == [3] * 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 0.9, "top_k": 12, "top_p": 0.95}])
def test_a_recorded_pass_that_is_replayed_chooses_the_same_tokens(kind, options, monkeypatch):
    """On a CPU the pass runs again, from the memory that a graph reads and into that which it writes."""
    recorded = []

    def capture(act, inputs):
        recorded.append(act)
        act(*inputs)  # a graph runs it before it records it: that must change nothing
        found = act(*inputs)
        return Rerun(act, inputs, found), found

    lm, ids = model_of(kind), torch.arange(4)
    sampling = Sampling(40, stop_tokens=(END,), seed=4, **options)
    expected = engine_of(lm).generate(PROMPTS, ids, sampling)
    monkeypatch.setattr(graphs, "_capture", capture)
    monkeypatch.setattr(graphs, "_records", lambda _: True)
    engine = engine_of(lm, graphs=True)
    for _ in range(2):
        assert rows(engine.generate(PROMPTS, ids, sampling)) == rows(expected)
    assert len(recorded) == 2  # a recording for each generation, however many passes
    assert expected.lengths.max() > 32


def test_the_pass_over_prompts_attends_to_prompts_only(qwen, monkeypatch):
    seen = []
    attention = torch.nn.functional.scaled_dot_product_attention

    def spy(query, key, *rest, **named):
        seen.append(key.shape[-2])
        return attention(query, key, *rest, **named)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    engine_of(qwen).generate(PROMPTS, torch.arange(4), Sampling(3))
    layers = qwen.config.num_hidden_layers
    assert seen == [9] * layers + [64] * 2 * layers
