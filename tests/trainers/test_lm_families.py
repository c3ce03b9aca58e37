"""Families of transformers whose output layer, files or layers differ: they train and are exported as they are."""

import io
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from little_rl import ALONE
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import save_file
from tests.support.trainers.families import FAMILIES, save_family
from tests.support.trainers.gangs import Yard
from tests.trainers.test_lm_folders import settings
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError, DataMismatchError
from torchyard_trainers.core.export import hf
from torchyard_trainers.core.losses import IGNORE
from torchyard_trainers.core.parallel import Parallel
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.step import optimize
from torchyard_trainers.core.weights import allocate, built, fill
from torchyard_trainers.core.workload import MicroBatch, Session
from torchyard_trainers.lm.agreement import check_agreement, check_generation
from torchyard_trainers.lm.data.datasets import packed, padded
from torchyard_trainers.lm.data.records import Document
from torchyard_trainers.lm.document_attention import SHORTEST, Documents, grouped, use_document_attention
from torchyard_trainers.lm.folder import empty_model, read_tokenizer
from torchyard_trainers.lm.generation.engine import Sampling, WeightsEngine
from torchyard_trainers.lm.generation.talk import answer, open_speaker
from torchyard_trainers.lm.params import resolve_params
from torchyard_trainers.lm.task import LanguageModeling

TEXT = torch.randint(3, 90, (2, 17), generator=torch.Generator().manual_seed(3))
LABELS = torch.cat([TEXT[:, 1:], torch.full((2, 1), -100)], 1)


def begun(folder, precision="fp32", **params):
    """A workload and a session whose model has the weights of a folder."""
    work = LanguageModeling(resolve_params({"pretrained": str(folder), "steps": 2, **params}, Parallelism()))
    model = built(work)
    allocate(model, ALONE.device)
    fill(work, model, ALONE)
    computing = Precision(precision, ALONE.device, sharded=False)
    reporter = Reporter(None, rank=0, local_rank=0, round_number=0)
    return work, Session(Parallel("single", model, model.eval()), computing, ALONE, reporter, None)


def exported(work, session, folder, form):
    folder.mkdir()
    hf.write(work, session, folder, form, shared=True, verify=True)
    return folder


def talkative(folder, turn_end):
    """A folder whose texts end with <eos> and turns with another token; its model says that one at once."""
    save_family("gpt2", folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}" + turn_end + "{% endfor %}"
    tokenizer.save_pretrained(folder)
    lm = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        lm.transformer.ln_f.weight.zero_()
        lm.transformer.ln_f.bias.copy_(1e3 * lm.transformer.wte.weight[tokenizer.convert_tokens_to_ids(turn_end)])
    lm.save_pretrained(folder)
    return folder


@torch.no_grad()
def logits(model):
    return model.eval()(input_ids=TEXT).logits


def names(folder):
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return set(file.keys())


@pytest.mark.parametrize("lora", [{}, {"loraRank": 2, "loraTargets": ["c_attn"]}])
def test_the_token_that_ends_turns_ends_answers_of_rollouts_and_of_the_export(tmp_path, lora):
    folder, data = talkative(tmp_path / "model", "<bos>"), tmp_path / "data.jsonl"
    row = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]}
    data.write_text(f"{json.dumps(row)}\n" * 8)
    few = {"data": [str(data)], "batch": 4, "group": 2, "sftSteps": 0, "maxNewTokens": 4, "evalCompletions": 2}
    work, session = begun(folder, method="grpo", **few, **lora)
    metrics = work.prepare(session, 0)
    assert (metrics["completionTokens"], metrics["truncatedFraction"]) == (1, 0)
    work.evaluate(session)
    assert {each["greedy"] for each in work.table()} == {""}
    out = exported(work, session, tmp_path / "out", "hf")
    assert GenerationConfig.from_pretrained(out).eos_token_id == [1, 2]
    if not lora:
        loaded = AutoModelForCausalLM.from_pretrained(out)
        assert loaded.config.eos_token_id == 1
        assert loaded.generate(input_ids=TEXT[:1, :4], max_new_tokens=9).shape == (1, 5)
    replies = io.StringIO()
    answer(folder, "cpu", Sampling(5, temperature=0.0), io.StringIO(json.dumps(row) + "\n"), replies)
    assert json.loads(replies.getvalue().splitlines()[-1]) == {"end": True, "stopped": True, "tokens": 0}


