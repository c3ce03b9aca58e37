"""The policy answers as the library's model; PPO begins at a ratio of 1; a frozen tower sees each image once."""

import pytest
import torch
import transformers
from PIL import Image
from tests.support.trainers.tokenizers import write_tokenizer
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.parallel import parallelize
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.step import optimize
from torchyard_trainers.core.vision_language import FAMILIES
from torchyard_trainers.core.vocabulary import open_vocabulary
from torchyard_trainers.core.weights import built, fill
from torchyard_trainers.core.workload import MicroBatch, Session
from torchyard_trainers.core.world import World
from torchyard_trainers.rl.tabletop import ACTIONS, Tabletop
from torchyard_trainers.vlm import tower
from torchyard_trainers.vlm.cloning import clone_loss, demonstrations
from torchyard_trainers.vlm.models import Answer, Policy, build_policy, check_size, config_of
from torchyard_trainers.vlm.params import resolve_params
from torchyard_trainers.vlm.prompt import make_prompt
from torchyard_trainers.vlm.task import VisionLanguagePolicy

CPU = torch.device("cpu")
ALONE = World(0, 1, 0, CPU, grouped=False, local_size=1)
SMALL = {"environments": 6, "horizon": 8, "minibatches": 2, "epochs": 2, "environmentSteps": 96, "evalEpisodes": 4}
TINY = ("tiny-qwen2-vl", "tiny-qwen2.5-vl", "tiny-qwen3-vl")


def settled(**params):
    return resolve_params(SMALL | params, Parallelism())


def session_of(work, precision="fp32", micro_batch=None):
    model, exact = built(work), Precision(precision, CPU, sharded=False)
    parallel = parallelize(
        model,
        work.blocks(model),
        "single",
        settings=Parallelism(),
        precision=exact,
        world=ALONE,
        fill=lambda each: fill(work, each, ALONE),
    )
    return Session(parallel, exact, ALONE, Reporter(None, rank=0, local_rank=0, round_number=0), micro_batch)


@pytest.fixture
def images():
    return torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def library_of(policy):
    """Return an unchanged model of transformers, with the weights of a policy."""
    kind = getattr(transformers, FAMILIES[policy.vlm.config.model_type][1])
    model = kind._from_config(policy.vlm.config, attn_implementation="sdpa", dtype=torch.float32)
    model.load_state_dict(policy.vlm.state_dict())
    return model


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("style", ["task", "chat"])
def test_answers_are_those_of_the_library_and_images_are_seen_with_the_same_bits(name, style, images, monkeypatch):
    torch.manual_seed(3)
    config = config_of(name, None)
    prompt = make_prompt(config, "reach the can", ACTIONS, style=style)
    policy = build_policy(config, prompt, 32)
    policy.value_head.weight.data.normal_()
    assert policy.tower.batched, "this version of transformers was not compared: see vlm/tower.py"
    model, tokens = library_of(policy), policy.tower.tokens
    pixels, grid = policy.tower.patches(images), torch.tensor([[1, 4, 4]] * 3)
    embed = model.model.visual.patch_embed
    assert torch.allclose(policy.vlm.model.visual.patch_embed(pixels), embed(pixels), atol=1e-5)
    with monkeypatch.context() as same_product:  # in another order its sums have other bits
        same_product.setattr(embed, "forward", policy.vlm.model.visual.patch_embed.forward)
        seen = model.model.visual(pixels, grid_thw=grid)
    ids = torch.tensor([[*prompt.before, *[config.image_token_id] * tokens, *prompt.after]] * 3)
    found = model(
        input_ids=ids,
        pixel_values=pixels,
        image_grid_thw=grid,
        mm_token_type_ids=(ids == config.image_token_id).int(),
        output_hidden_states=True,
    )
    for shares in (True, False):
        answer = policy(images, shares=shares)
        assert torch.equal(answer.features[:, 0].flatten(0, 1), seen.pooler_output)
        assert answer.logits.shape == (3, len(ACTIONS))
        assert torch.allclose(answer.logits, found.logits[:, -1][:, prompt.actions], atol=1e-5)
        value = policy.value_head(found.hidden_states[-1][:, -1])[:, 0]
        assert torch.allclose(answer.value, value, atol=1e-5)
        again = policy(None, answer.features, shares=shares)
        assert torch.allclose(again.logits, answer.logits, atol=1e-6)
        other = Policy(policy.vlm, prompt, 32, head="mlp", pool="mean")
        hidden = found.hidden_states[-1][:, len(prompt.before) :].mean(1)
        assert torch.allclose(other(images, shares=shares).logits, other.action_head(hidden), atol=1e-5)
    loss = sum(part.square().sum() for part in policy(images)[:2])
    theirs = found.logits[:, -1][:, prompt.actions].square().sum() + value.square().sum()
    parameter = policy.vlm.model.visual.patch_embed.proj.weight
    reference = model.model.visual.patch_embed.proj.weight
    (mine,), (their,) = torch.autograd.grad(loss, [parameter]), torch.autograd.grad(theirs, [reference])
    assert torch.allclose(mine, their, atol=1e-4 * float(their.abs().max()))


