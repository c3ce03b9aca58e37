"""Opens environments of gymnasium, and gives them the spaces that a policy can read and choose from."""

import functools
import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.metrics.curves import say
from torchyard_trainers.rl.outside import blamed

# The actions of an unfinished episode are a part of every state.
MOST_STEPS = 100_000
# The policy has an output for each; more of them are a mistake, and would take all memory.
MOST_ACTIONS = 65_536
MOST_NUMBERS = 1024  # of a continuous action
_PICTURE = 3  # dimensions
_MOST_CHANNELS = 4  # of a picture whose channels come first
_GOLDEN = 0.6180339887498949


class Options(NamedTuple):
    """How environments of gymnasium are seen and played.

    Attributes:
        most_steps: of an episode; None: as many as are registered.
        frame_stack: newest observations that make one.
        pictures: observations are pictures, and stay planes.
        rescale: actions of -1 to 1 are the bounds of the environment; else they are its own, and clipped.
        workers: processes that play; 0: the trainer's own.
    """

    most_steps: int | None = None
    frame_stack: int = 1
    pictures: bool = False
    rescale: bool = False
    workers: int = 0


class Choices(NamedTuple):
    """Actions of a Discrete space; a policy counts from 0."""

    count: int
    start: int
    shape: tuple[int, ...] = ()
    dtype: type = np.int32

    def taken(self, chosen: NDArray[Any]) -> NDArray[Any]:
        """Return the actions of the environment for choices [n]."""
        return chosen.astype(np.int64) + self.start

    def probe(self, step: int) -> NDArray[Any]:
        """Return the choice of a step of the episode that is played twice."""
        return np.array([step % self.count])


class Bounds:
    """Actions of a Box space; a policy draws numbers [n, k] without bounds."""

    dtype = np.float32

    def __init__(self, space: Any, at: str, *, rescale: bool) -> None:
        """Read the bounds of a space.

        Raises:
            ConfigError: there are too many numbers, or none; they are no real ones; or to rescale, bounds are missing.
        """
        self.count = int(np.prod(space.shape))
        if not 1 <= self.count <= MOST_NUMBERS or not np.issubdtype(space.dtype, np.floating):
            raise ConfigError(f"{at} has actions {space}; use a Box of 1 to {MOST_NUMBERS} real numbers")
        self.shape = (self.count,)
        self._space_shape, self._space_dtype = space.shape, space.dtype
        self.low, self.high = (torch.tensor(each, dtype=torch.float32).flatten() for each in (space.low, space.high))
        self._rescale = rescale
        if rescale and not bool((self.low.isfinite() & self.high.isfinite()).all()):
            raise ConfigError(f"trainer.params.actionBounds: rescale, but {at} has actions {space}; use clip")

    def applied(self, action: Tensor) -> Tensor:
        """Return what the environment is given for actions [..., k]."""
        if self._rescale:
            action = (self.low + self.high) / 2 + action * ((self.high - self.low) / 2)
        return torch.minimum(torch.maximum(action, self.low), self.high)

    def taken(self, chosen: NDArray[Any]) -> NDArray[Any]:
        """Return the actions of the environment for numbers [n, k]."""
        found = self.applied(torch.from_numpy(np.ascontiguousarray(chosen, np.float32))).numpy()
        return found.reshape(-1, *self._space_shape).astype(self._space_dtype)

    def probe(self, step: int) -> NDArray[Any]:
        """Return the action of a step of the episode that is played twice: other numbers between -1 and 1 each time."""
        return (2 * ((1 + np.arange(self.count) + step * self.count) * _GOLDEN % 1) - 1)[None].astype(np.float32)


