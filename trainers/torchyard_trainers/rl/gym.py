"""Environments of gymnasium behind the tensor protocol of `rl.environment`.

A gymnasium environment keeps its state to itself. Here the state of a copy is its seed and the actions since: the
episode can be brought back by playing them again, so that a rollout, a checkpoint and another number of processes go on
with the same episodes. Copies that are already there are only stepped.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.rl.environment import Outcome, State
from torchyard_trainers.rl.outside import blamed

# The actions of an unfinished episode are a part of every state.
MOST_STEPS = 100_000
# The policy has an output for each; more of them are a mistake, and would take all memory.
MOST_ACTIONS = 65_536
_SEEDS = 2**31
_RETURNS = (
    "correct it: reset(seed=...) returns (observation, info), step(action) (observation, reward, terminated, "
    "truncated, info), and observations are what observation_space says"
)


class Live(NamedTuple):
    """Where the copies are: [n] seeds and numbers of steps, and [n, limit] actions, of which the first steps count."""

    seeds: NDArray[np.int64]
    steps: NDArray[np.int32]
    actions: NDArray[np.int32]


class Gymnasium:
    """Copies of a gymnasium environment with discrete actions; see `rl.environment.Environment`.

    A state has `observation` [N, D], `seed` [N], `steps` [N] and `actions` [N, limit].
    """

    agents = 1
    planes = None
    draws = 1
    measure = "evalReturn"

    def __init__(self, make: Callable[[], Any], limit: int, at: str) -> None:
        """Make one copy; others follow when they are stepped.

        Args:
            make: makes a copy.
            limit: steps after which an episode is cut off.
            at: the field and its value, which an error begins with.

        Raises:
            ConfigError: observations or actions are of a kind that a policy cannot read or choose.
        """
        from gymnasium import spaces

        self._make, self.limit, self._at = make, limit, at
        self._first = make()
        space, actions = (getattr(self._first, f"{kind}_space", None) for kind in ("observation", "action"))
        if not isinstance(actions, spaces.Discrete):
            raise ConfigError(
                f"{at} has actions {actions}; a policy chooses one of Discrete ones, or one of at most {MOST_ACTIONS} "
                "combinations of MultiDiscrete or MultiBinary ones: wrap it so that it has them"
            )
        if actions.n > MOST_ACTIONS:
            raise ConfigError(f"{at} has {actions.n} actions; use at most {MOST_ACTIONS}")
        if not isinstance(space, spaces.Box) or not np.prod(space.shape):
            raise ConfigError(
                f"{at} has observations {space}, which cannot be flattened; wrap it so that they are a Box with numbers"
            )
        self.actions = int(actions.n)
        self.observed = int(np.prod(space.shape))
        self._start = int(actions.start)  # number of the first action
        self._vector: Any = None
        self._live: Live | None = None

    def reset(self, numbers: Tensor) -> State:
        """See `Environment`."""
        seeds = (numbers[:, 0].double().cpu() * _SEEDS).long()
        seen = np.stack([self._begin(int(seed)) for seed in seeds])
        live = Live(seeds.numpy(), np.zeros(len(seeds), np.int32), np.zeros((len(seeds), self.limit), np.int32))
        return _state(live, seen, numbers.device)

    def observe(self, state: State) -> Tensor:
        """See `Environment`: the flattened observation."""
        return state["observation"][:, None]

    def step(self, state: State, actions: Tensor, numbers: Tensor) -> Outcome:
        """See `Environment`.

        Raises:
            ConfigError: the environment did not show the same again when its actions were played again.
        """
        device, chosen = actions.device, actions[:, 0].cpu().numpy()
        live = self._bring(state)
        with self._calls("step(action)"):
            seen, reward, terminated, ended, _ = self._vector.step(chosen + self._start)
        self._check_finite("a reward", reward)
        made = live.actions.copy()
        made[np.arange(len(made)), live.steps] = chosen
        steps = live.steps + 1
        truncated = (ended | (steps >= self.limit)) & ~terminated
        over, seeds = terminated | truncated, live.seeds
        final = {"observation": torch.from_numpy(self._flat(seen, len(made))).to(device)}
        if over.any():
            fresh = (numbers[:, 0].double().cpu() * _SEEDS).long().numpy()
            seeds, steps = np.where(over, fresh, seeds), np.where(over, 0, steps).astype(np.int32)
            with self._calls("reset(seed=...)"):
                seen, _ = self._vector.reset(seed=seeds.tolist(), options={"reset_mask": over})
        self._live = Live(seeds, steps, made)
        return Outcome(
            _state(self._live, self._flat(seen, len(made)), device),
            torch.from_numpy(reward.astype(np.float32))[:, None].to(device),
            torch.from_numpy(terminated)[:, None].to(device),
            torch.from_numpy(truncated)[:, None].to(device),
            final,
        )

    def quality(self, episode_return: Tensor, terminated: Tensor) -> Tensor:
        """See `Environment`: the return is the measure."""
        del terminated
        return episode_return

    def _bring(self, state: State) -> Live:
        """Bring the copies to where a state is; most often they are there."""
        wanted = Live(*(state[name].cpu().numpy() for name in ("seed", "steps", "actions")))
        count = len(wanted.seeds)
        if self._vector is None or self._vector.num_envs != count:
            from gymnasium.vector import AutoresetMode, SyncVectorEnv

            with self._calls("making another copy"):
                self._vector = SyncVectorEnv([self._make] * count, autoreset_mode=AutoresetMode.DISABLED)
            self._live = None
        away = np.ones(count, np.bool_)
        if self._live is not None:
            made = np.arange(self.limit) < wanted.steps[:, None]
            away = (self._live.seeds != wanted.seeds) | (self._live.steps != wanted.steps)
            away |= ((self._live.actions != wanted.actions) & made).any(1)
        if away.any():
            shown = self._play_again(wanted, away)
            expected = state["observation"].cpu().numpy()
            if not np.array_equal(shown[away], expected[away], equal_nan=True):
                raise ConfigError(
                    f"{self._at} does not show the same again after reset(seed=...) and the same actions, so that runs "
                    "could not be resumed; take all random numbers from self.np_random and keep nothing over a reset"
                )
        self._live = wanted
        return wanted

    def _play_again(self, wanted: Live, away: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Bring the copies of `away` [n] to where a state is; return what all of them show, [n, D]."""
        with self._calls("reset(seed=...)"):
            seen, _ = self._vector.reset(seed=wanted.seeds.tolist(), options={"reset_mask": away})
        shown = self._flat(seen, len(away))
        for row in away.nonzero()[0]:
            for action in wanted.actions[row, : wanted.steps[row]]:
                with self._calls("step(action)"):
                    last = self._vector.envs[row].step(action + self._start)[0]
                shown[row] = self._flat(last)
        return shown

    def _begin(self, seed: int) -> NDArray[np.float32]:
        """Return the first observation of an episode, [D]."""
        with self._calls("reset(seed=...)"):
            found = self._first.reset(seed=seed)
        if not isinstance(found, tuple) or len(found) != 2:
            raise ConfigError(f"{self._at}: reset returned {type(found).__name__}, not a pair; {_RETURNS}")
        return self._flat(found[0])

    def _calls(self, call: str) -> AbstractContextManager[None]:
        return blamed(self._at, call, _RETURNS)

    def _flat(self, seen: Any, *shape: int) -> NDArray[np.float32]:
        """Return observations as float32 vectors, [*shape, D]; never a view of what an environment holds."""
        with self._calls("reading an observation as numbers"):
            found = np.array(seen, dtype=np.float32)
        if found.size != int(np.prod(shape)) * self.observed:
            raise ConfigError(
                f"{self._at} returned an observation of shape {list(found.shape[len(shape) :])}, but its "
                f"observation_space has {self.observed} numbers; return what the space says"
            )
        self._check_finite("an observation", found)
        return found.reshape(*shape, self.observed)

    def _check_finite(self, what: str, found: NDArray[Any]) -> None:
        if not np.isfinite(found).all():
            bad = found[~np.isfinite(found)].flat[0]
            raise ConfigError(f"{self._at} returned {what} with {bad}, from which nothing can be learned; correct it")