def test_a_stop_that_is_a_special_token_stops_at_it_and_one_that_never_occurs_is_refused(tmp_path):
    folder, data = talkative(tmp_path / "model", "<unk>"), tmp_path / "data.jsonl"
    data.write_text('{"prompt": "hi", "answer": "yo"}\n' * 8)
    few = {"data": [str(data)], "batch": 4, "group": 2, "sftSteps": 0, "maxNewTokens": 4, "method": "grpo"}
    for stop, length in (("<unk>", 1), ("<unk>\n", 1), ("x", 4)):
        work, session = begun(folder, **few, stop=[stop])
        assert work.prepare(session, 0)["completionTokens"] == length
    with pytest.raises(ConfigError, match=r"stop: 'x<unk>' has the special token '<unk>' behind other text"):
        begun(folder, **few, stop=["x<unk>"])


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "granite", "phi", "mixtral", "gpt_neox"])
def test_loss_logits_scores_and_exports_are_those_of_transformers(tmp_path, family):
    folder = save_family(family, tmp_path / "model")
    theirs = logits(AutoModelForCausalLM.from_pretrained(folder))
    work, session = begun(folder)
    model = session.parallel.module
    loss = cross_entropy(theirs[:, :-1].flatten(0, 1), TEXT[:, 1:].flatten(), reduction="sum")
    torch.testing.assert_close(model(TEXT), theirs[:, -1])
    ours = model(TEXT, LABELS)
    torch.testing.assert_close(ours, loss)
    ours.backward()
    torch.testing.assert_close(model(TEXT, LABELS, scores=True).log_probability.sum(), -loss)
    check_agreement(session, family, packs=True)
    assert len(work.blocks(model)) == 2
    out = exported(work, session, tmp_path / "export", "hf")
    torch.testing.assert_close(logits(AutoModelForCausalLM.from_pretrained(out)), theirs, rtol=0, atol=1e-6)
    assert names(out) == names(folder), "the layout in files is that of the family"


@pytest.mark.parametrize("family", ["gpt_neo", "llama4_text"])
def test_completions_of_families_with_layers_of_their_own_are_those_of_transformers(tmp_path, family):
    folder = save_family(family, tmp_path / "model")
    _, session = begun(folder)
    model, base = session.parallel.module, AutoModelForCausalLM.from_pretrained(folder).eval()
    torch.testing.assert_close(model(TEXT), logits(base)[:, -1])
    check_generation(session, family)
    asked = [[5, 9, 11, 23, 8, 40, 33, 12, 18], [7, 8, 9]]
    engine = WeightsEngine(model, model.lm.config, device=ALONE.device)
    found = engine.generate(asked, torch.arange(2), Sampling(6, temperature=0)).tokens
    for prompt, said in zip(asked, found.tolist(), strict=True):
        with torch.no_grad():
            theirs = base(input_ids=torch.tensor([prompt + said]), use_cache=False).logits[0].argmax(-1)
        assert theirs[len(prompt) - 1 : -1].tolist() == said


def test_a_family_that_cannot_generate_is_rejected_where_completions_are_needed(tmp_path, monkeypatch):
    _, session = begun(save_family("minimax", tmp_path / "minimax"))
    check_agreement(session, "minimax", packs=False)
    with pytest.raises(ConfigError, match=r"'minimax' do not take a cache of keys and values .*evalCompletions: 0, or"):
        check_generation(session, "minimax")
    monkeypatch.setattr("torchyard_trainers.lm.generation.static_cache.GROWING", frozenset())
    _, session = begun(save_family("gpt_neo", tmp_path / "gpt_neo"))
    with pytest.raises(ConfigError, match=r"after a cache of keys and values its logits differ by .* of their size"):
        check_generation(session, "gpt_neo")


def test_a_family_that_cannot_generate_does_not_talk(tmp_path):
    folder = save_family("minimax", tmp_path / "minimax")
    with pytest.raises(ConfigError, match=r"minimax cannot answer: models of type 'minimax' do not take a cache"):
        answer(folder, "cpu", Sampling(6), io.StringIO(), io.StringIO())


