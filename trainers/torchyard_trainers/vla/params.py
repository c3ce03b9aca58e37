"""Resolves the parameters of the `vla` workload and checks what they require of each other. Imports no torch."""

from typing import Any

import msgspec

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.parameters import given, read
from torchyard_trainers.core.schedules import factor
from torchyard_trainers.vla.fields import Params
from torchyard_trainers.vla.presets import HEADS, PRESETS
from torchyard_trainers.vla.settings import Settings

METRICS = (
    "actLoss",
    "actLossUntrained",
    "actionError",
    "diffusionLoss",
    "diffusionLossUntrained",
    "episodeReturn",
    "episodes",
    "flowLoss",
    "flowLossUntrained",
    "kl",
    "maxReward",
    "policyLoss",
    "policyLossUntrained",
    "tokenAccuracy",
    "tokenLoss",
    "tokenLossUntrained",
    "successRate",
    "successRateUntrained",
    "successRateBlue",
    "successRateCyan",
    "successRateGreen",
    "successRateHigh",
    "successRateLow",
    "successRatePurple",
    "successRateRed",
    "successRateYellow",
    "validActions",
    "wrongObjectRate",
)
"""Metrics that this workload reports beside those of every workload, over all settings (`core.parameters.METRICS`)."""
METRICS_WITH = {
    **dict.fromkeys(("flowLoss", "flowLossUntrained"), ("head", "flow")),
    **dict.fromkeys(("actLoss", "actLossUntrained", "actionError", "kl"), ("head", "act")),
    **dict.fromkeys(("diffusionLoss", "diffusionLossUntrained"), ("head", "diffusion")),
    **dict.fromkeys(("tokenAccuracy", "tokenLoss", "tokenLossUntrained"), ("head", "tokens")),
}
"""Metrics that are reported only where a parameter has certain values: a pattern that all of such a value matches."""

_AT = "trainer.params"
# Fields that only some heads read.
_OF_HEADS = {
    "bins": ("tokens",),
    "kl_weight": ("act",),
    "pre_norm": ("act",),
    "action_loss": ("act",),
    "noise_steps": ("diffusion",),
    "denoising_steps": ("diffusion",),
    "prediction": ("diffusion",),
    "flow_steps": ("flow",),
    "draws": ("flow", "diffusion"),
    "expert_lr_scale": ("flow", "act", "diffusion"),
}
# Fields that only recordings read, those that only a closed loop in an environment reads, and those of LoRA.
_OF_DATA = (
    *("cameras", "fields", "image_deltas", "action_seconds", "augment", "workers"),
    *("delta_actions", "absolute_parts", "environment"),
)
_OF_ENVIRONMENT = ("environment_options", "max_episode_steps", "instruction")
_OF_LORA = ("lora_alpha", "lora_targets")
_OF_MODELS = (
    *("model", "pretrained", "tokenizer", "lora_rank", "lora_alpha", "lora_targets", *_OF_HEADS),
    *("freeze_vision", "freeze_language"),
)
# The U-Net halves the chunk twice.
CHUNK_OF_UNET = 4


