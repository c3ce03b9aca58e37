"""What a rollout plays, what its samples are worth, and what is counted of it."""

import math
from types import SimpleNamespace

import pytest
import torch
from compiled_code import COMPILED_CODE, share_compiled_code
from hypothesis import given, settings
from hypothesis import strategies as st
from little_rl import SMALL, SNAKES, everything, session_of, settled
from tests.support.trainers.compilers import needs_compiler

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.modes.bench import Measured
from torchyard_trainers.core.workload import Session
from torchyard_trainers.core.world import World
from torchyard_trainers.rl import rollout
from torchyard_trainers.rl.advantages import advantages
from torchyard_trainers.rl.environment import Outcome
from torchyard_trainers.rl.evaluation import Evaluator
from torchyard_trainers.rl.rollout import returns_of
from torchyard_trainers.vecrl import params, speed
from torchyard_trainers.vecrl.policy import Policy
from torchyard_trainers.vecrl.task import VecRL


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


def test_values_of_a_large_rollout_are_computed_in_parts(monkeypatch):
    work = VecRL(settled(**SNAKES))
    session = session_of(work)
    work.prepare(session, 0)
    whole, _ = work.collector.rollout
    monkeypatch.setattr(rollout, "VALUED_AT_ONCE", 6 * 3 * 2)  # two times of six boards of three snakes
    work.prepare(session, 0)
    parts, _ = work.collector.rollout
    assert torch.allclose(whole.target, parts.target, atol=1e-6)


def test_returns_start_at_0_with_each_episode_of_each_agent():
    reward = torch.tensor([[[1.0, 2.0]], [[1.0, 2.0]], [[1.0, 2.0]]])
    ended = torch.tensor([[[False, True]], [[True, False]], [[False, False]]])
    sums, running = returns_of(reward, ended, torch.tensor([[10.0, 20.0]]))
    assert sums[:, 0].tolist() == [[11.0, 22.0], [12.0, 2.0], [1.0, 4.0]]
    assert running.tolist() == [[1.0, 4.0]]


def compiled_and_plain(environment, device):
    """Rollout 0 of one policy, played both ways from the same start, and once more by the compiled one."""
    played = []
    for compiled in (False, True):
        given = SMALL | environment | {"environments": 32}
        work = VecRL(params.resolve_params(given, Parallelism(compile=compiled)))
        session = session_of(work)
        world = World(0, 1, 0, device, grouped=False)
        session = Session(session.parallel, session.precision, world, session.reporter, None)
        for _ in range(1 + compiled):
            work.prepare(session, 0)
            played.append(work.collector.rollout[0])
    return played


def assert_same_rollout(plain, compiled):
    assert torch.equal(plain.trajectory.action, compiled.trajectory.action)
    assert torch.equal(plain.trajectory.terminated, compiled.trajectory.terminated)
    assert torch.allclose(plain.trajectory.observation.float(), compiled.trajectory.observation.float(), atol=1e-5)
    assert torch.allclose(plain.advantage, compiled.advantage, atol=1e-4)


@pytest.mark.e2e
@needs_compiler
@pytest.mark.parametrize("environment", [{"environment": "cartpole"}, SNAKES], ids=["cartpole", "snake"])
def test_a_compiled_rollout_is_the_rollout(environment, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(COMPILED_CODE))
    share_compiled_code()
    plain, compiled, again = compiled_and_plain(environment, torch.device("cpu"))
    assert_same_rollout(plain, compiled)
    assert torch.equal(compiled.advantage, again.advantage)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU: run `pytest tests/trainers` where there is one")
@pytest.mark.parametrize("environment", [{"environment": "cartpole"}, SNAKES], ids=["cartpole", "snake"])
def test_a_rollout_replayed_as_a_graph_is_the_rollout(environment):
    plain, compiled, again = compiled_and_plain(environment, torch.device("cuda"))
    assert_same_rollout(plain, compiled)
    assert torch.equal(compiled.advantage, again.advantage)


def test_an_action_is_drawn_from_the_policys_own_distribution():
    work = VecRL(settled(environments=512, horizon=32))
    session = session_of(work)
    work.prepare(session, 0)
    (path, *_), _ = work.collector.rollout
    expected = path.logits.softmax(-1)[..., 1].mean().item()
    assert (path.action == 1).float().mean().item() == pytest.approx(expected, abs=0.02)


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
            {"left": left},
        )

    def quality(self, episode_return, terminated):
        return episode_return + 10 * terminated


