"""An environment of gymnasium for closed-loop episodes of a policy that learned from recordings.

Observations are those of LeRobot's environments: `pixels` is the camera `observation.image`, or a dict of cameras
`observation.images.KEY`, and `agent_pos` is `observation.state`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from torchyard_trainers.core.data.frames import fitted
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.rl.outside import blamed, class_of, makes_gymnasium
from torchyard_trainers.vla.data.recordings import Recordings
from torchyard_trainers.vla.settings import Settings

IMAGE, IMAGES = "observation.image", "observation.images"
_CLASS = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"
_EXTRAS = {"gym_pusht": "pusht"}  # package of an environment -> extra that installs it
_SUCCESS = ("is_success", "success")  # in the info of a step
_FIX = "correct the environment"
_PARTS = (
    "expected a Dict with pixels (an image, or a Dict of images, uint8 [height, width, 3]) and agent_pos (a vector)"
)


class View(NamedTuple):
    """What a policy is shown: images [cameras, S, S, 3] uint8 and the state [d] in its units."""

    images: NDArray[np.uint8]
    state: NDArray[np.float32]


class End(NamedTuple):
    """How an episode went."""

    success: bool
    episode_return: float
    most: float  # the largest reward


class Robot:
    """An environment, and how its observations become those of the recordings."""

    def __init__(
        self, make: Callable[[], Any], source: Recordings, *, size: int, limit: int, task: str, at: str
    ) -> None:
        """Check that a policy of these recordings can act in the environment.

        Args:
            make: makes a copy.
            source: what the policy learned from.
            size: pixels of a side of its images.
            limit: steps after which an episode is cut off.
            task: the instruction.
            at: the field and its value, which an error begins with.

        Raises:
            ConfigError: observations or actions differ from those of the recordings.
        """
        self.make, self.source, self.limit, self.task, self.at, self._size = make, source, limit, task, at, size
        self._back = source.parts[0].back
        first = make()
        space, actions = (getattr(first, f"{kind}_space", None) for kind in ("observation", "action"))
        first.close()
        cameras = source.parts[0].cameras
        self._cameras = _cameras(space, cameras, at)
        state = _sizes(space, "agent_pos", at)
        if state != [source.state_size]:
            raise ConfigError(
                f"{at} has agent_pos {state}, but the state of the recordings has {source.state_size} parts; name the "
                "environment that they were recorded in"
            )
        low, high, shape = (getattr(actions, name, None) for name in ("low", "high", "shape"))
        if low is None or shape != (source.action_size,):
            raise ConfigError(
                f"{at} has actions {actions}, but those of the recordings have {source.action_size} parts; name the "
                "environment that they were recorded in"
            )
        self._low, self._high = np.asarray(low), np.asarray(high)

    def clipped(self, action: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return an action [a] inside of the space of actions."""
        return np.clip(action, self._low, self._high).astype(self._low.dtype)

    def view(self, history: Sequence[Any]) -> View:
        """Return what a policy sees after observations, the last of which is now.

        Raises:
            ConfigError: an observation is not what the space says.
        """
        images = [
            self._image(history[max(0, len(history) - 1 + back)], name) for name in self._cameras for back in self._back
        ]
        with blamed(self.at, "reading agent_pos", _FIX):
            state = np.asarray(history[-1]["agent_pos"], np.float32).reshape(-1)
        if not np.isfinite(state).all():
            raise ConfigError(f"{self.at} returned agent_pos {state.tolist()}; numbers must be finite: {_FIX}")
        return View(np.stack(images), state)

    def _image(self, seen: Mapping[str, Any], name: str | None) -> NDArray[np.uint8]:
        with blamed(self.at, "reading pixels", _FIX):
            pixels = np.asarray(seen["pixels"] if name is None else seen["pixels"][name])
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
            raise ConfigError(f"{self.at} returned pixels {pixels.dtype} {list(pixels.shape)}; {_PARTS}")
        return fitted(Image.fromarray(pixels), self._size)


class Episode:
    """One episode of an environment, which follows from its seed and the actions."""

    def __init__(self, robot: Robot, env: Any, seed: int) -> None:
        """Begin the episode of a seed."""
        self._robot, self._env = robot, env
        with blamed(robot.at, "reset(seed=...)", _FIX):
            first, _ = env.reset(seed=seed)
        self.history = [first]
        self.over = False
        self._success, self._rewards = False, [0.0]

    def view(self) -> View:
        """Return what the policy sees now."""
        return self._robot.view(self.history)

    def step(self, action: NDArray[np.float32]) -> None:
        """Take one action [a]; nothing happens after the end.

        Raises:
            ConfigError: the environment raised an error, or does not say whether the episode succeeded.
        """
        if self.over:
            return
        robot = self._robot
        with blamed(robot.at, "step(action)", _FIX):
            seen, reward, terminated, truncated, info = self._env.step(robot.clipped(action))
            self._rewards.append(float(reward))
        self.history.append(seen)
        self.over = bool(terminated or truncated) or len(self.history) > robot.limit
        said = next((info[name] for name in _SUCCESS if name in info), None)
        if self.over and said is None:
            raise ConfigError(
                f"{robot.at}: the info of the last step has {', '.join(info) or 'nothing'}, and not is_success; set it "
                "in step, to whether the task is done"
            )
        self._success = bool(said)

    def end(self) -> End:
        """Return how the episode went."""
        rewards = self._rewards[1:] or self._rewards
        return End(self._success, sum(self._rewards), max(rewards))


