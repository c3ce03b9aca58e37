"""Environments that are not ours: classes of a user's, and those of gymnasium, whose state cannot be read."""

import pytest
import torch
from little_rl import settled
from tests.trainers.test_vecrl_equality import LEARNED, settings

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.rl import gym
from torchyard_trainers.rl.rollout import gather_rows
from torchyard_trainers.vecrl.environments import build_environment
from torchyard_trainers.vecrl.task import VecRL

CPU = torch.device("cpu")
HILL = {"environment": "outside_worlds:Hill", "maxEpisodeSteps": 9}
EACH = pytest.mark.parametrize("given", [{"environment": "CartPole-v1"}, HILL], ids=["CartPole-v1", "Hill"])


def opened(given):
    return build_environment(settled(**given), CPU)


def played(environment, state, first, last, rows=slice(None)):
    """Steps `first` to `last` with actions and numbers that follow from the step."""
    found = []
    for step in range(first, last):
        draw = torch.Generator().manual_seed(step)
        actions = torch.randint(environment.actions, (6, 1), generator=draw)
        outcome = environment.step(state, actions[rows], torch.rand(6, 1, generator=draw)[rows])
        found.append(outcome)
        state = outcome.state
    return found


@EACH
@pytest.mark.parametrize("rows", [slice(None), slice(1, None, 2)], ids=["all", "half"])
def test_a_state_is_enough_to_go_on_with_the_same_bits_in_another_process_and_at_another_world_size(
    given, rows, monkeypatch
):
    monkeypatch.setattr(gym, "_RECENT", 1)
    environment = opened(given)
    start = environment.reset(torch.rand(6, 1, generator=torch.Generator().manual_seed(1)))
    whole = played(environment, start, 0, 45)
    assert any(each.terminated.any() for each in whole)
    assert given is not HILL or any(each.truncated.any() for each in whole)
    assert len({each.data_ptr() for each in start.values()}) == len(start), "a restore fills each in place"
    middle = {name: each.clone()[rows] for name, each in whole[19].state.items()}
    assert (middle["steps"] > 1).any(), "episodes go on where they were"
    again = played(opened(given), middle, 20, 45, rows)
    for found, expected in zip(again, whole[20:], strict=True):
        for name, each in found.state.items():
            assert torch.equal(each, expected.state[name][rows]), name
        assert torch.equal(found.final["observation"], expected.final["observation"][rows])
        assert all(torch.equal(one, other[rows]) for one, other in zip(found[1:4], expected[1:4], strict=True))


@pytest.mark.parametrize("name", ["CartPole-v1", "outside_worlds:made_by_a_function"])
def test_what_is_seen_rewarded_and_over_is_what_gymnasium_says(name):
    import gymnasium

    environment, theirs = opened({"environment": name}), gymnasium.make("CartPole-v1")
    assert environment.limit == 500
    state = environment.reset(torch.rand(6, 1, generator=torch.Generator().manual_seed(1)))
    seen, _ = theirs.reset(seed=int(state["seed"][2]))
    assert environment.observe(state)[2, 0].tolist() == seen.tolist()
    over = False
    for step, outcome in enumerate(played(environment, state, 0, 60)):
        draw = torch.Generator().manual_seed(step)
        seen, reward, over, _, _ = theirs.step(int(torch.randint(2, (6, 1), generator=draw)[2]))
        assert environment.observe(outcome.final)[2, 0].tolist() == seen.tolist()
        assert (outcome.reward[2, 0], outcome.terminated[2, 0]) == (reward, over)
        if over:
            fresh, _ = theirs.reset(seed=int(outcome.state["seed"][2]))
            assert environment.observe(outcome.state)[2, 0].tolist() == fresh.tolist()
            break
    assert over


@pytest.mark.parametrize("name", ["Levers", "Switches"])
def test_several_choices_in_a_step_are_one_action_of_all_their_combinations(name):
    environment = opened({"environment": f"outside_worlds:{name}", "maxEpisodeSteps": 9})
    assert environment.actions == 8
    numbers = torch.zeros(8, 1)
    outcome = environment.step(environment.reset(numbers), torch.arange(8)[:, None], numbers)
    choices = environment.observe(outcome.final)[:, 0]
    assert len({tuple(each) for each in choices.tolist()}) == 8
    assert choices[5].tolist() == ([0, 1, 2] if name == "Levers" else [1, 0, 1]), "as numpy.unravel_index numbers them"