def resolve_params(raw: dict[str, Any], parallelism: Parallelism) -> Settings:
    """Check the `params` of a config, fill in the preset, and check what fields require of each other.

    Raises:
        ConfigError: naming the field, the value and what is expected, or fields that contradict each other.
    """
    params = read(raw, Params)
    values = {**PRESETS[params.preset], **HEADS[params.preset].get(params.head, {}), **given(params)}
    values.pop("preset")
    if parallelism.global_batch_size is not None:
        values["batch"] = parallelism.global_batch_size
    values.setdefault("execute", values["chunk"])
    if params.warmup_steps is None:
        values["warmup_steps"] = min(values["warmup_steps"], values["steps"] // 10)
    if params.policy is not None:
        _check_policy(params)
        values |= {"head": "policy", "model": params.policy, "draws": 1}
    else:
        _check_head(params, values)
    if params.lora_rank is not None:
        values.setdefault("lora_alpha", 2.0 * params.lora_rank)
    settings = msgspec.convert(values, Settings)
    _check_data(params, settings)
    _check_environment(params, settings)
    _check(params, settings)
    return settings


def _check_head(params: Params, values: dict[str, Any]) -> None:
    """Check what a head requires of other fields."""
    head = params.head
    if head != "flow" and params.pretrained is None and "paligemma" not in values["model"]:
        raise ConfigError(f"{_AT}.head: {head}, but {values['model']} has an action expert; use model tiny-paligemma")
    for name, heads in _OF_HEADS.items():
        if _is_set(params, name) and head not in heads:
            raise ConfigError(
                f"{_AT}.{_named(name)}: {getattr(params, name)}, but head {head} has none; remove it or use head "
                f"{' or '.join(heads)}"
            )
    if head in ("tokens", "diffusion") and values["normalization"] not in ("min-max", "quantile"):
        raise ConfigError(
            f"{_AT}.normalization: {values['normalization']}, but actions of head {head} reach from -1 to 1; use "
            "min-max, or quantile, which clips 2 % of them"
        )
    if head == "tokens" and params.freeze_language:
        raise ConfigError(f"{_AT}.freezeLanguage: true, but head tokens is the language model; remove it")
    if head == "diffusion" and values["chunk"] % CHUNK_OF_UNET:
        raise ConfigError(
            f"{_AT}.chunk: {values['chunk']}, but the U-Net of head diffusion halves it twice; use a multiple of "
            f"{CHUNK_OF_UNET}"
        )
    steps, count = values.get("noise_steps", 100), values.get("denoising_steps", 10)
    if count > steps:
        raise ConfigError(
            f"{_AT}.denoisingSteps: {count}, but there are {steps} from an action to noise; lower it "
            f"or raise {_AT}.noiseSteps"
        )
    if params.lora_rank is None:
        for name in _OF_LORA:
            if _is_set(params, name):
                raise ConfigError(
                    f"{_AT}.{_named(name)}: {getattr(params, name)}, but there are no adapters; set {_AT}.loraRank or "
                    "remove it"
                )
    elif params.freeze_language:
        raise ConfigError(
            f"{_AT}.freezeLanguage: true, but {_AT}.loraRank: {params.lora_rank} trains adapters in it and freezes the "
            "rest; remove one"
        )


def _check_policy(params: Params) -> None:
    """Check that no field is set that a policy of the user's does not read."""
    for name in _OF_MODELS:
        if _is_set(params, name):
            raise ConfigError(
                f"{_AT}.{_named(name)}: {getattr(params, name)}, but {_AT}.policy {params.policy} has a model of its "
                "own; remove one"
            )
    if ":" not in str(params.policy):
        raise ConfigError(f"{_AT}.policy: {params.policy!r}, expected MODULE:CLASS, such as my_policy:Policy")


def _check_data(params: Params, settings: Settings) -> None:
    """Check what demonstrations require of other fields."""
    if params.data is not None and params.mixture:
        raise ConfigError(f"{_AT}.mixture: {', '.join(params.mixture)}, but {_AT}.data is {params.data}; remove one")
    if len(params.mixture) == 1:
        (folder,) = params.mixture
        raise ConfigError(f"{_AT}.mixture: has one dataset; set {_AT}.data: {folder} in its place")
    if not settings.recorded:
        for name in _OF_DATA:
            if _is_set(params, name):
                raise ConfigError(
                    f"{_AT}.{_named(name)}: {getattr(params, name)}, but the procedural tabletop has none; set data or "
                    "remove it"
                )
        if settings.normalization == "quantile":
            raise ConfigError(
                f"{_AT}.normalization: quantile, but the procedural tabletop has no outliers; use min-max"
            )
    elif params.objects is not None:
        raise ConfigError(f"{_AT}.objects: {params.objects}, but {_AT}.data has its own objects; remove it")
    for name in params.fields:
        if name not in ("state", "action"):
            raise ConfigError(f"{_AT}.fields: {name!r} is not a field of a frame; use state, action")
    if params.absolute_parts and not params.delta_actions:
        raise ConfigError(
            f"{_AT}.absoluteParts: {', '.join(params.absolute_parts)}, but all parts of an action are absolute; set "
            f"{_AT}.deltaActions: true or remove it"
        )


def _check_environment(params: Params, settings: Settings) -> None:
    """Check what episodes in an environment require of other fields."""
    if params.environment is None:
        for name in _OF_ENVIRONMENT:
            if _is_set(params, name):
                raise ConfigError(
                    f"{_AT}.{_named(name)}: {getattr(params, name)}, but there are no episodes in an environment; set "
                    f"{_AT}.environment or remove it"
                )
    elif settings.action_seconds is not None:
        raise ConfigError(
            f"{_AT}.environment: {params.environment} takes an action for each frame, but {_AT}.actionSeconds is "
            f"{settings.action_seconds}; remove one"
        )


def _check(params: Params, settings: Settings) -> None:
    if params.pretrained is not None and params.model is not None:
        raise ConfigError(f"{_AT}.model: {params.model}, but the geometry is that of {_AT}.pretrained; remove one")
    try:
        factor(settings.schedule, 0, settings.steps, warm_up=settings.warmup_steps)
    except ValueError as error:
        raise ConfigError(f"{_AT}.warmupSteps: {error}") from error
    if settings.execute > settings.chunk:
        raise ConfigError(f"{_AT}.execute: {settings.execute}, but a chunk has {settings.chunk} actions; lower it")


def _is_set(params: Params, name: str) -> bool:
    """Return whether a field has another value than its default."""
    place = Params.__struct_fields__.index(name)
    default = Params.__struct_defaults__[place - len(Params.__struct_fields__)]
    if hasattr(default, "factory"):
        default = default.factory()
    return bool(getattr(params, name) != default)


def _named(name: str) -> str:
    return Params.__struct_encode_fields__[Params.__struct_fields__.index(name)]
