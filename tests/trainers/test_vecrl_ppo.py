"""PPO's parts against brute force, and what a rollout hands to them."""

import math
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.flops import flops_of_sample
from torchyard_trainers.core.modes.bench import Measured
from torchyard_trainers.core.parallel import Parallel
from torchyard_trainers.core.precision import Precision
from torchyard_trainers.core.report import Reporter
from torchyard_trainers.core.workload import MicroBatch, Session
from torchyard_trainers.core.world import World
from torchyard_trainers.vecrl import params, rollout
from torchyard_trainers.vecrl.advantages import advantages
from torchyard_trainers.vecrl.environment import Outcome
from torchyard_trainers.vecrl.evaluation import qualities
from torchyard_trainers.vecrl.policy import Policy
from torchyard_trainers.vecrl.ppo import Minibatch, losses
from torchyard_trainers.vecrl.rollout import returns_of
from torchyard_trainers.vecrl.task import VecRL

ALONE = World(0, 1, 0, torch.device("cpu"), grouped=False)
SMALL = {"environments": 6, "horizon": 8, "epochs": 2, "minibatches": 2, "width": 8, "layers": 1, "evalEpisodes": 4}
SNAKES = {"environment": "snake", "grid": 6, "agents": 3, "food": 3, "view": 3}


def settled(**given):
    return params.settle(SMALL | given, Parallelism())


def session_of(work: VecRL) -> Session:
    model = work.build()
    precision = Precision("fp32", ALONE.device, sharded=False)
    return Session(
        Parallel("single", model, model), precision, ALONE, Reporter(None, rank=0, local_rank=0, round_number=0), None
    )


def everything(work):
    return MicroBatch(torch.arange(work.global_batch), torch.ones(work.global_batch))


def brute_force(reward, value, following, terminated, truncated, *, gamma, decay):
    """The definition (Schulman 2015, equation 16): a sum of discounted deltas up to the end of the episode."""
    found = torch.zeros_like(reward)
    for time in range(len(reward)):
        weight, total = 1.0, 0.0
        for later in range(time, len(reward)):
            future = 0.0 if terminated[later] else float(following[later])
            total += weight * (float(reward[later]) + gamma * future - float(value[later]))
            if terminated[later] or truncated[later]:
                break
            weight *= gamma * decay
        found[time] = total
    return found


@given(seed=st.integers(0, 10_000), gamma=st.floats(0, 1), decay=st.floats(0, 1))
@settings(max_examples=50)
def test_advantages_are_brute_force_for_each_agent_of_each_environment(seed, gamma, decay):
    generator = torch.Generator().manual_seed(seed)
    shape = (7, 2, 3)
    reward, value, following = torch.randn(3, *shape, generator=generator).unbind()
    terminated = torch.rand(shape, generator=generator) < 0.2
    truncated = (torch.rand(shape, generator=generator) < 0.2) & ~terminated
    found = advantages(reward, value, following, terminated, truncated, gamma=gamma, decay=decay)
    for copy in range(2):
        for agent in range(3):
            one = (slice(None), copy, agent)
            rows = [tensor[one] for tensor in (reward, value, following, terminated, truncated)]
            expected = brute_force(*rows, gamma=gamma, decay=decay)
            assert torch.allclose(found[one], expected, atol=1e-4)


def test_what_comes_after_a_termination_is_worth_nothing_and_after_a_truncation_its_value():
    shape = (1, 1, 1)
    one, zero = torch.ones(shape), torch.zeros(shape)
    yes, no = torch.ones(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)

    def worth(terminated, truncated):
        return advantages(one, zero, 10 * one, terminated, truncated, gamma=0.5, decay=1.0).item()

    assert worth(yes, no) == 1.0
    assert worth(no, yes) == worth(no, no) == 6.0


def test_a_rollout_too_large_to_be_valued_at_once_is_valued_in_parts(monkeypatch):
    work = VecRL(settled(**SNAKES))
    session = session_of(work)
    whole, _ = work.collector.rollout(session, 0)
    monkeypatch.setattr(rollout, "VALUED_AT_ONCE", 6 * 3 * 2)  # two times of six boards of three snakes
    work.collector._collected = None
    parts, _ = work.collector.rollout(session, 0)
    assert torch.allclose(whole.target, parts.target, atol=1e-6)


def test_returns_start_anew_with_each_episode_of_each_agent():
    reward = torch.tensor([[[1.0, 2.0]], [[1.0, 2.0]], [[1.0, 2.0]]])
    ended = torch.tensor([[[False, True]], [[True, False]], [[False, False]]])
    sums, running = returns_of(reward, ended, torch.tensor([[10.0, 20.0]]))
    assert sums[:, 0].tolist() == [[11.0, 22.0], [12.0, 2.0], [1.0, 4.0]]
    assert running.tolist() == [[1.0, 4.0]]


