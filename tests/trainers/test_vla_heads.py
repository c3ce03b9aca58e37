"""ACT and diffusion beside the flow head: losses and gradients of loops written by hand, and what acting does."""

import json
import math

import pytest
import torch
from torch.nn import functional

from torchyard_trainers.core.checkpoints.checkpoint import compare_identity
from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError, DataMismatchError
from torchyard_trainers.core.randomness import split_keys, uniform
from torchyard_trainers.vla.demonstrations import keys_of
from torchyard_trainers.vla.heads.act import LATENT, ActHead, places
from torchyard_trainers.vla.heads.diffusion import Schedule
from torchyard_trainers.vla.heads.flow import normal
from torchyard_trainers.vla.params import resolve_params
from torchyard_trainers.vla.task import VisionLanguageAction

HEADS = [("act", {}), ("act", {"preNorm": True}), ("act", {"preNorm": False}), ("diffusion", {})]


def made(head, **params):
    work = VisionLanguageAction(resolve_params({"model": "tiny-paligemma", "head": head} | params, Parallelism()))
    torch.manual_seed(0)
    return work, work.build()


def shown_of(work, many=6):
    ids = torch.arange(many)
    return work.tabletop.demonstrations(ids), keys_of(work.settings, ids, "flow")


@pytest.mark.parametrize(("head", "params"), HEADS)
def test_every_trained_parameter_gets_a_gradient_and_padding_of_an_instruction_changes_nothing(head, params):
    work, policy = made(head, **params)
    shown, keys = shown_of(work)
    losses = work.objective.losses(policy, shown, keys[:, None]).loss
    losses.sum().backward()
    assert [name for name, each in policy.named_parameters() if each.requires_grad and each.grad is None] == []
    seen = shown.observation
    mask = torch.ones_like(functional.pad(seen.tokens, (0, 3))).bool()
    mask[:, -3:] = False
    padded = shown._replace(observation=seen._replace(tokens=functional.pad(seen.tokens, (0, 3)), mask=mask))
    again = work.objective.losses(policy, padded, keys[:, None]).loss
    torch.testing.assert_close(again, losses, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("kind", "error"), [("l1", functional.l1_loss), ("l2", functional.mse_loss)])
def test_act_is_the_loss_of_lerobot_with_the_gradient_of_a_loop_written_out(kind, error):
    work, policy = made("act", klWeight=3, actionLoss=kind)
    shown, keys = shown_of(work)
    shown = shown._replace(valid=torch.ones_like(shown.valid))  # LeRobot divides by padded actions as well
    found = work.objective.losses(policy, shown, keys[:, None])
    found.loss.mean().backward()
    ours = {name: each.grad.clone() for name, each in policy.head.named_parameters()}
    policy.zero_grad()
    context, _, state = policy.context(shown.observation)
    mean, spread = policy.head.describe(state, shown.actions, shown.valid)
    noise = normal(uniform(split_keys(keys, LATENT)))
    actions = policy.head(context, None, state, mean + (0.5 * spread).exp() * noise)
    apart = error(actions, shown.actions)
    pairs = zip(mean.detach().flatten().tolist(), spread.detach().flatten().tolist(), strict=True)
    kl = sum(0.5 * (math.exp(variance) + centre**2 - 1 - variance) for centre, variance in pairs) / len(mean)
    assert float(found.loss.mean().detach()) == pytest.approx(float(apart.detach()) + 3 * kl, rel=1e-4)
    (apart + 3 * (-0.5 * (1 + spread - mean.pow(2) - spread.exp())).sum(-1).mean()).backward()
    for name, each in policy.head.named_parameters():
        torch.testing.assert_close(each.grad, ours[name], atol=1e-6, rtol=1e-4)


def test_act_reads_valid_actions_only_where_it_describes_them_and_acts_with_the_latent_variable_0():
    head = ActHead(64, state=3, action=2, horizon=5)
    state, actions = torch.randn(2, 3), torch.randn(2, 5, 2)
    valid = torch.arange(5) < torch.tensor([5, 2])[:, None]
    other = torch.where(valid[..., None], actions, torch.full_like(actions, 9.0))
    for one, two in zip(head.describe(state, actions, valid), head.describe(state, other, valid), strict=True):
        torch.testing.assert_close(one, two)
    work, policy = made("act")
    shown, keys = shown_of(work)
    context, mask, state = policy.context(shown.observation)
    expected = policy.head(context, mask, state, torch.zeros(6, LATENT))
    assert torch.equal(work.objective.act(policy, shown.observation, keys), expected)
    assert places(3, 4).tolist()[1] == pytest.approx([math.sin(1), math.cos(1), math.sin(0.01), math.cos(0.01)])


@pytest.mark.parametrize("steps", [10, 100])
def test_the_schedule_is_the_squared_cosine(steps):
    schedule, product = Schedule(steps), 1.0
    for step in range(steps):
        one, two = (math.cos((t / steps + 0.008) / 1.008 * math.pi / 2) ** 2 for t in (step, step + 1))
        product *= 1 - min(1 - two / one, 0.999)
        assert float(schedule.left[step]) == pytest.approx(product, rel=1e-9)
    assert float(schedule.left[-1]) < 1e-4, "nothing of the action is left"