def test_a_version_that_was_not_compared_keeps_the_attention_of_the_library(images, monkeypatch):
    config = config_of("tiny-qwen2-vl", None)
    prompt = make_prompt(config, "reach the can", ACTIONS, style="task")
    policy = build_policy(config, prompt, 32)
    monkeypatch.setattr(tower, "COMPARED", ("0.0",))
    other = Policy(library_of(policy), prompt, 32)
    other.value_head.load_state_dict(policy.value_head.state_dict())
    assert (policy.tower.batched, other.tower.batched) == (True, False)
    assert torch.equal(policy(images).logits, other(images).logits)


def test_patches_are_those_of_the_processor_of_the_library():
    config = config_of("qwen2-vl-2b", None)
    with torch.device("meta"):
        visual = transformers.Qwen2VLForConditionalGeneration(config).model.visual
    made = tower.Tower(visual, 56)
    pixels = torch.randint(0, 256, (56, 56, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    processor = transformers.Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=56 * 56)
    expected = processor(Image.fromarray(pixels.numpy()), return_tensors="pt")["pixel_values"]
    image = pixels.permute(2, 0, 1)[None] / 255
    assert torch.allclose(made.patches(image), expected.view_as(made.patches(image)), atol=1e-6)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("params", [{}, {"loraRank": 2}, {"head": "mlp", "pool": "mean"}], ids=["full", "lora", "mlp"])
def test_at_the_first_minibatch_every_ratio_is_1(precision, params):
    work = VisionLanguagePolicy(settled(**params))
    session = session_of(work, precision, micro_batch=3)
    work.prepare(session, 0)
    found = []
    for ids in ([0, 1, 2], [3, 4, 5]):
        inputs, batch = work.player.minibatch(session, torch.tensor(ids), 0)
        with session.precision.forward():
            answer = session.parallel.forward(**inputs)
        logits = functional.log_softmax(answer.logits, -1).view(3, 4, 1, -1)
        found.append((logits.gather(-1, batch.action[..., None])[..., 0] - batch.log_probability).exp())
    assert (torch.cat(found) - 1).abs().max() < 1e-3
    terms = work.loss(session, MicroBatch(torch.arange(3), torch.ones(3)))
    assert terms.statistics["clipFraction"].item() == 0


def test_a_benchmark_reports_the_environment_steps_of_rollouts_with_their_learning():
    work = VisionLanguagePolicy(settled(environmentSteps=144))
    session, found = session_of(work), {}
    optimizer = work.optimizer(session.parallel.module)
    for step in range(8):
        work.prepare(session, step)
        found |= work.after_step(session, step + 1, optimize(work, session, optimizer, step, {}).metrics)
    assert found["envStepsPerSecond"] > 0
    read = session.parallel.module.positions.shape[-1]
    assert found["tokensPerSecond"] == found["envStepsPerSecond"] * read
    assert work.measure(session) == {name: found[name] for name in ("envStepsPerSecond", "tokensPerSecond")}


class HostReads(TorchDispatchMode):
    """Counts operations for which the host waits for a value of the device."""

    WAIT = (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero, torch.ops.aten.equal)

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, _types, args=(), kwargs=None):
        self.count += func.overloadpacket in self.WAIT
        return func(*args, **(kwargs or {}))


def test_a_step_of_a_rollout_waits_for_no_value_of_the_device():
    counts = []
    for horizon in (2, 14):
        work = VisionLanguagePolicy(settled(horizon=horizon, environmentSteps=6 * horizon))
        session = session_of(work)
        with HostReads() as reads:
            work.prepare(session, 0)
        counts.append(reads.count)
    assert counts[0] == counts[1], "a longer rollout asks as often"


@pytest.mark.parametrize("params", [{"freezeVision": True}, {"loraRank": 2}], ids=["frozen", "lora"])
def test_a_frozen_tower_sees_an_image_once_and_the_loss_is_that_of_seeing_it_again(params):
    work = VisionLanguagePolicy(settled(**params))
    session = session_of(work)
    work.prepare(session, 0)
    batch = MicroBatch(torch.arange(6), torch.ones(6))
    calls = []
    session.parallel.module.vlm.model.visual.register_forward_hook(lambda *_: calls.append(1))
    held = work.loss(session, batch)
    assert not calls
    work.player._played = work.player._played._replace(features=None)
    again = work.loss(session, batch)
    assert calls
    assert held.loss.item() == pytest.approx(again.loss.item(), abs=1e-6)
    learned = {name.split(".")[0] for name, each in session.parallel.module.named_parameters() if each.requires_grad}
    assert learned == {"vlm", "value_head"}


