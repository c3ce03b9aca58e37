"""Running normalisation is that of gymnasium, has the same bits for every number of processes, and is exported."""

import numpy as np
import pytest
import torch
from little_rl import session_of, settled

from torchyard_trainers.core.world import World
from torchyard_trainers.rl.normalization import Moments, Normalization, discounted, scaled, sums_of
from torchyard_trainers.vecrl.cartpole import CartPole
from torchyard_trainers.vecrl.task import VecRL

ALONE = World(0, 1, 0, torch.device("cpu"), grouped=False, local_size=1)
BOTH = {"normalizeObservations": True, "normalizeRewards": True}


def test_statistics_are_those_of_all_vectors_that_came():
    moments, seen = Moments(3), []
    for number in range(4):
        draw = torch.Generator().manual_seed(number)
        values = 1e4 + number * 10 + torch.randn(5, 6, 2, 3, generator=draw) * torch.tensor([1.0, 3.0, 0.1])
        moments.merge(sums_of(values, moments.mean), ALONE, 6, 5 * 2)
        seen.append(values.double().reshape(-1, 3).numpy())
    every = np.concatenate(seen)
    assert moments.count.item() == len(every)
    assert moments.mean.tolist() == pytest.approx(every.mean(0).tolist(), rel=1e-12)
    assert moments.variance.tolist() == pytest.approx(every.var(0).tolist(), rel=1e-6)


def test_sums_of_an_environment_do_not_depend_on_the_environments_beside_it():
    values = torch.randn(33, 7, 2, 5, generator=torch.Generator().manual_seed(1))
    about = torch.full((5,), 0.3, dtype=torch.float64)
    whole = sums_of(values, about)
    for rows in (slice(0, 1), slice(1, None, 3), slice(2, None, 2)):
        assert torch.equal(sums_of(values[:, rows], about), whole[rows])


def test_rewards_are_scaled_as_gymnasium_scales_them():
    from gymnasium.wrappers.utils import RunningMeanStd

    draw = torch.Generator().manual_seed(2)
    reward = 7 * torch.rand(400, 8, 1, generator=draw)
    terminated = torch.rand(400, 8, 1, generator=draw) < 0.05
    theirs, running = RunningMeanStd(shape=()), np.zeros(8)
    for now, over in zip(reward[..., 0].numpy(), terminated[..., 0].numpy(), strict=True):
        running = running * 0.9 * (1 - over) + now  # line for line as NormalizeReward
        theirs.update(running)
    sums, unfinished = discounted(reward, terminated, torch.zeros(8, 1, dtype=torch.float64), 0.9)
    moments = Moments(1)
    moments.merge(sums_of(sums, moments.mean), ALONE, 8, 400)
    assert unfinished[:, 0].tolist() == pytest.approx(running.tolist())
    found = scaled(reward, moments.deviation())
    assert found.flatten().tolist() == pytest.approx((reward / np.sqrt(theirs.var + 1e-8)).flatten().tolist(), rel=1e-4)
    assert scaled(torch.tensor([1e9]), moments.deviation()).item() == 10


def played(rollouts=2, **given):
    work = VecRL(settled(**given))
    session = session_of(work)
    for number in range(rollouts):
        work.prepare(session, number * work.settings.steps_per_rollout)
        rollout, _ = work.collector.rollout
        facts = work.collector.finish(session)
    return work, session, rollout, facts


def test_what_is_learned_does_not_depend_on_the_unit_of_rewards(monkeypatch):
    _, _, expected, facts = played(**BOTH)
    step = CartPole.step
    monkeypatch.setattr(CartPole, "step", lambda *given: (found := step(*given))._replace(reward=found.reward * 1000))
    _, _, rollout, in_thousands = played(**BOTH)
    assert torch.allclose(rollout.advantage, expected.advantage, atol=1e-4)
    assert in_thousands["return"] == pytest.approx(1000 * facts["return"]), "metrics are of the environment's rewards"
    assert not torch.allclose(played()[2].advantage, expected.advantage, atol=0.1)


def test_an_evaluation_sees_observations_as_the_policy_was_trained_with_and_changes_no_statistics():
    work, session, rollout, _ = played(**BOTH)
    state = work.state()
    before = {name: each.clone() for name, each in state["observations"].items()}
    assert before["count"] == 3 * 8 * len(rollout.trajectory.observation) * len(rollout.running) / 8
    work.evaluate(session)
    module = session.parallel.module
    for policy in (module, work._evaluator.policy):
        layers = [each for each in policy.modules() if isinstance(each, Normalization)]
        assert len(layers) == 2, "of actor and critic"
        for layer in layers:
            assert torch.equal(layer.shift, before["mean"].float())
            assert layer.scale.tolist() == pytest.approx((before["variance"] + 1e-8).rsqrt().tolist(), rel=1e-6)
    assert all(torch.equal(each, before[name]) for name, each in work.state()["observations"].items())
    seen = rollout.trajectory.observation[-1]
    plain = torch.nn.Sequential(*list(module.actor)[1:])
    normal = ((seen - before["mean"]) / (before["variance"] + 1e-8).sqrt()).clamp(-10, 10).float()
    assert torch.allclose(module.logits(seen), plain(normal), atol=1e-5)
