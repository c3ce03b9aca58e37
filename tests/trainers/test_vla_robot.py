"""Closed-loop episodes in environments of gymnasium: what a policy sees, what counts, and the same again for a seed."""

import importlib
import json
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict
from tests.support.trainers.gangs import AT_ONCE, Yard
from tests.support.trainers.lerobot import write_lerobot

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.vla.evaluation import FIRST_SEED
from torchyard_trainers.vla.params import resolve_params
from torchyard_trainers.vla.robot import Episode
from torchyard_trainers.vla.task import VisionLanguageAction

EXAMPLES = Path(__file__).parents[2] / "examples"
OURS = {"environment": "own_robot:Reach", "maxEpisodeSteps": 20}


@pytest.fixture(scope="module", autouse=True)
def examples():
    sys.path.insert(0, str(EXAMPLES))
    yield importlib.import_module("own_robot")
    sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="module")
def recordings(tmp_path_factory, examples):
    folder = tmp_path_factory.mktemp("robot") / "recordings"
    sys.argv, before = ["own_dataset.py", str(folder)], sys.argv
    try:
        importlib.import_module("own_dataset")
    finally:
        sys.argv = before
    return folder


def workload(data, **params):
    return VisionLanguageAction(resolve_params({"data": str(data)} | params, Parallelism()))


class TwoCameras(gymnasium.Env):
    """A robot with two cameras, of which one is twice as high as it is wide; it says nothing about success."""

    observation_space = Dict(
        {
            "pixels": Dict({name: Box(0, 255, (8, 4, 3), np.uint8) for name in ("camera1", "camera0", "other")}),
            "agent_pos": Box(-1, 1, (2,), np.float64),
        }
    )
    action_space = Box(np.float32(-0.5), np.float32(0.5), (1,), np.float32)

    def __init__(self, success=None, bad=None):
        self.success, self.bad, self.actions = success, bad, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        return self.see(), {}

    def step(self, action):
        self.actions.append(float(action[0]))
        return self.see(), 1.0, False, False, {"success": self.success} if self.success is not None else {}

    def see(self):
        shades = {
            name: np.full((8, 4, 3), shade, np.uint8) for shade, name in enumerate(("camera1", "camera0", "other"), 1)
        }
        return {"pixels": shades, "agent_pos": np.array([0.5, np.nan if self.bad else -0.5])}


HERE = f"{__name__}:TwoCameras"


def test_an_expert_succeeds_in_every_episode_of_the_example_and_an_idle_robot_in_none(recordings):
    robot = workload(recordings, **OURS).robot
    for seed in range(FIRST_SEED, FIRST_SEED + 5):
        env = robot.make()
        episode = Episode(robot, env, seed)
        while not episode.over:
            episode.step(env.unwrapped.expert())
        assert episode.end() == (True, 1.0, 1.0)
        idle = Episode(robot, env, seed)
        while not idle.over:
            idle.step(np.zeros(2, np.float32))
        assert len(idle.history) == 21
        assert idle.end() == (False, 0.0, 0.0)


def test_a_policy_sees_in_an_episode_what_it_saw_in_the_recording_of_it(recordings):
    work = workload(recordings, **OURS, holdOut=0.5)
    batch = work.source.read([0])  # the first frame of the first episode, whose seed is 0
    view = Episode(work.robot, work.robot.make(), 0).view()
    np.testing.assert_array_equal(view.images, batch.images[0])
    np.testing.assert_array_equal(view.state, batch.state[0])
    assert work.robot.task == "reach the red disc"