def test_diffusion_is_the_loss_and_gradient_of_a_loop_written_out():
    work, policy = made("diffusion", draws=2, prediction="epsilon")
    shown, keys = shown_of(work, 4)
    found = work.objective.losses(policy, shown, split_keys(keys, 2))
    found.loss.mean().backward()
    ours = {name: each.grad.clone() for name, each in policy.head.named_parameters()}
    policy.zero_grad()
    draws = uniform(split_keys(split_keys(keys, 2).flatten(), 1 + 8))
    total = torch.zeros(())
    for number in range(8):
        step = int(draws[number, 0] * 100)
        left = float(work.objective.schedule.left[step])
        noise = normal(draws[number, 1:]).view(1, 4, 2)
        one = [each[number // 2 : number // 2 + 1] if each is not None else None for each in shown.observation]
        points = math.sqrt(left) * shown.actions[number // 2 : number // 2 + 1] + math.sqrt(1 - left) * noise
        predicted = policy(type(shown.observation)(*one), points, torch.tensor([step]))
        total = total + functional.mse_loss(predicted, noise) / 8
    torch.testing.assert_close(total.detach(), found.loss.mean().detach())
    total.backward()
    for name, each in policy.head.named_parameters():
        torch.testing.assert_close(each.grad, ours[name], atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("count", [100, 25, 7])
def test_exact_noise_leads_to_the_action(count):
    schedule, actions = Schedule(100), torch.rand(3, 4, 2) * 1.8 - 0.9

    def exact(points, step):
        left = float(schedule.left[step])
        return (points - math.sqrt(left) * actions) / math.sqrt(1 - left)

    noise = normal(uniform(torch.arange(3 * 101 * 8) * 7919)).view(3, 101, 4, 2)
    torch.testing.assert_close(schedule.remove(exact, noise, count), actions, atol=1e-3, rtol=0)
    again = schedule.remove(lambda _points, _step: actions, noise, count, sample=True)
    torch.testing.assert_close(again, actions, atol=1e-3, rtol=0)


def test_a_diffusion_policy_that_predicts_actions_has_their_error_as_its_loss():
    work, policy = made("diffusion", prediction="sample", draws=1)
    shown, keys = shown_of(work, 4)
    found = work.objective.losses(policy, shown, keys[:, None]).loss
    draws = uniform(split_keys(keys, 1 + 8))
    steps = (draws[:, 0] * 100).long()
    points = work.objective.schedule.noisy(shown.actions, normal(draws[:, 1:]).view(4, 4, 2), steps)
    predicted = policy(shown.observation, points, steps)
    torch.testing.assert_close(found, (predicted - shown.actions).square().mean(-1))


@pytest.mark.parametrize(
    ("head", "as_before", "other", "message"),
    [
        ("act", {"preNorm": False, "actionLoss": "l1"}, {"actionLoss": "l2"}, "action_loss is 'l2' but was None"),
        ("act", {"preNorm": False, "actionLoss": "l1"}, {"preNorm": True}, "pre_norm is True but was None"),
        ("diffusion", {"prediction": "epsilon"}, {"prediction": "sample"}, "prediction is 'sample' but was None"),
    ],
)
def test_a_run_of_before_a_field_existed_continues_with_what_it_had(tmp_path, head, as_before, other, message):
    now = made(head, **as_before)[0].identity
    later = ("pre_norm", "action_loss", "prediction")
    earlier = {name: value for name, value in now.items() if not name.endswith(later)}
    record = tmp_path / "run.json"
    record.write_text(json.dumps({"identity": earlier}))
    compare_identity(record, dict(now))
    with pytest.raises(DataMismatchError, match=message):
        compare_identity(record, dict(made(head, **as_before | other)[0].identity))


def test_the_layers_of_act_have_the_initial_weights_of_lerobot():
    _, policy = made("act")
    for name, each in policy.head.named_modules():
        if name.startswith(("layers.", "decoder.")) and isinstance(each, torch.nn.Linear):
            bound = math.sqrt(6 / sum(each.weight.shape))
            assert 0.98 * bound < each.weight.abs().max() <= bound
            assert not each.bias.any()


@pytest.mark.parametrize(("steps", "count"), [(8, 8), (8, 3)])
def test_an_action_follows_from_keys_and_lies_in_the_range_of_actions(steps, count):
    work, policy = made("diffusion", noiseSteps=steps, denoisingSteps=count)
    shown, keys = shown_of(work)
    actions = work.objective.act(policy, shown.observation, keys)
    assert actions.shape == (6, 4, 2)
    assert actions.abs().max() <= 1 + 1e-5
    assert torch.equal(work.objective.act(policy, shown.observation, keys), actions)
    assert not torch.equal(work.objective.act(policy, shown.observation, keys + 1), actions)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"model": "tiny-pi0", "head": "act"},
            "trainer.params.head: act, but tiny-pi0 has an action expert; use model",
        ),
        ({"head": "act", "draws": 2}, "trainer.params.draws: 2, but head act has none; remove it or use head flow or"),
        ({"head": "act", "noiseSteps": 10}, "trainer.params.noiseSteps: 10, but head act has none; remove it or use"),
        ({"head": "diffusion", "chunk": 6}, "trainer.params.chunk: 6, but the U-Net of head diffusion halves it twice"),
        ({"head": "diffusion", "normalization": "mean-std"}, "trainer.params.normalization: mean-std, but actions of"),
        (
            {"head": "diffusion", "noiseSteps": 5},
            "trainer.params.denoisingSteps: 10, but there are 5 from an action to",
        ),
        ({"head": "diffusion", "klWeight": 1}, "trainer.params.klWeight: 1.0, but head diffusion has none; remove it"),
    ],
)
def test_a_mistake_is_named(given, message):
    with pytest.raises(ConfigError) as caught:
        resolve_params({"model": "tiny-paligemma"} | given, Parallelism())
    assert message in str(caught.value)