@pytest.mark.parametrize("family", ["gpt2", "mixtral", "phimoe", "deepseek_v3", "falcon"])
def test_adapters_are_added_to_matrices_of_any_layout(tmp_path, family):
    folder = save_family(family, tmp_path / "model")
    work, session = begun(folder, loraRank=2, loraAlpha=8)
    with torch.no_grad():
        for name, each in session.parallel.module.named_parameters():
            if "lora_" in name:
                each.normal_(0, 0.3)
        ours = session.parallel.module(TEXT)
    base = AutoModelForCausalLM.from_pretrained(folder)
    assert (logits(base)[:, -1] - ours).abs().max() > 0.1
    for form in ("hf", "hf-merged"):
        out = exported(work, session, tmp_path / form, form)
        found = PeftModel.from_pretrained(base, out) if form == "hf" else AutoModelForCausalLM.from_pretrained(out)
        torch.testing.assert_close(logits(found)[:, -1], ours, rtol=1e-4, atol=1e-4)


PRECISIONS = ["fp32", "bf16"]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("family", "message"),
    [
        (
            "hyperclovax",
            r"has a logit of .* as transformers computes it, but .* here: models of type 'hyperclovax' make",
        ),
        ("opt", r"microBatchTokens: is set, but in opt a text moves by .* layers of type 'opt' see across packed"),
        ("falcon", r"a text moves by .* when the text before it in the row changes .*'falcon' see across packed"),
        ("qwen3_next", r"a text moves by .* when the text before it in the row changes .*'qwen3_next' see across"),
        ("bloom", r"model_type 'bloom', which takes no position_ids; name a model whose layers all attend"),
    ],
)
def test_a_family_that_would_learn_something_else_is_rejected(tmp_path, family, message, precision):
    folder = save_family(family, tmp_path / "model")
    with pytest.raises(ConfigError, match=message):
        check_agreement(begun(folder, precision)[1], family, packs=True)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("family", ["gpt2", "gemma2", "mixtral", "deepseek_v3", "llama4_text"])
def test_a_family_that_learns_the_same_is_accepted_in_every_precision(tmp_path, family, precision):
    _, session = begun(save_family(family, tmp_path / "model"), precision)
    check_agreement(session, family, packs=True)
    check_generation(session, family)


DOCUMENTS = [Document([3 + (7 * at + 5 * n) % 90 for at in range(n)], [True] * n) for n in (5, 12, 3, 30, 12, 13, 2)]


@pytest.mark.parametrize("family", ["granite", "mistral", "llama4_text", "gemma2", "mixtral", "opt", "afmoe"])
def test_documents_of_a_packed_row_have_the_loss_and_gradients_that_they_have_alone(tmp_path, family):
    """Also where documents are longer than a window or a chunk of attention, and where masks ignore positions."""
    _, session = begun(save_family(family, tmp_path / "model"))
    model = session.parallel.module.train()
    assert use_document_attention(model.lm) == (family != "gemma2")
    check_agreement(session, family, packs=True)
    found = []
    for row in (padded(DOCUMENTS, 0), packed(DOCUMENTS)):
        model.zero_grad()
        more = {"position_ids": row["positions"], "documents": row["inputs"]} if "positions" in row else {}
        loss = model(row["tokens"], row["labels"], **more)
        loss.backward()
        gradients = [each.grad.flatten() for each in model.parameters() if each.grad is not None]
        found.append((loss.detach(), torch.cat(gradients)))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-5, atol=0)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-3, atol=1e-4 * float(found[0][1].abs().max()))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_groups_of_documents_have_every_token_once(sizes):
    documents = Documents(sizes, torch.device("cpu"))
    every = torch.cat([places.flatten() for places in documents.groups])
    assert every[documents.places].tolist() == list(range(sum(sizes)))
    assert len(every) <= sum(sizes) / SHORTEST
    for group, places in zip(grouped(sizes), documents.groups, strict=True):
        assert places[:, 0].tolist() == [sum(sizes[:each]) for each in group]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_positions_that_do_not_restart_are_rejected(tmp_path, monkeypatch, precision):
    """A layer that counts positions itself keeps documents apart, and still reads each as if it began later."""
    _, session = begun(save_family("gpt2", tmp_path / "model"), precision)
    places = session.parallel.module.lm.transformer.wpe
    counted = type(places).forward
    monkeypatch.setattr(places, "forward", lambda ids: counted(places, torch.arange(ids.shape[1])[None]))
    with pytest.raises(ConfigError, match=r"a text differs by .* behind another one from alone, and rounding by up to"):
        check_agreement(session, "gpt2", packs=True)