def test_a_rollout_is_learned_from_without_dropout():
    work = VisionLanguagePolicy(settled())
    work._config.text_config.attention_dropout = 0.5
    session = session_of(work)
    work.prepare(session, 0)
    found = work.loss(session, MicroBatch(torch.arange(6), torch.ones(6)))
    assert found.statistics["approxKl"].abs() < 1e-6


def test_an_episode_that_is_cut_off_is_worth_what_the_policy_expects_of_its_last_state():
    work = VisionLanguagePolicy(settled(horizon=14, environments=8, environmentSteps=112, entropyCoefficient=0))
    session = session_of(work)
    session.parallel.module.value_head.weight.data.normal_()
    work.prepare(session, 0)
    played, settings, table = work.player._played, work.settings, work.environment
    assert played.truncated.any()
    assert not played.terminated.all()
    with torch.no_grad():
        images = table.observe({name: each.flatten(0, 1) for name, each in played.state.items()})
        value = session.parallel.module(images.reshape(-1, 3, 32, 32)).value.view(14, 8)
        after = [
            table.advance({name: each[time] for name, each in played.state.items()}, played.action[time, :, 0])
            for time in range(14)
        ]
        ahead = torch.stack(
            [session.parallel.module(table.observe(each).reshape(-1, 3, 32, 32)).value for each in after]
        )
    target = torch.zeros(14, 8)
    for row in range(8):
        for at in range(14):
            weight, total = 1.0, 0.0
            for later in range(at, 14):
                future = 0.0 if played.terminated[later, row] else float(ahead[later, row])
                reward = float(played.reward[later, row])
                total += weight * (reward + settings.gamma * future - float(value[later, row]))
                if played.terminated[later, row] or played.truncated[later, row]:
                    break
                weight *= settings.gamma * settings.gae_lambda
            target[at, row] = total + value[at, row]
    assert torch.allclose(played.target[..., 0], target, atol=1e-4)
    assert abs(float(played.advantage.mean())) < 1e-5
    assert float(played.advantage.std(correction=0)) == pytest.approx(1, abs=1e-4)


def test_demonstrations_follow_from_their_ids_and_are_the_steps_of_the_expert_at_all_moments():
    table, settings = Tabletop("pick_place", 4, 32), settled(task="pick_place", cloneSteps=4)
    state, action = demonstrations(table, settings, torch.arange(64))
    left = table.steps_left(state)
    assert torch.equal(table.steps_left(table.advance(state, action)), left - 1)
    assert state["held"].any()
    assert not state["held"].all()
    part, same = demonstrations(table, settings, torch.arange(20, 30))
    assert torch.equal(same, action[20:30])
    assert all(torch.equal(part[name], each[20:30]) for name, each in state.items())
    logits = torch.zeros(2, 8).index_put((torch.tensor([0]), torch.tensor([5])), torch.tensor(9.0))
    answer = Answer(logits, torch.zeros(2), torch.zeros(0))
    found = clone_loss(answer, torch.tensor([5, 1]), torch.tensor([1.0, 0.0]))
    expected = functional.cross_entropy(logits[:1], torch.tensor([5])).item()
    assert (found.loss.item(), found.statistics["expertAccuracy"].item()) == (pytest.approx(expected), 1.0)


class Corridor(Tabletop):
    """An environment of a user."""

    def __init__(self, size):
        super().__init__("reach", 2, size)
        self.instruction = "walk to the can"


class Blind(Corridor):
    planes = None

    def __init__(self, size):
        super().__init__(size)
        self.planes = (1, size, size)


class Mute:
    def __init__(self, size):
        pass


class Narrow(Corridor):
    def observe(self, state):
        return super().observe(state)[..., 1:]


class Torn(Corridor):
    def step(self, state, actions, numbers):
        raise KeyError("arm")


def test_an_environment_of_ones_own_is_named_module_class():
    work = VisionLanguagePolicy(settled(environment=f"{__name__}:Corridor"))
    assert "walk" in work.assets()["words.txt"]
    session = session_of(work)
    work.prepare(session, 0)
    rates = {f"successRate{kind}{end}" for kind in ("", "Sampled") for end in ("", "Low", "High")}
    assert work.evaluate(session).keys() == {*rates, "episodeLength"}