def test_a_step_copies_no_more_of_an_episode_when_it_may_be_long():
    environment = opened(HILL | {"maxEpisodeSteps": 100_000})
    state = environment.reset(torch.rand(6, 1))
    for outcome in played(environment, state, 0, 40):
        assert outcome.state["actions"] is state["actions"]
        assert outcome.state["recent"].shape == (6, 256)


@pytest.mark.parametrize(
    ("world", "message"),
    [
        ("Forgetful", "does not show the same again after reset.* keep nothing over a reset. In place of the wrap"),
        ("rewards_by_what_was_before", "does not give the same rewards again after .* set trainer.params.normalizeRew"),
    ],
)
def test_an_environment_that_does_not_repeat_itself_is_named(world, message):
    given = HILL | {"environment": f"outside_worlds:{world}"}
    with pytest.raises(ConfigError, match=message):
        opened(given).reset(torch.rand(6, 1))


def test_an_episode_that_is_brought_back_with_other_rewards_is_named():
    given = HILL | {"environment": "outside_worlds:Souvenir"}
    environment = opened(given)
    state = played(environment, environment.reset(torch.rand(6, 1)), 0, 5)[-1].state
    assert (state["steps"] > 0).any()
    with pytest.raises(ConfigError, match="does not give the same rewards again after reset"):
        played(opened(given), state, 5, 6)


