"""Parameters of the `vecrl` workload. Imports no torch: the operator's schema is made from this file."""

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.parameters import Share, doc, given, read
from torchyard_trainers.rl import params as rl

OURS = ("cartpole", "snake", "bandit")
_CLASS = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"
_ID = r"([A-Za-z_][\w.]*:)?([\w.-]+/)?[\w.-]+-v\d+"  # of gymnasium: MODULE:NAMESPACE/NAME-vVERSION

_ENVIRONMENT = {
    "pattern": f"^({'|'.join(OURS)}|{_CLASS}|{_ID})$",
    "x-form": f"{', '.join(OURS)}, the id of a gymnasium environment (Acrobot-v1) or MODULE:CLASS",
}


class Params(rl.PpoParams, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """PPO (Schulman 2017) on many environments at once. What is absent comes from the preset."""

    preset: Annotated[
        Literal["tiny", "large", "continuous"],
        doc(
            "Sizes to start from: tiny learns on a CPU in half a minute (Pendulum-v1: in one), large fills a GPU; "
            "continuous: those of CleanRL's ppo_continuous_action.py, for MuJoCo."
        ),
    ] = "tiny"
    environment: Annotated[
        Annotated[str, Meta(max_length=256, extra_json_schema=_ENVIRONMENT)],
        doc(
            "cartpole: that of gymnasium on the device; snake: several snakes on a torus; bandit: a smoke test; or the "
            "id of a gymnasium environment (Acrobot-v1), or MODULE:CLASS of your own (docs/workloads.md)."
        ),
    ] = "cartpole"
    max_episode_steps: Annotated[
        Annotated[int, Meta(ge=1, le=100_000)] | None,
        doc("gymnasium: steps after which an episode is cut off; default: those that are registered."),
    ] = None
    environment_workers: Annotated[
        Annotated[int, Meta(ge=0, le=64)],
        doc(
            "gymnasium: processes of each rank that play its environments, with the same results; 0: the trainer's own."
        ),
    ] = 0
    frame_stack: Annotated[
        Annotated[int, Meta(ge=1, le=16)], doc("gymnasium: the newest observations that the policy sees together.")
    ] = 1
    action_bounds: Annotated[
        Literal["clip", "rescale"],
        doc(
            "Continuous actions of gymnasium. clip: to the bounds of the environment, as CleanRL; rescale: -1 to 1 are "
            "the bounds."
        ),
    ] = "clip"
    value_clip: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        doc("How far a value learns to go from that of the rollout (CleanRL: as far as clip); 0: any distance."),
    ] = None
    target_kl: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        doc("Learn no more from a rollout once approxKl of the last minibatch of an epoch is above this; 0: always."),
    ] = None
    normalize_observations: Annotated[
        bool | None,
        doc("Subtract the mean of all observations so far, divide by their deviation, and clip to 10 deviations."),
    ] = None
    normalize_rewards: Annotated[
        bool | None,
        doc(
            "Learn from rewards divided by the deviation of discounted returns so far and clipped to 10; metrics have "
            "the rewards of the environment."
        ),
    ] = None
    lr: Annotated[Annotated[float, Meta(gt=0, le=1)] | None, doc("Learning rate of the first step.")] = None
    lr_final: Annotated[Share | None, doc("Learning rate after the last step; a straight line in between.")] = None
    model: Annotated[
        Literal["mlp", "cnn", "nature"] | None,
        doc(
            "mlp: hidden layers on the observation; cnn: three small convolutions before them, for grids and small "
            "pictures; nature: those of DQN (Mnih 2015), for pictures of at least 36 x 36."
        ),
    ] = None
    width: Annotated[Annotated[int, Meta(ge=4, le=8192)] | None, doc("Units of a hidden layer.")] = None
    layers: Annotated[Annotated[int, Meta(ge=1, le=16)] | None, doc("Hidden layers of policy and of value.")] = None
    policies: Annotated[
        Literal["shared", "independent"],
        doc("shared: one policy plays all agents of an environment; independent: each agent has weights of its own."),
    ] = "shared"
    grid: Annotated[Annotated[int, Meta(ge=4, le=64)] | None, doc("snake: cells along a side of the torus.")] = None
    agents: Annotated[Annotated[int, Meta(ge=1, le=16)] | None, doc("snake: snakes on a torus.")] = None
    food: Annotated[Annotated[int, Meta(ge=1, le=64)] | None, doc("snake: pieces of food on a torus.")] = None
    view: Annotated[
        Annotated[int, Meta(ge=3, le=64)] | None,
        doc("snake: side of the square that a snake sees around its head, at most grid."),
    ] = None
    arms: Annotated[Annotated[int, Meta(ge=2, le=64)] | None, doc("bandit: arms, one of which pays.")] = None


