"""Environments of gymnasium behind the tensor protocol of `rl.environment`.

A gymnasium environment keeps its state to itself. Here the state of a copy is its seed and the actions since: the
episode can be brought back by playing them again, so that a rollout, a checkpoint and another number of processes go on
with the same episodes. Copies that are already there are only stepped.

That holds for environments that remember nothing over a reset. Before the first episode one is played twice, and an
episode that is brought back has to have the same return as well.
"""

import functools
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
from torchyard_trainers.core.metrics.curves import say
from torchyard_trainers.rl.environment import Outcome, State
from torchyard_trainers.rl.outside import blamed

# The actions of an unfinished episode are a part of every state.
MOST_STEPS = 100_000
# The policy has an output for each; more of them are a mistake, and would take all memory.
MOST_ACTIONS = 65_536
_SEEDS = 2**31
# Steps of the episode that is played twice.
_PROBED = 16
# Actions that are copied in each step; those before them are, after as many steps.
_RECENT = 256
_RETURNS = (
    "correct it: reset(seed=...) returns (observation, info), step(action) (observation, reward, terminated, "
    "truncated, info), and observations are what observation_space says"
)


class Live(NamedTuple):
    """Where n copies are.

    The first `steps` actions of an episode count: its first `older` are in `actions`, the others in `recent`. A step
    copies only the latter, since a state never changes.

    Attributes:
        seeds: [n].
        steps: [n].
        returns: [n], of the episodes so far.
        older: [n].
        actions: [n, limit].
        recent: [n, R].
    """

    seeds: NDArray[np.int64]
    steps: NDArray[np.int32]
    returns: NDArray[np.float64]
    older: NDArray[np.int32]
    actions: NDArray[np.int32]
    recent: NDArray[np.int32]

    def played(self, row: int) -> NDArray[np.int32]:
        """Return the actions of a copy's episode, [steps]."""
        older, steps = int(self.older[row]), int(self.steps[row])
        return np.concatenate([self.actions[row, :older], self.recent[row, : steps - older]])

    def with_actions(self, chosen: NDArray[np.int64]) -> "Live":
        """Return the copies after the actions `chosen` [n], whose rewards are not known yet."""
        live = self
        if (live.steps - live.older >= live.recent.shape[1]).any():
            actions = live.actions.copy()
            for row in range(len(actions)):
                actions[row, : live.steps[row]] = live.played(row)
            live = live._replace(actions=actions, older=live.steps)
        recent = live.recent.copy()
        recent[np.arange(len(recent)), live.steps - live.older] = chosen
        return live._replace(recent=recent, steps=live.steps + 1)