def test_cameras_are_named_as_in_lerobot_images_are_earlier_ones_and_actions_stay_in_their_space(tmp_path):
    data = write_lerobot(tmp_path / "data", "v3.0", [5, 5], cameras=2)
    given = {"environment": HERE, "maxEpisodeSteps": 3, "instruction": "move left", "imageDeltas": [-0.1, 0]}
    robot = workload(data, **given, environmentOptions={"success": True}).robot
    env = robot.make()
    episode = Episode(robot, env, 0)
    images = episode.view().images
    assert images.shape == (4, 42, 42, 3)
    assert [int(each[21, 21, 0]) for each in images] == [2, 2, 1, 1], "camera0 before camera1, as in the dataset"
    assert images[0, :, :9].max() == 0, "proportions are kept"
    for _ in range(3):
        episode.step(np.array([7.0], np.float32))
    assert episode.end() == (True, 3.0, 1.0)
    assert env.actions == [0.5] * 3
    silent = Episode(workload(data, **given).robot, TwoCameras(), 0)
    for _ in range(2):
        silent.step(np.zeros(1, np.float32))
    with pytest.raises(ConfigError, match=r"the info of the last step has nothing, and not is_success; set it in step"):
        silent.step(np.zeros(1, np.float32))
    with pytest.raises(ConfigError, match=r"returned agent_pos \[0.5, nan\]; numbers must be finite"):
        Episode(robot, TwoCameras(bad=True), 0).view()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"environment": "no_such_package/Push-v0"}, "install the package that registers it"),
        ({"environment": "CartPole-v1", "instruction": "move left"}, "expected a Dict with pixels"),
        ({"environment": "own_robot:Reach"}, "there are several tasks of the data; use one of 'move left', 'move to"),
        ({"environment": "own_robot:Reach", "instruction": "x"}, "'x' is no task of the data; use one of 'move left'"),
        ({"environment": "own_robot:Push"}, "own_robot has no class Push"),
        ({"environment": "own_robot:Reach", "instruction": "move left"}, "but those of the recordings have 1 parts"),
        ({"environment": HERE, "instruction": "move left"}, "set trainer.params.cameras to those of both"),
        (
            {"environment": HERE, "environmentOptions": {"sucess": 1}, "instruction": "move left"},
            "unexpected keyword argument 'sucess'",
        ),
        ({"environment": HERE, "actionSeconds": 0.2}, "takes an action for each frame, but trainer.params.actionSeco"),
    ],
)
def test_an_environment_that_does_not_fit_is_named_with_the_fix(tmp_path, given, message):
    cameras = 3 if "cameras" in message else 1
    data = write_lerobot(tmp_path / "data", "v3.0", [5, 5], cameras=cameras)
    with pytest.raises(ConfigError) as caught:
        workload(data, **{"maxEpisodeSteps": 3} | given)
    assert message in str(caught.value)


def test_a_missing_extra_is_named(tmp_path, monkeypatch):
    data, find = write_lerobot(tmp_path / "data", "v3.0", [5, 5]), importlib.util.find_spec
    for package, extra in (("gym_pusht", "pusht"), ("gymnasium", "gymnasium")):
        monkeypatch.setattr(
            "torchyard_trainers.vla.robot.find_spec",
            lambda name, package=package: None if name == package else find(name),
        )
        with pytest.raises(ConfigError, match=rf"needs .*{package}; install it: pip install 'torchyard\[{extra}\]'"):
            workload(data, environment="gym_pusht/PushT-v0")


@pytest.fixture(scope="module")
def pushes(tmp_path_factory):
    """A dataset with the state and actions of PushT: two numbers each, from 0 to 512."""
    return write_lerobot(tmp_path_factory.mktemp("pusht") / "data", "v2.1", [5, 6, 5], parts=2)


@pytest.mark.e2e
def test_episodes_of_pusht_are_the_same_with_one_and_two_processes_with_pictures(fork_server, tmp_path, pushes):
    pytest.importorskip("gym_pusht")
    params = {"data": str(pushes), "environment": "gym_pusht/PushT-v0", "maxEpisodeSteps": 6, "steps": 1, "batch": 2}
    params |= {"evalEpisodes": 3, "evalBatch": 2, "evalSamples": 2, "flowSteps": 2, "instruction": "move left"}
    seen = []
    for name, world, strategy in (("one", 1, "ddp"), ("two", 2, "fsdp")):
        yard = Yard(fork_server, tmp_path / name)
        yard.root.mkdir()
        config = {"trainer": {"name": "vla", "params": params}, "device": "cpu", "logging": {"tensorboard": False}}
        yard.train(config | {"parallelism": AT_ONCE | {"strategy": strategy}}, world)
        metrics = yard.metrics()[-1]
        seen.append([metrics[each] for each in ("successRate", "episodeReturn", "maxReward", "episodes")])
        episodes = json.loads((yard.checkpoints / "final" / "episodes.json").read_text())
        assert [each["text"] for each in episodes] == ["move left: not done"] * 3
    assert seen[1] == pytest.approx(seen[0], rel=1e-4)
    assert seen[0][3] == 3