class Settings(rl.PpoSettings, frozen=True, kw_only=True):
    """Parameters with every preset value filled in."""

    environment: str
    lr: float
    lr_final: float
    model: str
    width: int
    layers: int
    policies: str
    compile: bool
    grid: int = 0
    agents: int = 1
    food: int = 0
    view: int = 0
    arms: int = 0
    max_episode_steps: int | None = None
    environment_workers: int = 0
    frame_stack: int = 1
    action_bounds: str = "clip"
    value_clip: float = 0.0
    target_kl: float = 0.0
    normalize_observations: bool = False
    normalize_rewards: bool = False


METRICS = (*rl.METRICS, "updateEpochs", "evalReturn", "evalLength", "evalUntrained", "envStepsPerSecond")
"""Metrics that this workload reports beside those of every workload, over all settings (`core.parameters.METRICS`)."""
METRICS_WITH = {
    "updateEpochs": ("targetKl", r"(?!0(\.0)?$).*"),
    "evalLength": ("environment", "snake"),
    "evalReturn": ("environment", "(?!snake$).*"),
}
"""Metrics that are reported only where a parameter has certain values: a pattern that all of such a value matches."""

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "tiny": {
        "cartpole": {
            "environment_steps": 500_000,
            "environments": 128,
            "horizon": 64,
            "epochs": 4,
            "minibatches": 4,
            "gamma": 0.98,
            "gae_lambda": 0.95,
            "entropy_coefficient": 0.01,
            "lr": 3e-3,
            "lr_final": 0.0,
            "model": "mlp",
            "width": 64,
            "layers": 2,
            "eval_episodes": 100,
            "eval_every": 15,
        },
        "snake": {
            "environment_steps": 150_000,
            "environments": 128,
            "horizon": 32,
            "epochs": 2,
            "minibatches": 8,
            "gamma": 0.98,
            "gae_lambda": 0.95,
            "entropy_coefficient": 0.01,
            "lr": 1e-3,
            "lr_final": 0.0,
            "model": "mlp",
            "width": 128,
            "layers": 2,
            "grid": 12,
            "agents": 4,
            "food": 4,
            "view": 7,
            "eval_episodes": 100,
            "eval_every": 20,
        },
        "bandit": {
            "environment_steps": 16_384,
            "environments": 64,
            "horizon": 16,
            "epochs": 2,
            "minibatches": 2,
            "gamma": 0.9,
            "gae_lambda": 0.9,
            "entropy_coefficient": 0.0,
            "lr": 1e-2,
            "lr_final": 1e-3,
            "model": "mlp",
            "width": 16,
            "layers": 1,
            "arms": 4,
            "eval_episodes": 100,
            "eval_every": 8,
        },
    },
}
PRESETS["large"] = {
    "cartpole": PRESETS["tiny"]["cartpole"]
    | {"environment_steps": 50_000_000, "environments": 16_384, "horizon": 32, "lr": 5e-3},
    "snake": PRESETS["tiny"]["snake"]
    | {
        "environment_steps": 100_000_000,
        "environments": 4096,
        "grid": 20,
        "view": 20,
        "model": "cnn",
        "width": 64,
        "layers": 1,
    },
    "bandit": PRESETS["tiny"]["bandit"] | {"environment_steps": 4_194_304, "environments": 16_384},
}

_PENDULUM = {
    "environment_steps": 200_000,
    "environments": 16,
    "horizon": 128,
    "epochs": 10,
    "minibatches": 8,
    "gamma": 0.9,
    "gae_lambda": 0.95,
    "entropy_coefficient": 0.0,
    "lr": 1e-3,
    "lr_final": 0.0,
    "model": "mlp",
    "width": 64,
    "layers": 2,
    "eval_episodes": 100,
    "eval_every": 20,
    "normalize_observations": True,
    "normalize_rewards": True,
}
PRESETS["tiny"]["Pendulum-v1"] = PRESETS["large"]["Pendulum-v1"] = _PENDULUM
# Of CleanRL's ppo_continuous_action.py, but for the number of evaluations.
CONTINUOUS: dict[str, Any] = {
    "environment_steps": 1_000_000,
    "environments": 1,
    "horizon": 2048,
    "epochs": 10,
    "minibatches": 32,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "entropy_coefficient": 0.0,
    "lr": 3e-4,
    "lr_final": 0.0,
    "model": "mlp",
    "width": 64,
    "layers": 2,
    "eval_episodes": 10,
    "eval_every": 50,
    "value_clip": 0.2,
    "normalize_observations": True,
    "normalize_rewards": True,
}