def open_robot(settings: Settings, source: Recordings, size: int) -> Robot:
    """Return the environment of a run.

    Raises:
        ConfigError: there is none, its package is missing, or it does not fit the recordings.
    """
    name, options = str(settings.environment), dict(settings.environment_options)
    at = f"trainer.params.environment: {name!r}"
    if find_spec("gymnasium") is None:
        raise ConfigError(f"{at} needs gymnasium; install it: pip install 'torchyard[gymnasium]'")
    make, limit = (
        _of_class(name, options, settings, at) if re.fullmatch(_CLASS, name) else _of_id(name, options, settings, at)
    )
    if limit is None:
        raise ConfigError(f"{at} has no steps after which an episode is cut off; set trainer.params.maxEpisodeSteps")
    return Robot(make, source, size=size, limit=limit, task=_task(settings, source), at=at)


def _of_class(name: str, options: dict[str, Any], settings: Settings, at: str) -> tuple[Callable[[], Any], int | None]:
    kind = class_of(name, at)
    if not makes_gymnasium(kind, at):
        raise ConfigError(f"{at} is no gymnasium.Env; derive the class from it")

    def make() -> Any:
        with blamed(at, "making it", "see trainer.params.environmentOptions"):
            return kind(**options)

    return make, settings.max_episode_steps


def _of_id(name: str, options: dict[str, Any], settings: Settings, at: str) -> tuple[Callable[[], Any], int | None]:
    import gymnasium

    module, _, inner = name.rpartition(":")
    package = module or (inner.split("/")[0] if "/" in inner else "")
    if package and find_spec(package.split(".")[0]) is not None:
        with blamed(at, f"importing {package}", "install what it needs"):
            import_module(package)
    elif package in _EXTRAS:
        raise ConfigError(f"{at} needs the package {package}; install it: pip install 'torchyard[{_EXTRAS[package]}]'")
    try:
        spec = gymnasium.spec(inner)
    except gymnasium.error.Error as error:
        raise ConfigError(
            f"{at}: {error}; install the package that registers it, or name that as MODULE:{inner}"
        ) from error
    if "obs_type" in spec.kwargs:
        options = {"obs_type": "pixels_agent_pos", **options}  # as LeRobot makes its environments
    limit = settings.max_episode_steps or spec.max_episode_steps

    def make() -> Any:
        with blamed(at, "making it", "see trainer.params.environmentOptions"):
            return gymnasium.make(inner, max_episode_steps=limit, disable_env_checker=True, **options)

    return make, limit


def _task(settings: Settings, source: Recordings) -> str:
    """Return the instruction of all episodes.

    Raises:
        ConfigError: the recordings have several, or another one.
    """
    tasks = list(dict.fromkeys(text for part in source.parts for text in part.tasks))
    if settings.instruction is None and len(tasks) == 1:
        return tasks[0]
    if settings.instruction not in tasks:
        given = (
            f"{settings.instruction!r} is no task" if settings.instruction is not None else "there are several tasks"
        )
        listed = ", ".join(repr(each) for each in tasks[:10])
        raise ConfigError(f"trainer.params.instruction: {given} of the data; use one of {listed}")
    return settings.instruction


def _cameras(space: Any, cameras: Sequence[str], at: str) -> list[str | None]:
    """Return the key in `pixels` of each camera; None: `pixels` is the image.

    Raises:
        ConfigError: the environment does not have the cameras.
    """
    parts = getattr(space, "spaces", {})
    if not {"pixels", "agent_pos"} <= set(parts):
        raise ConfigError(f"{at} has observations {space}; {_PARTS}")
    inner = getattr(parts["pixels"], "spaces", None)
    own: dict[str, str | None] = {IMAGE: None} if inner is None else {f"{IMAGES}.{key}": key for key in inner}
    if len(own) == len(cameras) == 1:
        return list(own.values())
    if missing := [name for name in cameras if name not in own]:
        raise ConfigError(
            f"{at} has the cameras {', '.join(own)}, and not {missing[0]}; set trainer.params.cameras to those of both"
        )
    return [own[name] for name in cameras]


def _sizes(space: Any, name: str, at: str) -> list[int]:
    shape = getattr(space[name], "shape", None)
    if shape is None or len(shape) != 1:
        raise ConfigError(f"{at} has {name} {space[name]}; {_PARTS}")
    return list(shape)
