"""Environments as users write them: one of tensors, others of gymnasium."""

import os
import signal

import gymnasium
import numpy as np
import torch
from gymnasium import spaces, wrappers

from torchyard_trainers.rl.environment import Outcome


class Corridor:
    """Two walkers in a corridor of five cells each; the right end pays 1, the left end nothing."""

    agents, actions, observed, draws, limit = 2, 2, 5, 2, 12
    planes, measure = None, "arrivals"

    def reset(self, numbers):
        return {"cell": (1 + (numbers * 3).long()).double(), "time": torch.zeros(len(numbers), 2, dtype=torch.int16)}

    def observe(self, state):
        return torch.nn.functional.one_hot(state["cell"].long(), 5).float()

    def step(self, state, actions, numbers):
        cell, time = state["cell"] + (actions * 2 - 1), state["time"] + 1
        reached = {"cell": cell.clamp(0, 4), "time": time}
        terminated, fresh = (cell <= 0) | (cell >= 4), self.reset(numbers)
        truncated = ~terminated & (time >= self.limit)
        following = {name: torch.where(terminated | truncated, fresh[name], reached[name]) for name in reached}
        return Outcome(following, (cell >= 4).float(), terminated, truncated, reached)

    def quality(self, episode_return, terminated):
        return episode_return


class Shapeless(Corridor):
    def observe(self, state):
        return super().observe(state)[:, 0]


class Torn(Corridor):
    def step(self, state, actions, numbers):
        raise KeyError("arm")


class Unfinished:
    agents = 1

    def reset(self, numbers):
        return {}


class Hill(gymnasium.Env):
    """A ball on a line with gusts of wind; what is seen has two parts, and actions begin at -1."""

    observation_space = spaces.Dict({"place": spaces.Box(-9, 9, (1,)), "side": spaces.Discrete(2)})
    action_space = spaces.Discrete(3, start=-1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-1, 1)
        return self._seen(), {}

    def step(self, action):
        self.place += 0.5 * int(action) + self.np_random.normal() * 0.1
        return self._seen(), -abs(self.place), abs(self.place) > 2, False, {}

    def _seen(self):
        return {"place": np.array([self.place], np.float32), "side": int(self.place > 0)}


class Forgetful(Hill):
    """It keeps something over a reset, so that an episode does not follow from its seed."""

    worlds = 0

    def reset(self, *, seed=None, options=None):
        Forgetful.worlds += 1
        super().reset(seed=seed)
        self.place += Forgetful.worlds
        return self._seen(), {}


class Endless(Hill):
    observation_space = spaces.Sequence(spaces.Discrete(2))


class Configured(Hill):
    def __init__(self, slope):
        self.slope = slope


class Wide(Hill):
    observation_space = spaces.Box(-9, 9, (1,))

    def _seen(self):
        return np.zeros(2, np.float32)


class Blind(Hill):
    observation_space = spaces.Box(-9, 9, (1,))

    def _seen(self):
        return np.array([np.nan], np.float32)


class Priceless(Hill):
    def step(self, action):
        seen, _, over, cut, facts = super().step(action)
        return seen, float("nan"), over, cut, facts


class Hidden(Hill):
    def __init__(self):
        raise RuntimeError("no display")


class Vast(Hill):
    action_space = spaces.Discrete(10**9)


class Closed(Hill):
    def reset(self, *, seed=None, options=None):
        raise OSError("no map")


class Ancient(Blind):
    """What gymnasium's predecessor returned."""

    def reset(self, *, seed=None, options=None):
        return self._seen()


class Wordy(Blind):
    def _seen(self):
        return "a hill"


class Leaving(Hill):
    def step(self, action):
        raise SystemExit(0)


class Growing(Hill):
    observation_space = spaces.Box(-9, 9, (1,))
    parts = 1

    def step(self, action):
        self.parts = 2
        return super().step(action)

    def _seen(self):
        return np.zeros(self.parts, np.float32)


class Shorter(Hill):
    def step(self, action):
        return super().step(action)[:4]


class Many(gymnasium.vector.VectorEnv):
    """Several copies in one, as gymnasium makes them."""


class Levers(gymnasium.Env):
    """Three levers of four, two and one places, the last one numbered from 2; shows where they are."""

    observation_space = spaces.Box(0, 3, (3,))
    action_space = spaces.MultiDiscrete([4, 2, 1], start=[-2, 0, 2])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        return action.astype(np.float32), 1.0, False, False, {}


