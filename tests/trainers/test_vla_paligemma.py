"""PaliGemma as the backbone of `vla`: what it reads is what transformers reads, and actions are written as tokens."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support.trainers.gangs import Yard
from tests.trainers.test_vla_equality import settings as vla
from transformers import PaliGemmaConfig, PaliGemmaForConditionalGeneration

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.pretrained import Pretrained, stream
from torchyard_trainers.core.weights import allocate, parameters_on_meta
from torchyard_trainers.core.world import World
from torchyard_trainers.vla.demonstrations import keys_of
from torchyard_trainers.vla.heads.bins import middles, to_bins
from torchyard_trainers.vla.heads.objectives import objective_of
from torchyard_trainers.vla.models import build_policy, config_of
from torchyard_trainers.vla.observation import Observation
from torchyard_trainers.vla.paligemma import ANSWERS, RENAMED
from torchyard_trainers.vla.params import resolve_params
from torchyard_trainers.vla.task import VisionLanguageAction

ALONE = World(0, 1, 0, torch.device("cpu"), grouped=False, local_size=1)
TEXT = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 8}
VISION = {"image_size": 28, "patch_size": 14, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2}


def library():
    """Return a PaliGemma of transformers with random weights that are large enough to tell everything apart."""
    vision = {"model_type": "siglip_vision_model", "num_attention_heads": 4, "vision_use_head": False, **VISION}
    config = PaliGemmaConfig(
        vision_config=vision,
        text_config={"model_type": "gemma", **TEXT, **HEADS},
        projection_dim=32,
        image_token_id=64,
    )
    torch.manual_seed(1)
    model = PaliGemmaForConditionalGeneration._from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    for each in model.parameters():
        torch.nn.init.normal_(each, std=0.2)
    return model.eval()


def seen(*, masked):
    """Three moments with two cameras; texts of two and three words if `masked`."""
    draw = torch.Generator().manual_seed(2)
    mask = torch.tensor([[True, True, True], [True, True, False], [True, True, True]]) if masked else None
    return Observation(
        torch.rand(3, 2, 3, 28, 28, generator=draw) * 2 - 1,
        torch.rand(3, 2, generator=draw) * 2 - 1,
        torch.tensor([[1, 3, 4], [1, 5, 0], [1, 6, 7]]),
        mask,
    )


def read_by(model, shown, more=None):
    """Return logits and last hidden states by the documented way of transformers: ids, pixels, token types."""
    ids = torch.cat([torch.full((3, 8), 64), shown.tokens], 1)
    mask = torch.ones_like(ids) if shown.mask is None else torch.cat([torch.ones(3, 8), shown.mask], 1).long()
    if more is not None:
        ids, mask = torch.cat([ids, more], 1), torch.cat([mask, torch.ones_like(more)], 1)
    found = model(
        input_ids=ids,
        pixel_values=shown.images.flatten(0, 1),
        attention_mask=mask,
        position_ids=mask.cumsum(-1),
        token_type_ids=torch.zeros_like(ids),
        output_hidden_states=True,
    )
    return found.logits, found.hidden_states[-1]


@pytest.mark.parametrize("names", ["saved", "in the model"])
def test_a_folder_is_read_into_a_policy_with_the_hidden_states_of_transformers(tmp_path, names):
    model = library()
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    assert any(name.startswith("language_model.model.") for name in load_file(file)), "names as they are published"
    if names == "in the model":
        save_file({name: each for name, each in model.state_dict().items() if name != "lm_head.weight"}, file)
    config = config_of("unused", tmp_path, chunk=3)
    with parameters_on_meta():
        policy = build_policy(config, state=2, action=2, horizon=3)
    allocate(policy, torch.device("cpu"))
    stream(Pretrained(tmp_path, prefix="vlm.", renamed=RENAMED), policy, ALONE)
    loaded = PaliGemmaForConditionalGeneration.from_pretrained(tmp_path).eval()
    for masked in (False, True):
        shown = seen(masked=masked)
        found = policy.read(policy.prefix(shown))
        real = torch.ones(3, 11).bool() if shown.mask is None else policy.prefix(shown).mask
        torch.testing.assert_close(found[real], read_by(loaded, shown)[1][real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
def test_logits_of_tokens_are_those_of_transformers_and_all_parts_of_a_chunk_are_answered_at_once(masked):
    model, shown, bins = library(), seen(masked=masked), 16
    policy = build_policy(model.config, action=2, horizon=3, bins=bins).eval()
    policy.vlm.load_state_dict(model.state_dict())
    state, blanks = to_bins(shown.state, bins) + 48, torch.arange(42, 48).expand(3, -1)
    logits, _ = read_by(model, shown, torch.cat([state, blanks], 1))
    calls = []
    policy.vlm.model.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        found = policy(shown)
    assert len(calls) == 1
    torch.testing.assert_close(found.flatten(1, 2), logits[:, -6:, 48:], atol=1e-5, rtol=1e-5)
    settings = resolve_params({"model": "tiny-paligemma", "head": "tokens", "bins": bins}, Parallelism())
    acted = objective_of(settings, model.config, parts=2).act(policy, shown, torch.arange(3))
    assert torch.equal(to_bins(acted, bins), found.argmax(-1))
    assert len(acted.unique()) > 2


@pytest.mark.parametrize("bins", [2, 32, 255])
def test_a_value_is_at_most_half_a_bin_from_its_token_and_the_ends_belong_to_the_outer_bins(bins):
    values = torch.linspace(-1, 1, 2001)
    numbers = to_bins(values, bins)
    assert (middles(numbers, bins) - values).abs().max() <= 1 / bins + 1e-6
    assert (numbers.min(), numbers.max()) == (0, bins - 1)
    assert torch.equal(to_bins(middles(torch.arange(bins), bins), bins), torch.arange(bins))
    assert to_bins(torch.tensor([-7.0, 7.0]), bins).tolist() == [0, bins - 1]


@pytest.mark.parametrize("head", ["flow", "tokens"])
def test_a_policy_learns_two_demonstrations_and_every_trained_weight_gets_a_gradient(head):
    work = VisionLanguageAction(resolve_params({"model": "tiny-paligemma", "head": head}, Parallelism()))
    torch.manual_seed(4)
    policy, ids = work.build(), torch.arange(2)
    shown, keys = work.tabletop.demonstrations(ids), keys_of(work.settings, ids[:, None], "flow")
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3)
    losses = []
    for _ in range(25):
        found = work.objective.losses(policy, shown, keys)
        losses.append((found.loss * shown.valid).sum() / shown.valid.sum())
        optimizer.zero_grad()
        losses[-1].backward()
        assert [name for name, each in policy.named_parameters() if each.requires_grad and each.grad is None] == []
        optimizer.step()
    assert losses[-1] < 0.2 * losses[0], losses


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"head": "tokens"},
            "trainer.params.head: tokens, but tiny-pi0 has an action expert; use model tiny-paligemma",
        ),
        (
            {"model": "tiny-paligemma", "bins": 8},
            "trainer.params.bins: 8, but head flow has none; remove it",
        ),
        ({"model": "tiny-paligemma", "head": "tokens", "draws": 2}, "trainer.params.draws: 2, but head tokens has no"),
        (
            {"model": "tiny-paligemma", "head": "tokens", "normalization": "mean-std"},
            "trainer.params.normalization: mean-std, but actions of head tokens reach from -1 to 1; use min-max",
        ),
        ({"model": "tiny-paligemma", "head": "tokens", "freezeLanguage": True}, "trainer.params.freezeLanguage: true"),
        (
            {"model": "tiny-paligemma", "head": "tokens", "bins": 60},
            "trainer.params.model: has 64 tokens, but the instructions need 11 and the actions 68; use a model with",
        ),
    ],
)
def test_a_mistake_is_named(given, message):
    with pytest.raises(ConfigError) as caught:
        VisionLanguageAction(resolve_params(given, Parallelism()))
    assert message in str(caught.value)


def test_a_folder_of_paligemma_2_is_named(tmp_path):
    config = PaliGemmaConfig(text_config={"model_type": "gemma2", **TEXT, **HEADS})
    config.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"has a language model of type 'gemma2', expected gemma; name a folder of"):
        VisionLanguageAction(resolve_params({"pretrained": str(tmp_path)}, Parallelism()))


@pytest.mark.e2e
@pytest.mark.parametrize("head", ["flow", "tokens", "act", "diffusion"])
def test_three_sharded_processes_are_the_run_of_one_and_their_export_goes_on_where_it_was(yard, calm, head):
    metric = f"{head.removesuffix('s')}Loss"
    learned = {"loss", "gradNorm", "validActions", metric, "successRate", "wrongObjectRate", "episodes"}
    run = vla(2, params={"model": "tiny-paligemma", "head": head}, export={"formats": ["hf"]})
    params = run["trainer"]["params"]
    for name in {"tokens": ("draws", "flowSteps"), "act": ("draws", "flowSteps"), "diffusion": ("flowSteps",)}.get(
        head, ()
    ):
        del params[name]
    learned |= {"tokens": {"tokenAccuracy"}, "act": {"actionError", "kl"}}.get(head, set())
    calm.train(run)
    alone = calm.metrics()
    yard.train(run | {"parallelism": {"strategy": "fsdp", "microBatchSize": 2}}, world=3)
    yard.assert_learned(alone, learned)
    folder = yard.checkpoints / "export" / "hf"
    loaded, info = PaliGemmaForConditionalGeneration.from_pretrained(folder, output_loading_info=True)
    assert not any(info[each] for each in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    final = load_file(yard.checkpoints / "final" / "model.safetensors")
    assert all(torch.equal(each, final[f"vlm.{name}"]) for name, each in loaded.state_dict().items())
    if head == "tokens":  # all that was learned is in the folder
        (yard.root / "again").mkdir()
        again = Yard(yard.server, yard.root / "again")
        del params["model"]
        params |= {"pretrained": str(folder), "steps": 1}
        again.train(run)
        assert again.report()["metrics"]["tokenLossUntrained"] == pytest.approx(alone[-1][metric], abs=1e-5)
        record = again.checkpoints / "run.json"
        old = json.loads(record.read_text())
        assert old["identity"].pop("action head") == ANSWERS
        record.write_text(json.dumps(old))  # as an earlier version left it, whose parts saw those before them
        for mode in ("train", "eval"):
            gang = again.start(run | {"trainer": run["trainer"] | {"mode": mode}}, 1)
            assert gang.wait() == [65], gang.output()
            assert f"(action head is {ANSWERS}, was not recorded) in the run of" in again.failure()["message"]