@pytest.mark.parametrize("environment", [{"environment": "cartpole"}, SNAKES], ids=["cartpole", "snake"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_at_the_first_minibatch_the_policy_is_the_one_that_acted(environment, precision):
    work = VecRL(settled(**environment, environments=64))
    session = session_of(work)
    session = Session(
        session.parallel, Precision(precision, ALONE.device, sharded=False), ALONE, session.reporter, None
    )
    with session.precision.forward():
        minibatch = work._minibatch(session, torch.arange(64))
        logits, _ = session.parallel.forward(minibatch.observation.flatten(0, 1))
    chosen = logits.log_softmax(-1).gather(-1, minibatch.action.flatten(0, 1)[..., None])[..., 0]
    ratio = (chosen - minibatch.log_probability.flatten(0, 1)).exp()
    assert (ratio - 1).abs().max() < 1e-3
    assert work.loss(session, everything(work)).statistics["clipFraction"].item() == 0


def compiled_and_plain(environment, device):
    """Rollout 0 of one policy, played both ways from the same start, and once more by the compiled one."""
    played = []
    for compiled in (False, True):
        given = SMALL | environment | {"environments": 32}
        work = VecRL(params.settle(given, Parallelism(compile=compiled)))
        session = session_of(work)
        world = World(0, 1, 0, device, grouped=False)
        session = Session(session.parallel, session.precision, world, session.reporter, None)
        for _ in range(1 + compiled):
            work.collector._collected = None
            played.append(work.collector.rollout(session, 0)[0])
    return played


def assert_same_rollout(plain, compiled):
    assert torch.equal(plain.path.action, compiled.path.action)
    assert torch.equal(plain.path.terminated, compiled.path.terminated)
    assert torch.allclose(plain.path.observation.float(), compiled.path.observation.float(), atol=1e-5)
    assert torch.allclose(plain.advantage, compiled.advantage, atol=1e-4)


@pytest.mark.e2e
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here: install g++ to compile on a CPU")
@pytest.mark.parametrize("environment", [{"environment": "cartpole"}, SNAKES], ids=["cartpole", "snake"])
def test_a_compiled_rollout_is_the_rollout(environment):
    plain, compiled, again = compiled_and_plain(environment, torch.device("cpu"))
    assert_same_rollout(plain, compiled)
    assert torch.equal(compiled.advantage, again.advantage)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here: a CUDA graph needs one")
@pytest.mark.parametrize("environment", [{"environment": "cartpole"}, SNAKES], ids=["cartpole", "snake"])
def test_a_rollout_replayed_as_a_graph_is_the_rollout(environment):
    plain, compiled, again = compiled_and_plain(environment, torch.device("cuda"))
    assert_same_rollout(plain, compiled)
    assert torch.equal(compiled.advantage, again.advantage)


def test_an_action_is_drawn_from_the_policys_own_distribution():
    work = VecRL(settled(environments=512, horizon=32))
    session = session_of(work)
    (path, *_), _ = work.collector.rollout(session, 0)
    expected = path.logits.softmax(-1)[..., 1].mean().item()
    assert (path.action == 1).float().mean().item() == pytest.approx(expected, abs=0.02)


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
    (path, *_), _ = work.collector.rollout(session, 0)
    epochs = []
    for epoch in range(2):
        seen = []
        for part in range(2):
            work._done.fill_(epoch * 2 + part)
            seen.append(work._minibatch(session, torch.arange(6)).observation)
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
    found = []
    for part in range(2):
        work._done.fill_(part)
        found.append(work._minibatch(session, torch.arange(6)).advantage)
    everywhere = torch.cat(found, 1)
    assert everywhere.mean().item() == pytest.approx(0, abs=1e-5)
    assert everywhere.std(correction=0).item() == pytest.approx(1, abs=1e-4)


class Countdown:
    """Episodes of 3 steps with reward 1, the first agent's terminated and the second's truncated."""

    agents, actions, observed, planes, draws, limit, measure = 2, 2, 1, None, 1, 9, "evalReturn"

    def reset(self, numbers):
        return {"left": torch.full((len(numbers), 2), 3)}

    def observe(self, state):
        return state["left"][..., None].float()

    def step(self, state, actions, numbers):
        left = state["left"] - 1
        over = left == 0
        first = torch.tensor([True, False])
        return Outcome(
            {"left": torch.where(over, 3, left)},
            torch.ones(left.shape),
            over & first,
            over & ~first,
            left[..., None].float(),
        )

    def quality(self, episode_return, terminated):
        return episode_return + 10 * terminated


def test_an_evaluation_counts_the_first_episode_of_every_agent_and_no_second_one():
    environment = Countdown()
    policy = Policy(settled(), environment)
    assert qualities(policy, environment, ALONE, 5).tolist() == [13.0, 3.0, 13.0, 3.0, 13.0]


def test_metrics_are_of_completed_episodes_and_count_them():
    work = VecRL(settled(environmentSteps=6 * 8 * 4))
    session = session_of(work)
    optimizer = work.optimizer(session.parallel.module.parameters())
    returns = []
    for step in range(work.total_steps):
        if step % 4 == 0:
            played, _ = work.collector.rollout(session, step // 4)
            ended = played.path.terminated | played.path.truncated
            before = work.collector._running.clone()
            sums, _ = returns_of(played.path.reward, ended, before)
            returns.append(sums[ended].tolist())
        work.loss(session, everything(work)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        told = work.after_step(session, step + 1, {})
        if (step + 1) % 4:
            assert told == {}
            continue
        assert told["rolloutEpisodes"] == len(returns[-1])
        assert told["episodes"] == sum(map(len, returns))
        if returns[-1]:
            assert told["episodeReturn"] == pytest.approx(sum(returns[-1]) / len(returns[-1]))
        else:
            assert "episodeReturn" not in told
    assert sum(map(len, returns)) > 3


@pytest.mark.parametrize("given", [{}, {"model": "cnn"}], ids=["mlp", "cnn"])
def test_independent_agents_learn_from_their_own_samples_only(given):
    work = VecRL(settled(**SNAKES, policies="independent", **given))
    session = session_of(work)
    policy = session.parallel.module
    observation = work._minibatch(session, torch.arange(6)).observation.flatten(0, 1)
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


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"grid": 8}, "trainer.params.grid: is of environment snake, not cartpole; remove it"),
        ({"horizon": 7}, "trainer.params.horizon: 7 is no multiple of minibatches (2)"),
        ({"model": "cnn"}, "trainer.params.model: cnn sees a grid, and cartpole has none; use mlp"),
        ({"policies": "independent"}, "trainer.params.policies: independent needs several agents, and there is 1"),
        ({**SNAKES, "view": 9}, "trainer.params.view: 9 is wider than grid (6)"),
        ({**SNAKES, "agents": 8}, "trainer.params.grid: 6 x 6 cells are too few for 8 snakes and 3 pieces of food"),
        ({"environment": "pong"}, "trainer.params.environment: invalid enum value 'pong'"),
        ({"lr": 0}, "trainer.params.lr: expected `float` > 0.0 (is 0)"),
        ({"enviroment": "snake"}, "unknown field `enviroment`"),
    ],
)
def test_a_mistake_is_named(given, message):
    with pytest.raises(ConfigError) as caught:
        settled(**given)
    assert message in str(caught.value)