class Gymnasium:
    """Copies of a gymnasium environment with discrete actions; see `rl.environment.Environment`.

    A state has `observation` [N, D] and the fields of `Live`.
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
        self._shown: State = {}  # the state in which the copies are
        self._repeats = False

    def reset(self, numbers: Tensor) -> State:
        """See `Environment`."""
        if not self._repeats:
            self._check_repeats()
            self._repeats = True
        seeds = (numbers[:, 0].double().cpu() * _SEEDS).long()
        seen = np.stack([self._begin(int(seed)) for seed in seeds])
        count = len(seeds)
        live = Live(
            seeds.numpy(),
            np.zeros(count, np.int32),
            np.zeros(count),
            np.zeros(count, np.int32),
            np.zeros((count, self.limit), np.int32),
            np.zeros((count, min(_RECENT, self.limit)), np.int32),
        )
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
        before = self._bring(state)
        with self._calls("step(action)"):
            seen, reward, terminated, ended, _ = self._vector.step(chosen + self._start)
        self._check_finite("a reward", reward)
        live = before.with_actions(chosen)
        truncated = (ended | (live.steps >= self.limit)) & ~terminated
        over = terminated | truncated
        live = live._replace(returns=live.returns + reward)
        final = {"observation": torch.from_numpy(self._flat(seen, len(over))).to(device)}
        if over.any():
            fresh = (numbers[:, 0].double().cpu() * _SEEDS).long().numpy()
            seeds, steps, older = (
                np.where(over, new, old).astype(old.dtype)
                for new, old in ((fresh, live.seeds), (0, live.steps), (0, live.older))
            )
            live = live._replace(seeds=seeds, steps=steps, older=older, returns=np.where(over, 0.0, live.returns))
            with self._calls("reset(seed=...)"):
                seen, _ = self._vector.reset(seed=seeds.tolist(), options={"reset_mask": over})
        self._live, self._shown = live, _state(live, self._flat(seen, len(over)), device)
        if live.actions is before.actions:
            self._shown["actions"] = state["actions"]  # not copied to a GPU again
        return Outcome(
            self._shown,
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
        if self._live is not None and all(state[name] is each for name, each in self._shown.items()):
            return self._live
        wanted = Live(*(state[name].cpu().numpy() for name in _FIELDS))
        count = len(wanted.seeds)
        if self._vector is None or self._vector.num_envs != count:
            from gymnasium.vector import AutoresetMode, SyncVectorEnv

            with self._calls("making another copy"):
                self._vector = SyncVectorEnv([self._make] * count, autoreset_mode=AutoresetMode.DISABLED)
            self._live = None
        live = self._live
        away = np.array([live is None or not _is_same(live, wanted, row) for row in range(count)])
        if away.any():
            shown, returns = self._play_again(wanted, away)
            expected = state["observation"].cpu().numpy()
            if not np.array_equal(shown[away], expected[away], equal_nan=True):
                raise self._forgets_nothing("does not show the same again")
            if not np.array_equal(returns[away], wanted.returns[away]):
                raise self._forgets_nothing("does not give the same rewards again")
        self._live = wanted
        return wanted

    def _play_again(self, wanted: Live, away: NDArray[np.bool_]) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Bring the copies of `away` [n] to where a state is; return what they show, [n, D], and their returns, [n]."""
        with self._calls("reset(seed=...)"):
            seen, _ = self._vector.reset(seed=wanted.seeds.tolist(), options={"reset_mask": away})
        shown, returns = self._flat(seen, len(away)), np.zeros(len(away))
        for row in away.nonzero()[0]:
            for action in wanted.played(row):
                with self._calls("step(action)"):
                    last, reward = self._vector.envs[row].step(action + self._start)[:2]
                shown[row] = self._flat(last)
                returns[row] += reward
        return shown, returns

    def _check_repeats(self) -> None:
        """Play an episode twice and check that nothing is remembered over a reset.

        Raises:
            ConfigError: the second one is another one.
        """
        first, second = self._probe(), self._probe()
        for what, one, other in zip(("show the same", "give the same rewards"), first, second, strict=True):
            if not np.array_equal(one, other, equal_nan=True):
                raise self._forgets_nothing(f"does not {what} again")

    def _probe(self) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Return observations, flattened, and rewards of the first steps of an episode."""
        seen, rewards = [self._begin(0)], []
        for step in range(_PROBED):
            with self._calls("step(action)"):
                last, reward, terminated, ended, _ = self._first.step(self._start + step % self.actions)
                seen.append(np.array(last, dtype=np.float32).ravel())
                rewards.append(float(reward))
                over = bool(terminated or ended)
            if over:
                break
        return np.concatenate(seen), np.array(rewards)

    def _forgets_nothing(self, what: str) -> ConfigError:
        return ConfigError(
            f"{self._at} {what} after reset(seed=...) and the same actions, so that runs could not be resumed; take "
            "all random numbers from self.np_random and keep nothing over a reset. In place of the wrappers "
            "NormalizeReward and NormalizeObservation, set trainer.params.normalizeRewards and normalizeObservations"
        )

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
        env = _without_text(env, at)
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


def _without_text(env: Any, at: str) -> Any:
    """Return an environment that shows of a Dict only what is numbers, such as the image of MiniGrid.

    Raises:
        ConfigError: nothing is left.
    """
    from gymnasium import spaces
    from gymnasium.wrappers import FilterObservation

    space = env.observation_space
    if not isinstance(space, spaces.Dict):
        return env
    words = [name for name, part in space.items() if not _has_numbers(part)]
    if not words:
        return env
    numbers = [name for name in space if name not in words]
    if not numbers:
        raise ConfigError(
            f"{at} has observations {space}, of which no part is numbers; wrap it so that they are a Box with numbers"
        )
    _say_once(
        f"{at}: the policy sees {', '.join(numbers)} of the observations, and not {', '.join(words)}, which "
        f"{'is' if len(words) == 1 else 'are'} not numbers"
    )
    return FilterObservation(env, numbers)


def _has_numbers(space: Any) -> bool:
    """Return whether the observations of a space are numbers, or can be flattened to them."""
    from gymnasium import spaces

    if isinstance(space, spaces.Text):
        return False
    try:
        return spaces.flatdim(space) > 0
    except (NotImplementedError, ValueError):  # classes of their own, and those without a size
        return False


@functools.cache
def _say_once(text: str) -> None:
    say(text)


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


def _is_same(one: Live, other: Live, row: int) -> bool:
    """Return whether a copy of two states is in the same episode after the same actions."""
    same = one.seeds[row] == other.seeds[row] and one.steps[row] == other.steps[row]
    return bool(same) and np.array_equal(one.played(row), other.played(row))


# Of a state, in the order of `Live`.
_FIELDS = ("seed", "steps", "returns", "older", "actions", "recent")


def _state(live: Live, seen: NDArray[np.float32], device: torch.device) -> State:
    fields = zip(_FIELDS, live, strict=True)
    return {
        "observation": torch.from_numpy(seen).to(device),
        **{name: torch.from_numpy(each).to(device) for name, each in fields},
    }