def test_after_cloning_the_rate_is_one_that_unlearns_nothing():
    given = [{}, {"cloneSteps": 8}, {"cloneSteps": 8, "lr": 1e-3}, {"cloneSteps": 16, "preset": "large"}]
    assert [resolve_params(each, Parallelism()).lr for each in given] == [3e-3, 2e-4, 1e-3, 1e-4]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"environment": "nowhere:Corridor"}, "there is no module 'nowhere'; set workingDir"),
        ({"environment": f"{__name__}:Nothing"}, "has no class Nothing"),
        ({"environment": "outside_worlds:Hill"}, "is an environment of gymnasium, which vecrl takes; vlm needs"),
        ({"environment": f"{__name__}:Blind"}, r"has planes \(1, 32, 32\) and 1 agents; it needs \(3, 32, 32\) and 1"),
        ({"environment": f"{__name__}:Mute"}, "lacks reset, observe, step"),
        (
            {"environment": f"{__name__}:Narrow"},
            r"observe returns a tensor of shape \[2, 1, 3071\], expected \[N, agents, observed\], here \[2, 1, 3072\]",
        ),
        (
            {"environment": f"{__name__}:Torn"},
            r"step of 2 copies raised KeyError: 'arm' \(test_vlm_parts.py, line \d+\); see Environment in torchyard_tr",
        ),
        ({"environment": f"{__name__}:Corridor", "task": "grasp"}, "task: is of environment tabletop"),
        ({"imageSize": 40}, "imageSize: 40 is not a multiple of 16; use 32"),
        ({"pool": "mean"}, "pool: mean, but head tokens reads the answer from the last token; set head: mlp"),
        ({"horizon": 7}, r"horizon: 7 is not a multiple of minibatches \(2\)"),
        ({"cloneSteps": 5}, "cloneSteps: 5 is not a multiple of the 4 steps of a rollout; use 8"),
        ({"loraAlpha": 4}, "loraAlpha: 4.0, but there are no adapters"),
        ({"full": True, "loraRank": 4}, "full: true, but trainer.params.loraRank is 4"),
        ({"pretrained": "/nowhere", "model": "tiny-qwen2-vl"}, "model: tiny-qwen2-vl, but the geometry is that of"),
        ({"pretrained": "/nowhere"}, "/nowhere does not exist; check the path"),
        ({"warmupRollouts": 9}, "warmupRollouts: 9, but there are 2 rollouts"),
    ],
)
def test_what_does_not_fit_is_named_with_what_would(params, message):
    with pytest.raises(ConfigError, match=message):
        VisionLanguagePolicy(settled(**params))


def test_a_tokenizer_encodes_prompt_and_actions_and_two_actions_need_two_tokens(tmp_path):
    words = ["[unk]", *ACTIONS, "reach", "the", "can"]
    numbers = {word: 3 + place for place, word in enumerate(words)}
    write_tokenizer(tmp_path, numbers | {"<|vision_start|>": 58, "<|vision_end|>": 59})
    config, vocabulary = config_of("tiny-qwen2-vl", None), open_vocabulary(tmp_path, None, source="")
    found = make_prompt(config, "reach the can", ACTIONS, style="task", vocabulary=vocabulary)
    assert found.actions == list(range(4, 12))
    assert (found.before, found.after) == ([58], [59, 12, 13, 14])
    assert found.assets == {"tokenizer.json": tmp_path / "tokenizer.json"}
    with pytest.raises(ConfigError, match="two of the actions jump, hop begin with the same token"):
        make_prompt(config, "reach the can", ("jump", "hop"), style="task", vocabulary=vocabulary)
    check_size(config, 64)


@pytest.mark.parametrize(
    ("tokens", "style", "message"),
    [
        ({"<|vision_start|>": 58}, "task", r"<\|vision_end\|> is number 59 in the model's config.json, but the tok"),
        ({"<|vision_start|>": 57, "<|vision_end|>": 59}, "task", "number 58 in .* but the tokenizer has number 57"),
        ({"<|vision_start|>": 58, "<|vision_end|>": 59}, "chat", r"has no token <\|im_start\|>; use prompt: task"),
        ({"up": 64}, "task", "has tokens up to number 64, but the model knows 64"),
    ],
)
def test_a_tokenizer_of_another_model_is_refused(tmp_path, tokens, style, message):
    write_tokenizer(tmp_path, {"[unk]": 3} | tokens)
    vocabulary = open_vocabulary(None, tmp_path, source="")
    with pytest.raises(ConfigError, match=message):
        make_prompt(config_of("tiny-qwen2-vl", None), "reach", ACTIONS, style=style, vocabulary=vocabulary)