def test_chat_says_what_transformers_generates_and_rejects_the_same_families(tmp_path):
    folder, replies = save_family("gemma2", tmp_path / "gemma2"), io.StringIO()
    requests = "".join(json.dumps({"text": each}) + "\n" for each in ("abc", "a" * 300))
    answer(folder, "cpu", Sampling(6, temperature=0), io.StringIO(requests), replies)
    assert "'text' has 300 tokens, but the model has 256 positions" in replies.getvalue()
    found = "".join(json.loads(line).get("piece", "") for line in replies.getvalue().splitlines())
    tokenizer, theirs = read_tokenizer(folder), AutoModelForCausalLM.from_pretrained(folder)
    asked = tokenizer("abc", return_tensors="pt")["input_ids"]
    said = theirs.generate(asked, attention_mask=torch.ones_like(asked), max_new_tokens=6, do_sample=False)
    assert found == tokenizer.decode(said[0, asked.shape[1] :], skip_special_tokens=True)
    with pytest.raises(ConfigError, match="model_type 'bloom', which takes no position_ids"):
        open_speaker(save_family("bloom", tmp_path / "bloom"), "cpu")


def test_only_linear_layers_get_adapters(tmp_path):
    folder = save_family("mixtral", tmp_path / "model")
    with pytest.raises(
        ConfigError, match=r"LoRA targets \['embed_tokens'\]: .* is not a linear layer; leave its name out"
    ):
        begun(folder, loraRank=2, loraTargets=["embed_tokens"])
    with pytest.raises(ConfigError, match=r"the model has no layer 'v_porj'; its linear layers are .*v_proj"):
        begun(folder, loraRank=2, loraTargets=["q_proj", "v_porj"])


