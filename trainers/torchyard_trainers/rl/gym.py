"""Environments of gymnasium behind the tensor protocol of `rl.environment`.

A gymnasium environment keeps its state to itself. Here the state of a copy is its seed and the actions since: the
episode can be brought back by playing them again, so that a rollout, a checkpoint and another number of processes go on
with the same episodes. Copies that are already there are only stepped.

That holds for environments that remember nothing over a reset. Before the first episode one is played twice, and an
episode that is brought back has to have the same return as well.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.rl.copies import RETURNS, Copies, OwnCopies, Reader, WorkerCopies
from torchyard_trainers.rl.environment import Outcome, State
from torchyard_trainers.rl.spaces import Bounds, Options, actions_of, open_environment

_SEEDS = 2**31
# Steps of the episode that is played twice.
_PROBED = 16
# Actions that are copied in each step; those before them are, after as many steps.
_RECENT = 256


class Live(NamedTuple):
    """Where n copies are.

    The first `steps` actions of an episode count: its first `older` are in `actions`, the others in `recent`. A step
    copies only the latter, since a state never changes.

    Attributes:
        seeds: [n].
        steps: [n].
        returns: [n], of the episodes so far.
        older: [n].
        actions: [n, limit] choices, or [n, limit, k] numbers.
        recent: [n, R], or [n, R, k].
    """

    seeds: NDArray[np.int64]
    steps: NDArray[np.int32]
    returns: NDArray[np.float64]
    older: NDArray[np.int32]
    actions: NDArray[Any]
    recent: NDArray[Any]

    def played(self, row: int) -> NDArray[Any]:
        """Return the actions of a copy's episode, [steps] or [steps, k]."""
        older, steps = int(self.older[row]), int(self.steps[row])
        return np.concatenate([self.actions[row, :older], self.recent[row, : steps - older]])

    def with_actions(self, chosen: NDArray[Any]) -> "Live":
        """Return the copies after the actions `chosen` [n] or [n, k], whose rewards are not known yet."""
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
    """Copies of a gymnasium environment with discrete or continuous actions; see `rl.environment.Environment`.

    A state has `observation` [N, D] and the fields of `Live`.
    """

    agents = 1
    draws = 1
    measure = "evalReturn"

    def __init__(self, make: Callable[[], Any], limit: int, options: Options, at: str) -> None:
        """Make one copy; others follow when they are stepped.

        Args:
            make: makes a copy.
            limit: steps after which an episode is cut off.
            options: of the run.
            at: the field and its value, which an error begins with.

        Raises:
            ConfigError: observations or actions are of a kind that a policy cannot read or choose.
        """
        from gymnasium import spaces

        self._make, self.limit, self._at, self._workers = make, limit, at, options.workers
        self._first = make()
        space, actions = (getattr(self._first, f"{kind}_space", None) for kind in ("observation", "action"))
        self._actions = actions_of(actions, at, rescale=options.rescale)
        self.actions = self._actions.count
        self.continuous = isinstance(self._actions, Bounds)
        self.bounds = self._actions if isinstance(self._actions, Bounds) else None
        if not isinstance(space, spaces.Box) or not np.prod(space.shape):
            raise ConfigError(
                f"{at} has observations {space}, which cannot be flattened; wrap it so that they are a Box with numbers"
            )
        self.observed = int(np.prod(space.shape))
        self.planes: tuple[int, int, int] | None = space.shape if options.pictures else None
        self.brightest = 255 if space.dtype == np.uint8 else 1  # number of a picture
        self._reader = Reader(at, self.observed, np.uint8 if space.dtype == np.uint8 else np.float32)
        self._copies: Copies | None = None
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
        count, shape, dtype = len(seeds), self._actions.shape, self._actions.dtype
        live = Live(
            seeds.numpy(),
            np.zeros(count, np.int32),
            np.zeros(count),
            np.zeros(count, np.int32),
            np.zeros((count, self.limit, *shape), dtype),
            np.zeros((count, min(_RECENT, self.limit), *shape), dtype),
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
        before, copies = self._bring(state)
        seen, reward, terminated, ended = copies.step(self._actions.taken(chosen))
        live = before.with_actions(chosen)
        truncated = (ended | (live.steps >= self.limit)) & ~terminated
        over = terminated | truncated
        live = live._replace(returns=live.returns + reward)
        final = {"observation": torch.from_numpy(seen).to(device)}
        if over.any():
            fresh = (numbers[:, 0].double().cpu() * _SEEDS).long().numpy()
            seeds, steps, older = (
                np.where(over, new, old).astype(old.dtype)
                for new, old in ((fresh, live.seeds), (0, live.steps), (0, live.older))
            )
            live = live._replace(seeds=seeds, steps=steps, older=older, returns=np.where(over, 0.0, live.returns))
            seen = copies.reset(seeds, over)
        self._live, self._shown = live, _state(live, seen, device)
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

    def _bring(self, state: State) -> tuple[Live, Copies]:
        """Bring the copies to where a state is; most often they are there."""
        if self._live is not None and all(state[name] is each for name, each in self._shown.items()):
            assert self._copies is not None
            return self._live, self._copies
        wanted = Live(*(state[name].cpu().numpy() for name in _FIELDS))
        count = len(wanted.seeds)
        if self._copies is None or self._copies.count != count:
            if self._copies is not None:
                self._copies.close()
            self._copies, self._live = self._made(count), None
        live = self._live
        away = np.array([live is None or not _is_same(live, wanted, row) for row in range(count)])
        if away.any():
            shown, returns = self._play_again(self._copies, wanted, away)
            expected = state["observation"].cpu().numpy()
            if not np.array_equal(shown[away], expected[away], equal_nan=True):
                raise self._forgets_nothing("does not show the same again")
            if not np.array_equal(returns[away], wanted.returns[away]):
                raise self._forgets_nothing("does not give the same rewards again")
        self._live = wanted
        return wanted, self._copies

    def _made(self, count: int) -> Copies:
        if self._workers:
            return WorkerCopies(self._make, count, self._reader, self._workers)
        return OwnCopies(self._make, count, self._reader)

    def _play_again(
        self, copies: Copies, wanted: Live, away: NDArray[np.bool_]
    ) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Bring the copies of `away` [n] to where a state is; return what they show, [n, D], and their returns, [n]."""
        shown, returns = copies.reset(wanted.seeds, away), np.zeros(len(away))
        episodes = [self._actions.taken(wanted.played(row)) if here else None for row, here in enumerate(away)]
        for row, (seen, total) in enumerate(copies.replay(episodes)):
            returns[row] = total
            if seen is not None:
                shown[row] = seen
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

    def _probe(self) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Return observations, flattened, and rewards of the first steps of an episode."""
        seen, rewards = [self._begin(0)], []
        for step in range(_PROBED):
            (action,) = self._actions.taken(self._actions.probe(step))
            with self._reader.calls("step(action)"):
                last, reward, terminated, ended, _ = self._first.step(action)
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

    def _begin(self, seed: int) -> NDArray[Any]:
        """Return the first observation of an episode, [D]."""
        with self._reader.calls("reset(seed=...)"):
            found = self._first.reset(seed=seed)
        if not isinstance(found, tuple) or len(found) != 2:
            raise ConfigError(f"{self._at}: reset returned {type(found).__name__}, not a pair; {RETURNS}")
        return self._reader.flat(found[0])


def open_gymnasium(name: str, made: Callable[[], Any] | None, options: Options, at: str) -> Gymnasium:
    """Return the environment of a gymnasium id, or what a class or a function makes; see `open_environment`."""
    make, limit = open_environment(name, made, options, at)
    return Gymnasium(make, limit, options, at)


def _is_same(one: Live, other: Live, row: int) -> bool:
    """Return whether a copy of two states is in the same episode after the same actions."""
    same = one.seeds[row] == other.seeds[row] and one.steps[row] == other.steps[row]
    return bool(same) and np.array_equal(one.played(row), other.played(row))


# Of a state, in the order of `Live`.
_FIELDS = ("seed", "steps", "returns", "older", "actions", "recent")


def _state(live: Live, seen: NDArray[Any], device: torch.device) -> State:
    fields = zip(_FIELDS, live, strict=True)
    return {
        "observation": torch.from_numpy(seen).to(device),
        **{name: torch.from_numpy(each).to(device) for name, each in fields},
    }
