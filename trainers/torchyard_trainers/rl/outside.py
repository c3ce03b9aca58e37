"""Environments that are not ours: found by name, and checked before a run begins."""

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from torchyard_trainers.core.exits import ConfigError, Exit, exit_code
from torchyard_trainers.core.parameters import module_of
from torchyard_trainers.rl.distributions import no_actions
from torchyard_trainers.rl.environment import Environment

MEMBERS = ("agents", "actions", "observed", "planes", "draws", "limit", "measure")
METHODS = ("reset", "observe", "step", "quality")
_COPIES = 2  # that are played to look at shapes
GYMNASIUM = "gymnasium.core.Env"
# Base classes of other libraries, whose environments can be used in another form.
_FOREIGN = {
    "gymnasium.vector.vector_env.VectorEnv": "is a VectorEnv of gymnasium; name the class of a single environment, of "
    "which the copies are made here",
    "stable_baselines3.common.vec_env.base_vec_env.VecEnv": "is a VecEnv of Stable-Baselines3; name the class of a "
    "single gymnasium.Env, of which the copies are made here",
    "gym.core.Env": "is an environment of gym, which gymnasium has replaced; derive it from gymnasium.Env",
}


def class_of(name: str, at: str) -> Any:
    """Return what `MODULE:CLASS` names: a class, or a function that makes an environment.

    Args:
        name: `MODULE:CLASS`.
        at: the field and its value, which an error begins with.

    Raises:
        ConfigError: there is no such module or class, or it is one of another library that cannot be used.
    """
    path, _, kind = name.partition(":")
    module = module_of(path, at)
    if not callable(getattr(module, kind, None)):
        raise ConfigError(f"{at}, but {path} has no class {kind}")
    found = getattr(module, kind)
    _check_library(found, at)
    return found


def makes_gymnasium(found: Any, at: str) -> bool:
    """Return whether a class is an environment of gymnasium, or a function without arguments returns one.

    Raises:
        ConfigError: the function raises an error, or returns an environment of another library that cannot be used.
    """
    if isinstance(found, type):
        return GYMNASIUM in bases_of(found)
    with blamed(at, "making it", "return an environment from a function without arguments"):
        made = found()
        is_gymnasium = GYMNASIUM in bases_of(type(made))
        if is_gymnasium:
            made.close()  # those that are played are made where they are played
    _check_library(type(made), at)
    return is_gymnasium


def _check_library(found: object, at: str) -> None:
    if foreign := next((_FOREIGN[each] for each in bases_of(found) if each in _FOREIGN), None):
        raise ConfigError(f"{at} {foreign}")


def bases_of(found: object) -> list[str]:
    """Return the full names of the base classes of a class, without importing their libraries."""
    return [f"{each.__module__}.{each.__name__}" for each in getattr(found, "__mro__", ())]


def require(made: object, names: Sequence[str], at: str, page: str) -> None:
    """Check that an environment has all members.

    Raises:
        ConfigError: it lacks some.
    """
    lacking = [name for name in names if not hasattr(made, name)]
    if lacking:
        raise ConfigError(f"{at} lacks {', '.join(lacking)}; see {page}")


@contextmanager
def blamed(at: str, call: str, fix: str) -> Iterator[None]:
    """Convert what an environment raises to an error that names the environment, the call and the place in its code.

    An episode follows from its seed and actions, so that another attempt would raise the same. `SystemExit` counts,
    too: the run would end as if it had succeeded. Errors that have another exit code, of memory say, keep it.

    Args:
        at: the field and its value, which the error begins with.
        call: of the environment.
        fix: what to do.

    Raises:
        ConfigError: the environment raised an error.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if exit_code(error) != Exit.USER_ERROR:
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}, line {place.lineno}"
        raise ConfigError(f"{at}: {call} raised {type(error).__name__}: {error} ({where}); {fix}") from error


def make_tensor_environment(make: Callable[[], Any], names: Sequence[str], at: str, page: str) -> Any:
    """Make an environment of tensors, and check that it has all members.

    Raises:
        ConfigError: it cannot be made, or lacks some.
    """
    with blamed(at, "making it", f"see {page}"):
        environment = make()
    require(environment, names, at, page)
    return environment


def check_shapes(environment: Environment, observed: int, at: str) -> None:
    """Take one step in a few copies and check what comes of it.

    Args:
        environment: to check.
        observed: numbers of an observation.
        at: the field and its value, which an error begins with.

    Raises:
        ConfigError: a tensor has another shape or type than the protocol of `rl.environment` says, or a call raises.
    """
    with blamed(at, "reset, observe or step of 2 copies", "see Environment in torchyard_trainers.rl.environment"):
        _check_shapes(environment, observed, at)


def _check_shapes(environment: Environment, observed: int, at: str) -> None:
    agents, numbers = environment.agents, torch.full((_COPIES, environment.draws), 0.5)
    state = environment.reset(numbers)
    if not isinstance(state, dict) or not all(isinstance(each, torch.Tensor) for each in state.values()):
        raise ConfigError(f"{at}: reset returns {type(state).__name__}, expected a dict of tensors [N, ...]")
    for name, each in state.items():
        if each.shape[:1] != (_COPIES,):
            raise ConfigError(f"{at}: reset returns {name!r} of shape {list(each.shape)}, expected [N, ...]")
    observation = environment.observe(state)
    _expect(observation, [_COPIES, agents, observed], "observe returns a tensor", "[N, agents, observed]", at)
    outcome = environment.step(state, no_actions(environment, _COPIES), numbers)
    if not isinstance(outcome, tuple) or len(outcome) != 5:
        raise ConfigError(
            f"{at}: step returns {type(outcome).__name__}, expected torchyard_trainers.rl.environment.Outcome"
        )
    for name, each in zip(("reward", "terminated", "truncated"), outcome[1:4], strict=True):
        _expect(each, [_COPIES, agents], f"step returns a {name}", "[N, agents]", at)
        if name != "reward" and each.dtype != torch.bool:
            raise ConfigError(f"{at}: step returns a {name} of type {each.dtype}, expected torch.bool")
    changed = [
        name
        for name, each in state.items()
        if name not in outcome[0] or (outcome[0][name].shape, outcome[0][name].dtype) != (each.shape, each.dtype)
    ]
    if changed:
        raise ConfigError(
            f"{at}: step returns a state whose {changed[0]!r} has another shape or type than that of reset"
        )


def _expect(found: torch.Tensor, shape: list[int], what: str, meaning: str, at: str) -> None:
    if list(found.shape) != shape:
        raise ConfigError(f"{at}: {what} of shape {list(found.shape)}, expected {meaning}, here {shape}")