@pytest.mark.parametrize("preset", params.PRESETS)
@pytest.mark.parametrize("environment", ["cartpole", "snake", "bandit"])
def test_every_preset_is_complete_and_builds(preset, environment):
    work = VecRL(params.settle({"preset": preset, "environment": environment}, Parallelism()))
    assert work.total_steps == work.settings.rollouts * work.settings.epochs * work.settings.minibatches
    assert work.settings.rollouts * work.global_batch * work.settings.horizon >= work.settings.environment_steps


def test_the_global_batch_is_the_number_of_environments():
    given = {"environments": 8}
    assert params.settle(given, Parallelism(global_batch_size=32)).environments == 32


def test_a_benchmark_tells_environment_rollout_and_training_apart():
    work = VecRL(settled(environmentSteps=6 * 8 * 3))
    session = session_of(work)
    for step in range(8):
        work.loss(session, everything(work))
        work.after_step(session, step + 1, {})
    assert isinstance(work, Measured)
    found = work.measure(session)
    # A rollout contains the environment's steps, and training contains the rollout.
    assert found["environmentOnlyStepsPerSecond"] > found["rolloutStepsPerSecond"] > 0
    assert found["envStepsPerSecond"] > 0


def test_what_a_rollout_computes_is_not_counted_as_one_samples_work():
    work = VecRL(settled())
    flops = flops_of_sample(work, session_of(work))
    forward = sum(2 * size for size in (4 * 8, 8 * 2, 4 * 8, 8 * 1))  # actor and critic, one observation
    observations = 8 // 2  # of one environment in a minibatch
    assert 2 * forward * observations < flops <= 3 * forward * observations