def open_gymnasium(name: str, made: Callable[[], Any] | None, most_steps: int | None, at: str) -> Gymnasium:
    """Return the environment of a gymnasium id, or what a class or a function makes.

    Args:
        name: an id, such as `CartPole-v1`; not read if there is a class.
        made: a class or a function, which is called without arguments.
        most_steps: of an episode; None: as many as are registered.
        at: the field and its value, which an error begins with.

    Raises:
        ConfigError: there is no gymnasium, no such environment, no limit of steps, or it is of another kind.
    """
    if find_spec("gymnasium") is None:
        raise ConfigError(f"{at} needs gymnasium; install it: pip install 'torchyard[gymnasium]'")
    import gymnasium
    from gymnasium import spaces
    from gymnasium.wrappers import FlattenObservation, TimeLimit

    def make() -> Any:
        env = gymnasium.make(name, max_episode_steps=most_steps, disable_env_checker=True) if made is None else made()
        if made is not None and most_steps is not None:
            env = TimeLimit(env, most_steps)
        env = env if isinstance(env.observation_space, spaces.Box) else FlattenObservation(env)
        return _numbered(env)

    needs = "make the class without arguments, and set observation_space and action_space in __init__"
    with blamed(at, "making it", needs):
        try:
            first = make()
        except (gymnasium.error.Error, ModuleNotFoundError) as error:
            raise ConfigError(f"{at}: {error}") from error
    limit = most_steps or (first.spec.max_episode_steps if first.spec is not None else None)
    if limit is None or not 1 <= limit <= MOST_STEPS:
        raise ConfigError(
            f"{at} has {'no' if limit is None else limit} steps after which an episode is cut off; set "
            f"trainer.params.maxEpisodeSteps, at most {MOST_STEPS}"
        )
    return Gymnasium(make, limit, at)


def _numbered(env: Any) -> Any:
    """Return an environment with several choices in a step as one of which every combination is an action.

    Combinations are numbered as `numpy.unravel_index` does. Those of more than MOST_ACTIONS are left as they are.
    """
    from gymnasium import spaces
    from gymnasium.wrappers import TransformAction

    space = env.action_space
    if not isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        return env
    counts = np.full(space.shape, 2) if isinstance(space, spaces.MultiBinary) else space.nvec
    start = 0 if isinstance(space, spaces.MultiBinary) else space.start
    sizes = [int(each) for each in counts.flat]
    if math.prod(sizes) > MOST_ACTIONS:
        return env

    def combination(number: int) -> NDArray[Any]:
        chosen = np.reshape(np.unravel_index(int(number), sizes), counts.shape)
        return (chosen + start).astype(space.dtype)

    return TransformAction(env, combination, spaces.Discrete(math.prod(sizes)))


def _state(live: Live, seen: NDArray[np.float32], device: torch.device) -> State:
    return {
        "observation": torch.from_numpy(seen).to(device),
        "seed": torch.from_numpy(live.seeds).to(device),
        "steps": torch.from_numpy(live.steps).to(device),
        "actions": torch.from_numpy(live.actions).to(device),
    }