# Fields that only one environment has.
_OWN = {"grid": "snake", "agents": "snake", "food": "snake", "view": "snake", "arms": "bandit"}
# Fields of environments of gymnasium: name in a job, and its value without effect.
GYMNASIUM_ONLY = {"environment_workers": ("environmentWorkers", 0), "frame_stack": ("frameStack", 1)}
GYMNASIUM_ONLY |= {"action_bounds": ("actionBounds", "clip")}


_SEES = {"cnn": "a grid", "nature": "pictures"}


def is_ours(environment: str) -> bool:
    """Return whether an environment is one of this package."""
    return environment in OURS


def is_class(environment: str) -> bool:
    """Return whether an environment is named as MODULE:CLASS."""
    return re.fullmatch(_CLASS, environment) is not None


def resolve_params(raw: dict[str, Any], parallelism: Parallelism) -> Settings:
    """Check the `params` of a config, fill in the preset, and check what fields require of each other.

    Raises:
        ConfigError: naming the field, the value and what is expected, or fields that contradict each other.
    """
    params = read(raw, Params)
    values = given(params)
    if not (is_ours(params.environment) or re.fullmatch(f"{_CLASS}|{_ID}", params.environment)):
        raise ConfigError(
            f"trainer.params.environment: {params.environment!r} is none of {', '.join(OURS)}; use one of them, the id "
            "of a gymnasium environment with its version (Acrobot-v1), or MODULE:CLASS"
        )
    if params.max_episode_steps is not None and is_ours(params.environment):
        raise ConfigError(
            f"trainer.params.maxEpisodeSteps: {params.max_episode_steps}, but {params.environment} has a limit of its "
            "own; remove it"
        )
    for name, owner in _OWN.items():
        if name in values and params.environment != owner:
            raise ConfigError(f"trainer.params.{name}: is of environment {owner}, not {params.environment}; remove it")
    for name, (field, without) in GYMNASIUM_ONLY.items():
        if is_ours(params.environment) and values[name] != without:
            raise ConfigError(
                f"trainer.params.{field}: {values[name]}, but {params.environment} is no environment of gymnasium; "
                "remove it"
            )
    preset = _preset(params)
    if params.environment == "snake" and params.view is None:
        preset["view"] = min(preset["view"], values.get("grid", preset["grid"]))
    if parallelism.global_batch_size is not None:
        values["environments"] = parallelism.global_batch_size
    settings = msgspec.convert({**preset, **values, "compile": parallelism.compile}, Settings)
    _check(settings)
    return settings


def _preset(params: Params) -> dict[str, Any]:
    if params.preset == "continuous":
        if is_ours(params.environment):
            raise ConfigError(
                f"trainer.params.preset: continuous, but the actions of {params.environment} are choices; use tiny"
            )
        return dict(CONTINUOUS)
    presets = PRESETS[params.preset]
    return dict(presets.get(params.environment, presets["cartpole"]))


def _check(settings: Settings) -> None:
    at = "trainer.params"
    if settings.horizon % settings.minibatches:
        raise ConfigError(
            f"{at}.horizon: {settings.horizon} is not a multiple of minibatches ({settings.minibatches}); change one"
        )
    if not is_ours(settings.environment):
        return  # what it needs is known when it is made
    if settings.model == "nature" or (settings.model == "cnn" and settings.environment != "snake"):
        raise ConfigError(
            f"{at}.model: {settings.model} sees {_SEES[settings.model]}, and {settings.environment} has none; use mlp"
        )
    if settings.policies == "independent" and settings.agents == 1:
        raise ConfigError(f"{at}.policies: independent needs several agents, and there is 1; use shared")
    if settings.environment == "snake":
        if settings.view > settings.grid:
            raise ConfigError(f"{at}.view: {settings.view} is wider than grid ({settings.grid}); give at most that")
        if 4 * (settings.agents + settings.food) > settings.grid**2:
            raise ConfigError(
                f"{at}.grid: {settings.grid} x {settings.grid} cells are too few for {settings.agents} snakes and "
                f"{settings.food} pieces of food; give at least 4 cells for each"
            )