def actions_of(space: Any, at: str, *, rescale: bool) -> Choices | Bounds:
    """Return how actions of a policy become those of a space.

    Raises:
        ConfigError: a policy cannot choose such actions.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        return Bounds(space, at, rescale=rescale)
    if rescale:
        raise ConfigError(f"trainer.params.actionBounds: rescale, but {at} has actions {space}; remove it")
    if not isinstance(space, spaces.Discrete):
        raise ConfigError(
            f"{at} has actions {space}; a policy chooses one of Discrete ones, one of at most {MOST_ACTIONS} "
            "combinations of MultiDiscrete or MultiBinary ones, or the numbers of a Box: wrap it so that it has them"
        )
    if space.n > MOST_ACTIONS:
        raise ConfigError(f"{at} has {space.n} actions; use at most {MOST_ACTIONS}")
    return Choices(int(space.n), int(space.start))


def open_environment(
    name: str, made: Callable[[], Any] | None, options: Options, at: str
) -> tuple[Callable[[], Any], int]:
    """Return a function that makes copies, and the steps after which an episode is cut off.

    Args:
        name: an id, such as `CartPole-v1`; not read if there is a class.
        made: a class or a function, which is called without arguments.
        options: of the run.
        at: the field and its value, which an error begins with.

    Raises:
        ConfigError: there is no gymnasium, no such environment, no limit of steps, or it is of another kind.
    """
    if find_spec("gymnasium") is None:
        raise ConfigError(f"{at} needs gymnasium; install it: pip install 'torchyard[gymnasium]'")
    import gymnasium
    from gymnasium import spaces
    from gymnasium.wrappers import FlattenObservation, FrameStackObservation, TimeLimit

    most_steps = options.most_steps

    def make() -> Any:
        env = gymnasium.make(name, max_episode_steps=most_steps, disable_env_checker=True) if made is None else made()
        if made is not None and most_steps is not None:
            env = TimeLimit(env, most_steps)
        env = _without_text(env, at)
        env = env if isinstance(env.observation_space, spaces.Box) else FlattenObservation(env)
        if options.frame_stack > 1:
            env = FrameStackObservation(env, options.frame_stack)
        return _numbered(_planes_first(env, options, at) if options.pictures else env)

    needs = "make the class without arguments, and set observation_space and action_space in __init__"
    with blamed(at, "making it", needs):
        try:
            first = make()
        except gymnasium.error.DependencyNotInstalled as error:
            more = "mujoco" if "mujoco" in str(error).lower() else "gymnasium"
            raise ConfigError(f"{at}: {error}; install it: pip install 'torchyard[{more}]'") from error
        except (gymnasium.error.Error, ModuleNotFoundError) as error:
            raise ConfigError(f"{at}: {error}") from error
    limit = most_steps or (first.spec.max_episode_steps if first.spec is not None else None)
    first.close()
    if limit is None or not 1 <= limit <= MOST_STEPS:
        raise ConfigError(
            f"{at} has {'no' if limit is None else limit} steps after which an episode is cut off; set "
            f"trainer.params.maxEpisodeSteps, at most {MOST_STEPS}"
        )
    return make, limit


def _planes_first(env: Any, options: Options, at: str) -> Any:
    """Return an environment whose pictures are [planes, height, width]; frames of a stack follow each other.

    Raises:
        ConfigError: observations are no pictures.
    """
    from gymnasium import spaces
    from gymnasium.wrappers import TransformObservation

    space = env.observation_space
    frames = space.shape if options.frame_stack > 1 else (1, *space.shape)
    stack, picture = frames[0], frames[1:]
    if len(picture) == _PICTURE - 1:
        picture = (1, *picture)
    if len(picture) != _PICTURE:
        shape = list(space.shape[1:] if options.frame_stack > 1 else space.shape)
        raise ConfigError(
            f"trainer.params.model: a CNN sees pictures [height, width] or [height, width, channels], and {at} has "
            f"observations of shape {shape}; use mlp"
        )
    first = picture[0] <= _MOST_CHANNELS < picture[2]  # where the channels are
    planes = picture if first else (picture[2], *picture[:2])

    def arranged(seen: Any) -> NDArray[Any]:
        found = np.asarray(seen).reshape(stack, *picture)
        return (found if first else np.moveaxis(found, 3, 1)).reshape(stack * planes[0], *planes[1:])

    bounds = (arranged(space.low), arranged(space.high))
    return TransformObservation(env, arranged, spaces.Box(*bounds, dtype=space.dtype))


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