def test_an_evaluation_counts_the_first_episode_of_every_agent_and_no_second_one():
    environment = Countdown()
    policy = Policy(settled(), environment)
    session = session_of(VecRL(settled()))
    played = Evaluator(policy, environment).episodes(session, 5)
    assert played.quality.tolist() == [13.0, 3.0, 13.0, 3.0, 13.0]
    assert played.length.tolist() == [3.0] * 5


class Coin(Countdown):
    """Episodes of two agents that end when they choose action 1; the quality is the number of steps."""

    def reset(self, numbers):
        return {"left": torch.zeros(len(numbers), 2)}

    def step(self, state, actions, numbers):
        over = actions == 1
        return Outcome(state, torch.ones(over.shape), over, torch.zeros_like(over), None)

    def quality(self, episode_return, terminated):
        return episode_return


def test_sampled_episodes_follow_the_probabilities_of_the_policy_in_any_batch_and_greedy_ones_the_most_likely_action():
    policy = SimpleNamespace(logits=lambda seen: torch.tensor([0.75, 0.25]).log().expand(len(seen), 2, 2))
    evaluator, session = Evaluator(policy, Coin()), session_of(VecRL(settled()))
    greedy = evaluator.episodes(session, 40)
    assert greedy.quality.tolist() == greedy.length.tolist() == [9.0] * 40, "never ends by itself"
    sampled = evaluator.episodes(session, 2000, sampled=True)
    assert sampled.quality.tolist() == sampled.length.tolist()
    assert sampled.length.mean().item() == pytest.approx((1 - 0.75**9) / 0.25, abs=0.15)
    assert (sampled.length == 1).double().mean().item() == pytest.approx(0.25, abs=0.04)
    assert torch.equal(evaluator.episodes(session, 2000, at_once=300, sampled=True).length, sampled.length)


def test_metrics_are_of_completed_episodes_and_count_them():
    work = VecRL(settled(environmentSteps=6 * 8 * 4))
    session = session_of(work)
    optimizer = work.optimizer(session.parallel.module)
    returns = []
    for step in range(work.total_steps):
        work.prepare(session, step)
        if step % 4 == 0:
            played, _ = work.collector.rollout
            ended = played.trajectory.terminated | played.trajectory.truncated
            before = work.collector._running.clone()
            sums, _ = returns_of(played.trajectory.reward, ended, before)
            returns.append(sums[ended].tolist())
        work.loss(session, everything(work, step)).loss.backward()
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


def test_a_benchmark_tells_environment_rollout_and_training_apart():
    work = VecRL(settled(environmentSteps=6 * 8 * 3))
    session = session_of(work)
    for step in range(8):
        work.prepare(session, step)
        work.loss(session, everything(work, step))
        work.after_step(session, step + 1, {})
    assert isinstance(work, Measured)
    found = work.measure(session)
    # A rollout contains the environment's steps, and training contains the rollout.
    assert found["environmentOnlyStepsPerSecond"] > found["rolloutStepsPerSecond"] > 0
    assert found["envStepsPerSecond"] > 0


def test_a_rank_without_an_environment_takes_part_in_a_benchmark():
    settings = settled(environments=1, horizon=2)
    session = session_of(VecRL(settings))
    idle = World(2, 3, 2, torch.device("cpu"), grouped=False)
    beside = Session(session.parallel, session.precision, idle, session.reporter, None)
    work = VecRL(settings)
    work.build()
    assert speed.speeds(work.collector, beside, settings)["environmentOnlyStepsPerSecond"] == 0


def test_a_rollout_that_a_fault_of_the_machine_broke_is_played_again_after_a_rollback(monkeypatch):
    work = VecRL(settled())
    session = session_of(work)
    sound = work.collector.play(session, 0)
    advantage, facts = sound.rollout.advantage * math.nan, sound.rollout.facts * math.nan
    broken = sound._replace(rollout=sound.rollout._replace(advantage=advantage, facts=facts))
    played = iter([broken, sound])
    monkeypatch.setattr(work.collector, "play", lambda *_: next(played))
    work.prepare(session, 0)
    assert work.loss(session, everything(work)).loss.isnan()
    # As a rollback to where the rollout began leaves it: all that a checkpoint holds is what it was.
    work.prepare(session, 0)
    assert work.loss(session, everything(work)).loss.isfinite()
