"""The parts of `vla`: parameters, tabletop, flow, model, normalisation; each against what it must equal."""

import pytest
import torch

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.weights import parameters_on_meta
from torchyard_trainers.vla import tabletop
from torchyard_trainers.vla.data.instructions import FIRST
from torchyard_trainers.vla.data.normalization import measured, scaling
from torchyard_trainers.vla.demonstrations import keys_of
from torchyard_trainers.vla.heads import flow
from torchyard_trainers.vla.models import PRESETS, build_policy, config_of
from torchyard_trainers.vla.params import resolve_params
from torchyard_trainers.vla.task import VisionLanguageAction

# The second is ours; the third is the default of transformers' PI0Config, which is the published pi0.
PARAMETERS = {"tiny-pi0": 306_946, "pi0": 3_501_372_176}


@pytest.fixture(scope="module")
def work():
    return VisionLanguageAction(resolve_params({}, Parallelism()))


@pytest.fixture(scope="module")
def policy(work):
    torch.manual_seed(0)
    policy = work.build()
    for each in policy.parameters():
        torch.nn.init.normal_(each, std=0.2)
    return policy


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"execute": 5}, "trainer.params.execute: 5, but a chunk has 4 actions; lower it"),
        (
            {"steps": 20, "warmupSteps": 17},
            "trainer.params.warmupSteps: a warm-up of 17 steps and decay of 4 does not fit into 20 steps; shorten it",
        ),
        ({"objects": 7}, "trainer.params.objects"),
        ({"model": "pi"}, "trainer.params.model: 'pi' is not known; did you mean pi0?"),
        ({"learningRate": 0.1}, "unknown field `learningRate`"),
    ],
)
def test_a_mistake_is_named(given, message):
    with pytest.raises(ConfigError) as caught:
        resolve_params(given, Parallelism())
    assert message in str(caught.value)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_built_without_memory_and_has_the_published_size(name):
    with parameters_on_meta():
        policy = build_policy(config_of(name, None, chunk=4))
    assert all(each.is_meta for each in policy.parameters())
    if name in PARAMETERS:
        assert sum(each.numel() for each in policy.parameters()) == PARAMETERS[name]


def test_the_velocity_and_the_sampled_actions_are_those_of_the_library(work, policy):
    ids = torch.arange(6)
    shown, keys = work.tabletop.demonstrations(ids), keys_of(work.settings, ids, "flow")
    draws = flow.draw(keys, 4, 2)
    seen = shown.observation
    tokens = torch.cat([torch.full((6, 9), policy.pi0.config.vlm_config.image_token_id), seen.tokens], 1)
    theirs = {
        "state": seen.state,
        "input_ids": tokens,
        "pixel_values": seen.images,
        "pixel_attention_mask": torch.ones(6, 1, dtype=torch.bool),
        "attention_mask": torch.ones_like(tokens),
        "noise": draws.noise,
    }
    library = type(policy.pi0)(policy.pi0.config)  # `Policy` changes the last layer of the one it wraps
    library.load_state_dict(policy.pi0.state_dict())
    velocity = policy(seen, flow.noisy(shown.actions, draws), draws.time)
    expected = library(**theirs, timestep=draws.time, actions=shown.actions)
    torch.testing.assert_close(velocity, expected.logits)
    torch.testing.assert_close(flow.flow_loss(velocity, shown.actions, draws.noise).mean(), expected.loss)
    masked = policy(
        seen._replace(mask=torch.ones_like(seen.tokens).bool()), flow.noisy(shown.actions, draws), draws.time
    )
    torch.testing.assert_close(masked, velocity)
    sampled = policy(seen, draws.noise, steps=5, size=2)
    torch.testing.assert_close(sampled, library.sample_actions(**theirs, num_steps=5), atol=1e-5, rtol=1e-5)


def test_every_trained_parameter_gets_a_gradient(work, policy):
    shown = work.tabletop.demonstrations(torch.arange(6))
    draws = flow.draw(keys_of(work.settings, torch.arange(6), "flow"), 4, 2)
    flow.flow_loss(
        policy(shown.observation, flow.noisy(shown.actions, draws), draws.time), shown.actions, draws.noise
    ).sum().backward()
    assert [name for name, each in policy.named_parameters() if each.requires_grad and each.grad is None] == []
    policy.zero_grad()


def test_the_exact_velocity_carries_noise_to_the_action():
    actions = torch.rand(3, 4, 2) * 2 - 1
    draws = flow.draw(torch.arange(3), 4, 5)
    padded = torch.nn.functional.pad(actions, (0, 3))
    found = flow.integrate(lambda _points, _time: draws.noise - padded, draws.noise, steps=7, size=2)
    torch.testing.assert_close(found, actions)
    assert flow.flow_loss(draws.noise - padded, padded, draws.noise).abs().max() == 0
    assert flow.flow_loss(padded, padded, draws.noise).mean() > 0.5, "the target is noise - action, never the action"


