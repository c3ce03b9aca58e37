"""PPO's loss and minibatches by hand, and who learns from what."""

import math

import pytest
import torch
from little_rl import ALONE, SNAKES, everything, session_of, settled

from torchyard_trainers.core.metrics.flops import flops_of_sample
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.workload import MicroBatch, Session
from torchyard_trainers.rl.ppo import Minibatch, losses
from torchyard_trainers.vecrl.task import VecRL


@pytest.mark.parametrize("environment", [{"environment": "cartpole"}, SNAKES], ids=["cartpole", "snake"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_at_the_first_minibatch_the_policy_is_the_one_that_acted(environment, precision):
    work = VecRL(settled(**environment, environments=64))
    session = session_of(work)
    session = Session(
        session.parallel, Precision(precision, ALONE.device, sharded=False), ALONE, session.reporter, None
    )
    work.prepare(session, 0)
    with session.precision.forward():
        minibatch = work._minibatch(session, torch.arange(64), 0)
        logits, _ = session.parallel.forward(minibatch.observation.flatten(0, 1))
    chosen = logits.log_softmax(-1).gather(-1, minibatch.action.flatten(0, 1)[..., None])[..., 0]
    ratio = (chosen - minibatch.log_probability.flatten(0, 1)).exp()
    assert (ratio - 1).abs().max() < 1e-3
    assert work.loss(session, everything(work)).statistics["clipFraction"].item() == 0


def test_the_loss_is_ppo_by_hand():
    work = settled(clip=0.2, valueCoefficient=0.5, entropyCoefficient=0.1)
    logits = torch.tensor([[[[0.0, 1.0]], [[2.0, 0.0]]]])  # one environment, two times, one agent
    old = torch.tensor([[[math.log(0.5)], [math.log(0.8)]]])
    batch = Minibatch(
        torch.zeros(1, 2, 1, 4), torch.tensor([[[1], [0]]]), old, torch.tensor([[[1.0], [-2.0]]]), torch.zeros(1, 2, 1)
    )
    value = torch.tensor([[[0.4], [-0.2]]])
    found = losses(logits, value, batch, torch.ones(1), work)
    first, second = 1 / (1 + math.exp(-1)), 1 / (1 + math.exp(-2))
    # The first ratio, 1.46, is clipped at 1.2; the second, 1.10, is not.
    policy = -(1.2 * 1.0 + second / 0.8 * -2.0) / 2
    error = (0.5 * 0.16 + 0.5 * 0.04) / 2
    entropy = -sum(p * math.log(p) for p in (first, 1 - first, second, 1 - second)) / 2
    assert found.statistics["policyLoss"].item() == pytest.approx(policy, abs=1e-6)
    assert found.statistics["valueLoss"].item() == pytest.approx(error, abs=1e-6)
    assert found.statistics["entropy"].item() == pytest.approx(entropy, abs=1e-6)
    assert found.statistics["clipFraction"].item() == 0.5
    assert found.loss.item() == pytest.approx(policy + 0.5 * error - 0.1 * entropy, abs=1e-6)


def test_a_loss_refuses_values_of_another_shape():
    batch = Minibatch(*(torch.zeros(2, 3, 1, *more) for more in ((4,), (), (), (), ())))
    batch = batch._replace(action=batch.action.long())
    with pytest.raises(AssertionError):
        losses(torch.zeros(2, 3, 1, 2), torch.zeros(2, 3), batch, torch.ones(2), settled())


@pytest.mark.parametrize("micro_batches", [[[0, 1, 2], [3, 4, 5]], [[0, 1, 2, 3], [4, 5, 5, 5]]])
def test_a_loss_in_parts_is_the_loss_and_padding_weighs_nothing(micro_batches):
    work = VecRL(settled(**SNAKES))
    session = session_of(work)
    work.prepare(session, 0)
    whole = work.loss(session, everything(work))
    parts, seen = [], set()
    for ids in micro_batches:
        weights = [float(each not in seen and ids.index(each) == place) for place, each in enumerate(ids)]
        seen |= set(ids)
        parts.append(work.loss(session, MicroBatch(torch.tensor(ids), torch.tensor(weights))))
    assert sum(part.loss for part in parts).item() == pytest.approx(whole.loss.item(), abs=1e-5)
    for name, value in whole.statistics.items():
        assert sum(part.statistics[name] for part in parts).item() == pytest.approx(value.item(), abs=1e-5), name


def test_the_minibatches_of_an_epoch_hold_every_sample_once_and_the_next_epoch_in_another_order():
    work = VecRL(settled())
    session = session_of(work)
    work.prepare(session, 0)
    (path, *_), _ = work.collector.rollout
    epochs = []
    for epoch in range(2):
        seen = [work._minibatch(session, torch.arange(6), epoch * 2 + part).observation for part in range(2)]
        epochs.append(torch.cat(seen, 1))  # [6, 8, 1, 4]
    for samples in epochs:
        for copy in range(6):
            assert {tuple(row) for row in samples[copy, :, 0].tolist()} == {
                tuple(row) for row in path.observation[:, copy, 0].tolist()
            }
    assert not torch.equal(*epochs)


def test_advantages_are_normalised_over_the_rollout():
    work = VecRL(settled())
    session = session_of(work)
    work.prepare(session, 0)
    found = [work._minibatch(session, torch.arange(6), part).advantage for part in range(2)]
    everywhere = torch.cat(found, 1)
    assert everywhere.mean().item() == pytest.approx(0, abs=1e-5)
    assert everywhere.std(correction=0).item() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("given", [{}, {"model": "cnn"}], ids=["mlp", "cnn"])
def test_independent_agents_learn_from_their_own_samples_only(given):
    work = VecRL(settled(**SNAKES, policies="independent", **given))
    session = session_of(work)
    policy = session.parallel.module
    work.prepare(session, 0)
    observation = work._minibatch(session, torch.arange(6), 0).observation.flatten(0, 1)
    logits, value = policy(observation)
    (logits[:, 1].sum() + value[:, 1].sum()).backward()
    for name, parameter in policy.named_parameters():
        mine = parameter.grad.unflatten(0, (3, -1)) if "convolutions" in name else parameter.grad
        assert mine[1].abs().sum() > 0, name
        assert mine[0].abs().sum() == mine[2].abs().sum() == 0, name


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_one_agent_of_a_policy_for_all_sees_nothing_of_the_others(model):
    work = VecRL(settled(**SNAKES, model=model))
    policy = session_of(work).parallel.module
    observation = torch.randint(0, 2, (5, 3, 38)).to(torch.int8)
    logits, value = policy(observation)
    for agent in range(3):
        alone, worth = policy(observation[:, agent : agent + 1])
        assert torch.allclose(alone[:, 0], logits[:, agent], atol=1e-6)
        assert torch.allclose(worth[:, 0], value[:, agent], atol=1e-6)


def test_the_flops_of_a_sample_do_not_include_the_rollout():
    work = VecRL(settled(environmentSteps=6 * 8 * 3))
    session = session_of(work)
    work.prepare(session, 4)
    before, _ = work.collector.rollout
    flops = flops_of_sample(work, session, 4)
    assert work.collector.rollout[0] is before, "the step learns from the rollout that was prepared for it"
    forward = sum(2 * size for size in (4 * 8, 8 * 2, 4 * 8, 8 * 1))  # actor and critic, one observation
    observations = 8 // 2  # of one environment in a minibatch
    assert 2 * forward * observations < flops <= 3 * forward * observations