@pytest.mark.parametrize("family", ["mixtral", "gpt2"])
def test_exports_have_the_type_of_their_base_or_the_one_that_is_asked_for(tmp_path, family):
    folder = save_family(family, tmp_path / "model")
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    base.save_pretrained(folder)
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        single = next(name for name in file.keys() if name.endswith(("norm.weight", "ln_f.weight")))  # noqa: SIM118
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors | {single: tensors[single].float()}, folder / "model.safetensors", metadata={"format": "pt"})
    ways = (2, "hf-merged", None), (None, "hf", None), (2, "hf-merged", "float16")
    for number, (lora, form, asked) in enumerate(ways):
        params = {"exportDtype": asked} | ({"loraRank": lora} if lora else {})
        work, session = begun(folder, **params)
        out = exported(work, session, tmp_path / str(number), form)
        with safe_open(out / "model.safetensors", framework="pt") as file:
            types = {name: file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118
        wanted = torch.float16 if asked else torch.bfloat16
        assert types.pop(single) == (wanted if asked else torch.float32)
        assert set(types.values()) == {wanted}
        read = AutoModelForCausalLM.from_pretrained(out)
        assert read.dtype == wanted
        torch.testing.assert_close(logits(read.float()), logits(base.float()), rtol=0, atol=0.02)


@pytest.mark.parametrize(("family", "head"), [("granite", "lm_head"), ("gpt_neox", "embed_out")])
def test_adapters_of_the_output_layer_which_nothing_would_train_are_rejected(tmp_path, family, head):
    folder = save_family(family, tmp_path / "model")
    for targets in ([head], ["q_proj", head]):
        with pytest.raises(ConfigError, match=rf"'{head}' is the output layer, whose weights are read|no layer"):
            begun(folder, loraRank=2, loraTargets=targets)


def test_parameters_without_a_gradient_are_named_at_the_first_step_and_not_again(tmp_path):
    work, session = begun(save_family("gpt2", tmp_path / "model"), batch=2)
    model = session.parallel.module
    model.spare = torch.nn.Linear(2, 2, bias=False)
    for step in range(2):
        optimize(work, session, work.optimizer(model), step, {})
        assert session.reporter.facts["warnings"] == [
            (
                "1 trainable parameters got no gradient in the first step, and stay as they are: spare.weight; set "
                "requires_grad_(False) there, or leave them out of the model"
            )
        ]
    work, session = begun(tmp_path / "model", batch=2, loraRank=2)
    session.parallel.module.lora_spare = torch.nn.Linear(2, 2)
    with pytest.raises(ConfigError, match=r"adapters get no gradient, .* lora_spare\.bias, lora_spare\.weight; leave"):
        optimize(work, session, work.optimizer(session.parallel.module), 0, {})


@pytest.mark.e2e
@pytest.mark.parametrize("family", ["mixtral", "gemma2"])
def test_shards_of_any_family_are_the_same_run(fork_server, tmp_path, family):
    folder, losses = save_family(family, tmp_path / "model"), {}
    for strategy, world in (("single", 1), ("fsdp", 2)):
        (tmp_path / strategy).mkdir()
        yard = Yard(fork_server, tmp_path / strategy)
        yard.train(settings(3, {"strategy": strategy}, pretrained=str(folder)), world)
        losses[strategy] = [line["loss"] for line in yard.metrics()]
    assert losses["fsdp"] == pytest.approx(losses["single"], abs=1e-5)
    out = yard.checkpoints / "export" / "hf"
    _, info = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not any(info[each] for each in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert names(out) == names(folder)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "model.safetensors",
            b"\xff" * 7 + b"\x3f{}" + b" " * 2**20,
            "model.safetensors: the list of tensors, .*would have more than 32 MiB",
        ),
        ("config.json", b"[" * 100_000, "is not a config of a model: it is nested too"),
    ],
)
def test_a_damaged_file_of_a_folder_is_named_by_chat(tmp_path, name, content, words):
    folder = save_family("gpt2", tmp_path / "gpt2")
    (folder / name).write_bytes(content)
    with pytest.raises((ConfigError, DataMismatchError), match=words):
        open_speaker(folder, "cpu")


