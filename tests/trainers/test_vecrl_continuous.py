"""Continuous actions: their bounds, their probabilities, one step of PPO beside CleanRL's, and resumed episodes."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from little_rl import everything, session_of, settled
from torch import nn
from torch.distributions import Normal

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.workload import MicroBatch
from torchyard_trainers.rl.distributions import Gaussian
from torchyard_trainers.vecrl.environments import build_environment
from torchyard_trainers.vecrl.task import VecRL

CPU = torch.device("cpu")
CRANE = {"environment": "outside_worlds:Crane", "maxEpisodeSteps": 9}
PENDULUM = {"environment": "Pendulum-v1", "gamma": 0.9, "gaeLambda": 0.95, "maxEpisodeSteps": 5}


def opened(given):
    return build_environment(settled(**given), CPU)


def test_probability_and_entropy_are_those_of_torch():
    torch.manual_seed(1)
    parameters, action = torch.randn(5, 2, 6), torch.randn(5, 2, 3)
    theirs = Normal(parameters[..., :3], parameters[..., 3:].exp())
    found = Gaussian(3).judge(parameters, action)
    torch.testing.assert_close(found.log_probability, theirs.log_prob(action).sum(-1))
    torch.testing.assert_close(found.entropy, theirs.entropy().sum(-1))
    noise = Gaussian(1).noise(torch.randint(2**63 - 1, (100_000,)))
    assert (noise.mean().item(), noise.std().item()) == pytest.approx((0, 1), abs=0.02)


@pytest.mark.parametrize(
    ("bounds", "action", "given"),
    [("clip", [3.0, -1.0], [2, 0]), ("clip", [0.5, 0.25], [0.5, 0.25]), ("rescale", [0.5, 0.0], [1, 0.5])],
)
def test_an_action_reaches_the_environment_within_its_bounds(bounds, action, given):
    environment = opened(CRANE | {"actionBounds": bounds})
    assert environment.actions == 2
    numbers = torch.full((2, 1), 0.5)
    outcome = environment.step(environment.reset(numbers), torch.tensor([[action], [[9.0, 9.0]]]), numbers)
    assert environment.observe(outcome.final)[:, 0, 1:].tolist() == [given, [2, 1]]
    assert outcome.reward[0, 0] == sum(given)


@pytest.mark.parametrize("rows", [slice(None), slice(1, None, 2)], ids=["all", "half"])
def test_a_state_is_enough_to_continue_with_the_same_bits(rows):
    environment = opened(PENDULUM)
    numbers = torch.rand(6, 1, generator=torch.Generator().manual_seed(1))

    def played(environment, state, first, last, rows=slice(None)):
        found = []
        for step in range(first, last):
            draw = torch.Generator().manual_seed(step)
            actions, uniform = torch.randn(6, 1, 1, generator=draw), torch.rand(6, 1, generator=draw)
            found.append(environment.step(state, actions[rows], uniform[rows]))
            state = found[-1].state
        return found

    whole = played(environment, environment.reset(numbers), 0, 14)
    middle = {name: each.clone()[rows] for name, each in whole[7].state.items()}
    again = played(opened(PENDULUM), middle, 8, 14, rows)
    for found, expected in zip(again, whole[8:], strict=True):
        assert torch.equal(found.reward, expected.reward[rows])
        for name, each in found.state.items():
            assert torch.equal(each, expected.state[name][rows]), name
    middle["actions"][:, 0] += 0.01
    middle["recent"][:, 0] += 0.01
    with pytest.raises(ConfigError, match="does not show the same again"):
        played(opened(PENDULUM), middle, 8, 9, rows)


class Agent(nn.Module):
    """CleanRL's, of ppo_continuous_action.py."""

    def __init__(self, ours):
        super().__init__()

        def plain(network):
            layers = [layer for layer in network if type(layer).__name__ in ("Linear", "Tanh")]
            return nn.Sequential(*(_linear(each) if type(each).__name__ == "Linear" else nn.Tanh() for each in layers))

        self.critic, self.actor_mean = plain(ours.critic), plain(ours.actor)
        self.actor_logstd = nn.Parameter(torch.zeros(1, 1))

    def get_action_and_value(self, x, action):
        mean = self.actor_mean(x)
        probs = Normal(mean, torch.exp(self.actor_logstd.expand_as(mean)))
        return probs.log_prob(action).sum(1), probs.entropy().sum(1), self.critic(x)


def _linear(layer):
    made = nn.Linear(layer.weight.shape[2], layer.weight.shape[1])
    with torch.no_grad():
        made.weight.copy_(layer.weight[0])
        made.bias.copy_(layer.bias[0])
    return made