class Switches(Levers):
    """Three switches."""

    action_space = spaces.MultiBinary(3)


def made_by_a_function():
    return gymnasium.make("CartPole-v1")


def made_of_many():
    return gymnasium.make_vec("CartPole-v1", num_envs=2)


class Mission(spaces.Space):
    """Texts, as MiniGrid has them in its observations: a space that gymnasium cannot flatten."""

    def __init__(self):
        super().__init__(dtype=str)

    def contains(self, x):
        return isinstance(x, str)


class Told(Hill):
    """It shows numbers and a text."""

    observation_space = spaces.Dict(
        {"image": spaces.Box(0, 255, (2, 2, 3), np.uint8), "mission": Mission(), "side": spaces.Discrete(4)}
    )

    def _seen(self):
        return {"image": np.full((2, 2, 3), 7, np.uint8), "mission": "go up", "side": 2}


class OnlyTold(Hill):
    observation_space = spaces.Dict({"mission": Mission(), "hint": spaces.Text(9)})


def rewards_by_what_was_before():
    """A hill whose rewards depend on all episodes before."""
    return wrappers.NormalizeReward(Hill())


class Souvenir(Hill):
    """It remembers every 30th step, so that rewards change in later episodes only."""

    steps = 0

    def step(self, action):
        Souvenir.steps += 1
        seen, reward, *rest = super().step(action)
        return seen, reward + Souvenir.steps // 40, *rest


class Boundless(Hill):
    """Pushed by any force."""

    action_space = spaces.Box(-np.inf, np.inf, (1,))

    def step(self, action):
        return super().step(action[0])


class Tuned(Hill):
    action_space = spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1)))


class Crane(gymnasium.Env):
    """Two motors with other bounds, whose numbers are a matrix; shows and pays what they were given."""

    observation_space = spaces.Box(-9, 9, (3,))
    action_space = spaces.Box(np.array([[-2.0], [0.0]]), np.array([[2.0], [1.0]]), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.array([self.np_random.uniform(), 0, 0], np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        gust, over = self.np_random.uniform(size=2)
        return np.array([gust, *action[:, 0]], np.float32), float(action.sum()), over > 0.9, False, {}


class Catch(gymnasium.Env):
    """A ball falls through a picture of 8 x 8 pixels with three colours, and a bat catches it at the bottom."""

    side = 8
    observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)
    action_space = spaces.Discrete(3, start=-1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.ball, (self.column, self.bat) = 0, self.np_random.integers(self.side, size=2)
        return self._seen(), {}

    def step(self, action):
        self.bat = min(max(self.bat + int(action), 0), self.side - 1)
        self.ball += 1
        over = self.ball == self.side - 1
        return self._seen(), float(over and abs(self.bat - self.column) <= 1), over, False, {}

    def _seen(self):
        seen = np.zeros((self.side, self.side, 3), np.uint8)
        seen[self.ball, self.column, 0] = 255
        seen[self.side - 1, self.bat, 2] = 255
        return seen


class WideCatch(Catch):
    """The same on 44 x 44 pixels, in shades of grey."""

    side = 44
    observation_space = spaces.Box(0, 255, (44, 44), np.uint8)

    def _seen(self):
        return super()._seen().max(-1)


class Deadly(Hill):
    """It ends the process that plays it."""

    def step(self, action):
        os.kill(os.getpid(), signal.SIGKILL)


class Drift:
    """Two swimmers, each pushed by two numbers against a current; near the middle is best."""

    agents, actions, observed, draws, limit = 2, 2, 2, 4, 8
    planes, measure, continuous = None, "evalReturn", True

    def reset(self, numbers):
        return {"place": numbers.view(-1, 2, 2) * 2 - 1, "time": torch.zeros(len(numbers), 2, dtype=torch.int64)}

    def observe(self, state):
        return state["place"]

    def step(self, state, actions, numbers):
        place = (state["place"] + actions.clamp(-0.5, 0.5) + 0.1).clamp(-2, 2)
        time = state["time"] + 1
        reached, over, fresh = {"place": place, "time": time}, time >= self.limit, self.reset(numbers)
        following = {
            "place": torch.where(over[..., None], fresh["place"], place),
            "time": torch.where(over, fresh["time"], time),
        }
        return Outcome(following, -place.square().sum(-1), torch.zeros_like(over), over, reached)

    def quality(self, episode_return, terminated):
        return episode_return