def test_a_model_of_few_positions_gets_samples_that_fit_and_the_log_says_so(tmp_path, capsys):
    rows = [{"prompt": "a" * length, "completion": "b"} for length in range(200, 300, 5)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    few = {"data": [str(data)], "truncation": "start", "evalSamples": 4, "evalCompletions": 2, "holdOut": 0.5}
    work, session = begun(save_family("gpt2", tmp_path / "gpt2"), **few)
    assert work.settings.max_length == 256
    for _ in range(2):
        assert "evalReward" in work.evaluate(session), "prompts are completed up to the last position"
    assert capsys.readouterr().out == (
        f"trainer.params.maxLength: is not set, and {tmp_path / 'gpt2'} has 256 positions: samples have at most 256 "
        "tokens, not 1024\n"
        "trainer.params.data: of 20 records, 8 have more than trainer.params.maxLength: 256 tokens and are cut, which "
        "loses 3.62 % of all; raise it\n"
    )


@pytest.mark.parametrize("method", ["dpo", "grpo", "ppo"])
def test_preferences_and_rewards_are_learned_without_dropout(tmp_path, monkeypatch, method):
    """Probabilities of the reference and of the rollout are those of the policy until a step changes it."""
    monkeypatch.setitem(FAMILIES["gpt2"], "resid_pdrop", 0.5)
    more = {"dpo": {"task": "sort"}, "grpo": {"group": 2}, "ppo": {}}[method]
    if method != "dpo":
        more |= {"minibatches": 2, "klCoefficient": 0.1, "maxNewTokens": 3}
    folder = save_family("gpt2", tmp_path / "gpt2")
    work, session = begun(folder, method=method, batch=4, sftSteps=2, steps=8, length=2, **more)
    module = session.parallel.module
    work.prepare(session, 0)
    assert module.training, "supervised steps are those of transformers"
    work.prepare(session, 2)
    batch = MicroBatch(torch.arange(8, 12), torch.ones(4), step=2)
    found = work.loss(session, batch)
    if method == "dpo":
        torch.testing.assert_close(found.loss, 4 * torch.tensor(2.0).log())
        assert found.statistics["rewardAccuracy"] == 0
    else:
        assert found.statistics["approxKl"].total.abs() < 1e-5
        assert found.statistics["kl"].total.abs() < 1e-5


@pytest.mark.parametrize("normalized", [False, True])
def test_held_out_pairs_are_judged_relative_to_the_reference(tmp_path, normalized):
    folder = save_family("gpt2", tmp_path / "gpt2")
    more = {"method": "dpo", "task": "sort", "batch": 4, "sftSteps": 1, "steps": 4, "length": 4, "beta": 0.5}
    work, session = begun(folder, lengthNormalized=normalized, evalSamples=16, evalBatch=5, **more)
    assert "evalRewardMargin" not in work.evaluate(session), "the supervised steps come first"
    work.prepare(session, 1)
    same = work.evaluate(session)
    assert (same["evalRewardMargin"], same["evalRewardAccuracy"]) == (0, 0)

    @torch.no_grad()
    def sums():
        scores = session.parallel.module(pairs["tokens"], pairs["labels"], scores=True)
        found = torch.zeros(pairs["labels"].shape).masked_scatter(pairs["labels"] != IGNORE, scores.log_probability)
        return (found.sum(1) / ((pairs["labels"] != IGNORE).sum(1) if normalized else 1)).view(2, -1)

    pairs, generator = work._preferences._data.rated(range(16), held_out=True), torch.Generator().manual_seed(4)
    session.parallel.module.eval()
    before = sums()
    with torch.no_grad():
        for each in session.parallel.module.parameters():
            each.add_(torch.randn(each.shape, generator=generator) * 0.05)
    gains = sums() - before
    found = work.evaluate(session)
    assert found["evalRewardMargin"] == pytest.approx(0.5 * float((gains[0] - gains[1]).mean()), abs=1e-5)
    assert found["evalRewardAccuracy"] == float((gains[0] > gains[1]).double().mean())


def test_completions_end_where_the_config_of_generation_says(tmp_path):
    """As those of Gemma and Phi, whose turns end with another token than texts."""
    folder = save_family("gpt2", tmp_path / "gpt2")
    work, session = begun(folder, method="grpo", batch=4, group=2, sftSteps=0, steps=4, maxNewTokens=40)
    work.prepare(session, 0)
    labels = work._reinforcement._held.labels
    end = int(labels[labels != IGNORE].mode().values)
    assert end != work.tokenizer.eos_token_id
    config = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(config | {"eos_token_id": [2, end]}))
    work, session = begun(folder, method="grpo", batch=4, group=2, sftSteps=0, steps=4, maxNewTokens=40)
    metrics = work.prepare(session, 0)
    for row in work._reinforcement._held.labels:
        said = row[row != IGNORE].tolist()
        assert end not in said[:-1]
        assert len(said) == 40 or said[-1] in (2, end)
    assert metrics["truncatedFraction"] < 1
    assert work._prompts.decode([5, end]) == work.tokenizer.decode([5]), "the end is no part of what is judged"


def test_a_tokenizer_that_families_share_may_have_more_tokens_than_the_model(tmp_path):
    folder = save_family("gpt2", tmp_path / "gpt2")
    tokenizer = read_tokenizer(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    tokenizer.save_pretrained(folder)
    begun(folder)
    replies = io.StringIO()
    answer(folder, "cpu", Sampling(2), io.StringIO(json.dumps({"text": "<image>"}) + "\n"), replies)
    assert "field 'text' has the token '<image>', number 100, but the model knows 100 tokens only" in replies.getvalue()
    tokenizer.pad_token = "<image>"
    tokenizer.save_pretrained(tmp_path / "padded")
    with pytest.raises(ConfigError, match=r"has tokens up to number 100, but the model knows 100; both must be of the"):
        empty_model(folder, read_tokenizer(tmp_path / "padded"))
    wrong = json.loads((folder / "tokenizer.json").read_text())
    wrong["model"]["vocab"]["another"] = 500  # fewer tokens than the model has, with greater numbers
    (folder / "tokenizer.json").write_text(json.dumps(wrong))
    with pytest.raises(ConfigError, match=r"has tokens up to number 500, but the model knows 100; both must be of the"):
        begun(folder)