def cleanrl_step(agent, optimizer, args, rollout, mb_inds):
    """One minibatch of CleanRL's update, line for line; advantages are normalised before."""
    b_obs, b_logprobs, b_actions, b_advantages, b_returns, b_values = rollout
    newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[mb_inds], b_actions[mb_inds])
    logratio = newlogprob - b_logprobs[mb_inds]
    ratio = logratio.exp()
    mb_advantages = b_advantages[mb_inds]
    pg_loss = torch.max(
        -mb_advantages * ratio, -mb_advantages * torch.clamp(ratio, 1 - args.clip, 1 + args.clip)
    ).mean()
    newvalue = newvalue.view(-1)
    v_loss_unclipped = (newvalue - b_returns[mb_inds]) ** 2
    v_clipped = b_values[mb_inds] + torch.clamp(newvalue - b_values[mb_inds], -args.value_clip, args.value_clip)
    v_loss_clipped = (v_clipped - b_returns[mb_inds]) ** 2
    v_loss = 0.5 * torch.max(v_loss_unclipped, v_loss_clipped).mean()
    loss = pg_loss - args.entropy_coefficient * entropy.mean() + v_loss * args.value_coefficient
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
    optimizer.step()
    return loss.item()


def test_steps_of_ppo_are_those_of_cleanrl_with_clipped_values():
    work = VecRL(settled(**PENDULUM, valueClip=0.01, entropyCoefficient=0.01, lr=1e-2, normalizeObservations=False))
    session = session_of(work)
    model = session.parallel.module
    agent = Agent(model)
    theirs = torch.optim.Adam(agent.parameters(), lr=1e-2, eps=1e-5)
    ours = work.optimizer(model)
    work.prepare(session, 0)
    losses, clipped = [], False
    for step in range(work.settings.steps_per_rollout):
        batch = work._minibatch(session, torch.arange(6), step)
        flat = [each.flatten(0, 2) for each in (batch.observation, batch.log_probability, batch.action)]
        rest = [each.flatten() for each in (batch.advantage, batch.target, batch.value)]
        expected = cleanrl_step(agent, theirs, work.settings, [*flat, *rest], torch.arange(len(rest[0])))
        ours.zero_grad()
        found = work.loss(session, everything(work, step))
        (found.loss / 6).backward()
        nn.utils.clip_grad_norm_(model.parameters(), work.settings.max_grad_norm)
        ours.step()
        losses.append((found.loss.item() / 6, expected))
        clipped = clipped or bool(((agent.critic(flat[0]).view(-1) - rest[2]).abs() > 0.01).any())
    assert clipped, "values are far enough for clipping to count"
    for found, expected in losses:
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    torch.testing.assert_close(model.actor[-1].logarithm[0], agent.actor_logstd[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(model.actor[0].weight[0], agent.actor_mean[0].weight, rtol=1e-4, atol=1e-5)


def test_the_epochs_of_a_rollout_end_once_the_policy_is_too_far_away():
    work = VecRL(settled(**PENDULUM, targetKl=1e-9, lr=1e-2, epochs=3))
    session = session_of(work)
    optimizer, before = work.optimizer(session.parallel.module), []
    for step in range(8):
        work.prepare(session, step)
        before.append([each.detach().clone() for each in session.parallel.module.parameters()])
        found = work.loss(session, MicroBatch(torch.arange(6), torch.ones(6), step))
        optimizer.zero_grad()
        found.loss.backward()
        optimizer.step()
        metrics = work.after_step(session, step + 1, {"approxKl": found.statistics["approxKl"].item() / 6})
        assert metrics.get("updateEpochs", 1.0) == 1.0
    changed = [not all(map(torch.equal, one, other)) for one, other in pairwise(before)]
    # An epoch of two minibatches learns; those of the two epochs after it do not, and the next rollout learns again.
    assert changed == [True, True, False, False, False, False, True]


@pytest.mark.parametrize("policies", ["shared", "independent"])
def test_agents_of_a_tensor_environment_learn_with_real_numbers(policies):
    work = VecRL(settled(environment="outside_worlds:Drift", policies=policies, lr=1e-2))
    session = session_of(work)
    model = session.parallel.module
    optimizer = work.optimizer(model)
    assert model.actor[-1].logarithm.shape == ((1 if policies == "shared" else 2), 2)
    measured = [work.evaluate(session)["evalReturn"]]
    for step in range(80):
        work.prepare(session, step)
        optimizer.zero_grad()
        (work.loss(session, everything(work, step)).loss / 6).backward()
        optimizer.step()
        work.after_step(session, step + 1, {})
    measured.append(work.evaluate(session)["evalReturn"])
    assert measured[1] > measured[0] + 1, measured


def test_actions_of_an_export_are_within_the_bounds():
    work = VecRL(settled(**CRANE))
    model = session_of(work).parallel.module
    with torch.no_grad():
        model.actor[-2].weight.mul_(1000)
    (program,) = work.programs(model, 30).values()
    actions = program.module(program.inputs["observation"])
    assert program.outputs == ("action",)
    assert actions.shape == (30, 1, 2)
    assert np.isin(actions[..., 0].abs().max().item(), [2.0])
    assert (actions[..., 1] >= 0).all()
    assert (actions[..., 1] <= 1).all()