def test_times_and_noise_have_their_distributions():
    time, noise = flow.draw(torch.arange(20_000) * 7919, 2, 2)
    assert time.mean() == pytest.approx(0.6, abs=0.01), "the mean of Beta(1.5, 1)"
    assert (time > 0).all()
    assert (time <= 1).all()
    assert (noise.mean().item(), noise.std().item()) == (pytest.approx(0, abs=0.01), pytest.approx(1, abs=0.01))


def test_a_demonstration_is_what_the_expert_does_step_by_step_and_ends_with_the_episode(work):
    scene = work.tabletop.scenes(torch.arange(200), "demonstrations")
    gripper, actions, valid = tabletop.demonstrate(scene, 4)
    assert valid.any(1).all()
    assert not valid.all(1).all(), "some chunks reach beyond the end of their episode"
    for number in range(200):
        at, path = scene.start[number], [scene.start[number]]
        while (at - scene.goal[number]).abs().max() > 1e-6:
            at = tabletop.step(at[None], tabletop.expert(at, scene.goal[number])[None])[0]
            path.append(at)
        steps = len(path) - 1 + tabletop.HOLD
        now = int(scene.moment[number] * steps)
        assert valid[number].tolist() == [now + ahead < steps for ahead in range(4)]
        torch.testing.assert_close(gripper[number], path[min(now, len(path) - 1)], atol=1e-5, rtol=0)
        at = gripper[number]
        for action in actions[number][valid[number]]:
            torch.testing.assert_close(action, tabletop.expert(at, scene.goal[number]), atol=1e-4, rtol=0)
            at = tabletop.step(at[None], action[None])[0]


def test_an_episode_is_judged_by_where_the_gripper_ends(work):
    scene = work.tabletop.scenes(torch.arange(500), "episodes", held_out=True)
    end = tabletop.expert_path(scene, [[tabletop.STEPS]] * 500)[:, 0]
    assert tabletop.judge(scene, end).success.all(), "there is time for every episode"
    other = scene.objects[torch.arange(500), 1 - scene.target]
    found = tabletop.judge(scene, other)
    assert (found.success.any(), found.wrong_object.all()) == (False, True)
    found = tabletop.judge(scene, torch.full((500, 2), 5.0))
    assert not (found.success | found.wrong_object).any()


def test_an_image_shows_objects_and_gripper_where_they_are_and_the_instruction_names_the_colour(work):
    scene = work.tabletop.scenes(torch.arange(20), "episodes", held_out=True)
    image = tabletop.render(scene, torch.full((20, 2), -0.95), 100)
    assert image.shape == (20, 3, 100, 100)
    assert (image.min() >= 0, image.max() <= 1) == (True, True)
    for number in range(20):
        x, y = ((scene.goal[number] + 1) * 50).long().tolist()
        colour = tabletop.COLOURS[scene.colour[number]]
        expected = torch.tensor(tabletop._RGB[scene.colour[number]])
        torch.testing.assert_close(image[number, :, y, x], expected, atol=0.02, rtol=0)
        tokens, mask = work.tabletop.instructions.of(scene.colour)
        assert mask is None
        words = [tabletop.WORDS[token - FIRST] for token in tokens[number][1:]]
        assert " ".join(words) == tabletop.sentence(int(scene.colour[number])) == f"reach the {colour} object"


@pytest.mark.parametrize("kind", ["min-max", "mean-std", "none"])
def test_normalisation_is_undone_exactly_and_a_constant_stays_finite(kind):
    values = torch.stack([torch.rand(50) * 8 + 2, torch.full((50,), 3.0)], 1)
    found = scaling(measured(values), kind)
    normal = found.normalize(values)
    torch.testing.assert_close(found.restore(normal), values)
    if kind == "min-max":
        assert (normal[:, 0].min().item(), normal[:, 0].max().item()) == (pytest.approx(-1), pytest.approx(1))
    if kind == "mean-std":
        assert (normal[:, 0].mean().item(), normal[:, 0].std(correction=0).item()) == (
            pytest.approx(0, abs=1e-5),
            pytest.approx(1),
        )
    assert normal[:, 1].unique().tolist() == ([3.0] if kind == "none" else [0.0])


def test_the_statistics_of_the_tabletop_are_those_of_its_demonstrations(work):
    scene = work.tabletop.scenes(torch.arange(20_000), "demonstrations")
    gripper, actions, valid = tabletop.demonstrate(scene, 4)
    for name, values in {"observation.state": gripper, "action": actions[valid]}.items():
        found, stated = measured(values), tabletop.STATISTICS[name]
        for kind in ("min", "max", "mean", "std"):
            assert found[kind] == pytest.approx(stated[kind], abs=0.015), (name, kind)