def test_of_several_observations_those_that_are_not_numbers_are_left_out(capsys):
    environment = opened(HILL | {"environment": "outside_worlds:Told"})
    shown = environment.observe(environment.reset(torch.rand(2, 1)))[0, 0]
    assert shown.tolist() == [7] * 12 + [0, 0, 1, 0]
    assert "the policy sees image, side of the observations, and not mission, which is" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("world", "message"),
    [
        (
            "Wide",
            r"'outside_worlds:Wide' returned an observation of shape \[2\], but its observation_space has 1 number",
        ),
        ("Blind", "'outside_worlds:Blind' returned an observation with nan, from which nothing can be learned"),
        ("Priceless", "'outside_worlds:Priceless' returned a reward with nan, from which nothing can be learned"),
        (
            "Closed",
            r"'outside_worlds:Closed': reset\(seed=...\) raised OSError: no map \(outside_worlds.py, line .*; corr",
        ),
        ("Ancient", r"'outside_worlds:Ancient': reset returned ndarray, not a pair; correct it: reset\(seed=...\) ret"),
        ("Wordy", r"'outside_worlds:Wordy': reading an observation as numbers raised ValueError: could not convert"),
        (
            "Leaving",
            r"'outside_worlds:Leaving': step\(action\) raised SystemExit: 0 \(outside_worlds.py, line .*; corr",
        ),
        (
            "Growing",
            r"'outside_worlds:Growing' returned an observation of shape \[2\], but its observation_sp",
        ),
        ("Shorter", r"'outside_worlds:Shorter': step\(action\) raised ValueError: not enough values to unpack"),
    ],
)
def test_what_an_environment_may_not_return_is_named(world, message):
    made = opened(HILL | {"environment": f"outside_worlds:{world}"})

    def begin():
        played(made, made.reset(torch.rand(6, 1)), 0, 1)

    with pytest.raises(ConfigError, match=message) as caught:
        begin()
    assert caught.value.code == 64


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"environment": "CartPol-v1"},
            "trainer.params.environment: 'CartPol-v1': Environment `CartPol` doesn't exist",
        ),
        ({"environment": "CartPole-v7"}, "trainer.params.environment: 'CartPole-v7': Environment version `v7` for"),
        ({"environment": "nowhere:Thing-v0"}, "trainer.params.environment: 'nowhere:Thing-v0': No module named"),
        (HILL | {"environment": "outside_worlds:Tuned"}, "has actions Tuple("),
        (HILL | {"environment": "outside_worlds:Boundless", "actionBounds": "rescale"}, "(1,), float32); use clip"),
        (
            HILL | {"actionBounds": "rescale"},
            "trainer.params.actionBounds: rescale, but trainer.params.environment: 'o",
        ),
        (
            {"environment": "outside_worlds:Corridor", "frameStack": 2},
            "trainer.params.frameStack: 2, but outside_worlds",
        ),
        (
            {"environment": "Pendulum-v1", "model": "nature"},
            "trainer.params.model: a CNN sees pictures [height, width]",
        ),
        (
            HILL | {"environment": "outside_worlds:Catch", "model": "nature"},
            "nature needs pictures of at least 36 x 36",
        ),
        ({"environment": "nowhere:Thing"}, "there is no module 'nowhere'; set workingDir to its folder"),
        ({"environment": "outside_worlds:Thing"}, "but outside_worlds has no class Thing"),
        ({"environment": "outside_worlds:made_of_many"}, "is a VectorEnv of gymnasium; name the class of a single"),
        ({"environment": "outside_worlds:Many"}, "is a VectorEnv of gymnasium; name the class of a single environment"),
        ({"environment": "outside_worlds:Hill"}, "has no steps after which an episode is cut off; set trainer.params."),
        (
            HILL | {"environment": "outside_worlds:OnlyTold"},
            "of which no part is numbers; wrap it so that they are a Box",
        ),
        (HILL | {"environment": "outside_worlds:Endless"}, "which cannot be flattened; wrap it so that"),
        (
            HILL | {"environment": "outside_worlds:Configured"},
            "'outside_worlds:Configured': making it raised TypeError: Configured.__init__() missing 1 required",
        ),
        (
            HILL | {"environment": "outside_worlds:Hidden"},
            "making it raised RuntimeError: no display (outside_",
        ),
        (HILL | {"environment": "outside_worlds:Vast"}, "has 1000000000 actions; use at most 65536"),
        ({"environment": "outside_worlds:Torn"}, "step of 2 copies raised KeyError: 'arm' (outside_worlds.py, line"),
        (
            {"environment": "outside_worlds:Unfinished"},
            "lacks actions, observed, planes, draws, limit, measure, observe",
        ),
        ({"environment": "outside_worlds:Shapeless"}, "observe returns a tensor of shape [2, 5], expected [N, agents,"),
        ({"environment": "outside_worlds:Corridor", "maxEpisodeSteps": 3}, "has a limit of its own; remove it"),
        ({"environment": "outside_worlds:Corridor", "model": "cnn"}, "trainer.params.model: cnn sees pictures, and"),
        (
            {"environment": "CartPole-v1", "policies": "independent"},
            "trainer.params.policies: independent needs several",
        ),
        (
            {"environment": "cartpole", "maxEpisodeSteps": 3},
            "trainer.params.maxEpisodeSteps: 3, but cartpole has a limit",
        ),
        ({"environment": "CartPole-v1", "grid": 8}, "trainer.params.grid: is of environment snake, not CartPole-v1"),
    ],
)
def test_a_mistake_is_named_with_its_fix(given, message):
    with pytest.raises(ConfigError) as caught:
        VecRL(settled(**given)).build()
    assert message in str(caught.value)
    assert caught.value.code == 64


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16, torch.int16, torch.bool])
def test_rows_of_every_type_reach_all_ranks_bit_by_bit(kind):
    class Second:
        """The second of two ranks, which has every second row; the first one has nothing but zeros."""

        size, rank = 2, 1

        def total(self, own):
            return own

    rows = torch.tensor([[0.1, -3.0], [1e-3, 7.0], [-0.7, 0.0]]).to(kind)
    whole = gather_rows(rows[1::2], Second(), 3)
    assert whole.dtype == kind
    assert torch.equal(whole[1::2], rows[1::2])
    assert not whole[::2].any()


@pytest.mark.e2e
def test_gymnasium_learns_the_same_with_two_processes_and_when_it_is_stopped_between(yard, calm):
    given = {"environment": "CartPole-v1", "normalizeObservations": True, "normalizeRewards": True}
    calm.train(settings(params=given))
    assert {"evalReturn", "episodeReturn"} <= set(calm.metrics()[-1])
    yard.train(settings(1, params=given))
    yard.train(settings(params=given, parallelism={"strategy": "ddp", "microBatchSize": 3}), world=2)
    yard.assert_learned(calm.metrics(), LEARNED, rel=1e-4)


@pytest.mark.e2e
def test_an_environment_of_the_users_is_learned_by_two_processes(yard):
    given = {
        "environment": "outside_worlds:Corridor",
        "policies": "independent",
        "lr": 0.03,
        "width": 16,
        "evalEvery": 24,
    }
    yard.train(settings(24, params=given, parallelism={"strategy": "ddp"}), 2)
    metrics = yard.report()["metrics"]
    assert metrics["evalUntrained"] < 0.9
    assert metrics["arrivals"] == 1
