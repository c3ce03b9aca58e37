"""Resolves the parameters of the `lm` workload and checks what they require of each other. Imports no torch."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.parameters import given, read
from torchyard_trainers.core.schedules import factor
from torchyard_trainers.lm.checks import (
    OF_FILES,
    OF_TOOLS,
    check,
    check_epochs,
    check_files,
    check_method,
    check_model,
    check_tools,
    named,
    wire,
)
from torchyard_trainers.lm.fields import Params
from torchyard_trainers.lm.presets import PRESETS
from torchyard_trainers.lm.settings import REINFORCED, Settings

METRICS = (
    "approxKl",
    "chosenLogProbability",
    "chosenReward",
    "clipFraction",
    "completionTokens",
    "degenerateGroups",
    "engineKl",
    "entropy",
    "evalLoss",
    "evalLossUntrained",
    "evalReward",
    "evalRewardAccuracy",
    "evalRewardMargin",
    "evalRewardSampled",
    "evalRewardUntrained",
    "exactMatch",
    "exactMatchSupervised",
    "exactMatchUntrained",
    "kl",
    "lostTokenFraction",
    "perplexity",
    "preferenceAccuracy",
    "rejectedReward",
    "reward",
    *(f"reward{number}" for number in range(1, 9)),
    "rewardAccuracy",
    "rewardDeviation",
    "rewardMargin",
    "skippedRecords",
    "tokens",
    "toolCalls",
    "toolFailures",
    "truncatedFraction",
    "truncatedRecords",
    "valueLoss",
)
"""Metrics that this workload reports beside those of every workload, over all settings (`core.parameters.METRICS`)."""
_ROLLOUTS = ("approxKl", "clipFraction", "engineKl", "entropy", "reward", "rewardDeviation", "truncatedFraction")
_SEVERAL = tuple(f"reward{number}" for number in range(1, 9))
_PREFERENCES = ("chosenLogProbability", "evalRewardAccuracy", "evalRewardMargin", "rewardAccuracy")
METRICS_WITH = {
    **dict.fromkeys((*_ROLLOUTS, *_SEVERAL), ("method", "grpo|ppo")),
    "kl": ("method", "grpo|kto|ppo"),
    **dict.fromkeys(_PREFERENCES, ("method", "dpo|kto|orpo|simpo")),
    **dict.fromkeys(("preferenceAccuracy", "rewardMargin"), ("method", "dpo|orpo|simpo")),
    **dict.fromkeys(("chosenReward", "rejectedReward"), ("method", "kto")),
    **dict.fromkeys(("degenerateGroups", "toolCalls", "toolFailures"), ("method", "grpo")),
    "valueLoss": ("method", "ppo"),
    "exactMatchSupervised": ("method", "dpo|grpo|kto|orpo|ppo|simpo"),
}
"""Metrics that are reported only where a parameter has certain values: a pattern that all of such a value matches."""

# Tokens of a completion of a prompt from a file.
MAX_NEW_TOKENS = 256
# Prompts from a file that an evaluation completes.
EVAL_COMPLETIONS = 16
# Records of a forward pass in evaluation: they are longer than samples of a procedural task.
EVAL_BATCH = 16
# Digits of a number that a random number of 53 bits can choose.
DIGITS = 15


def resolve_params(raw: dict[str, Any], parallelism: Parallelism) -> Settings:
    """Check the `params` of a config, fill in the preset, and check what fields require of each other.

    Raises:
        ConfigError: naming the field, the value and what is expected, or fields that contradict each other.
    """
    params = read(raw, Params)
    chosen = given(params)
    check_method(params, chosen)
    values = {**PRESETS[params.preset][params.method], **chosen}
    values.pop("preset")
    values["rewards"] = _rewards(params, values.pop("reward", Params().reward))
    values.setdefault("clip_high", values.get("clip", 0.0))
    values["compile"] = parallelism.compile
    if parallelism.global_batch_size is not None:
        values["batch"] = parallelism.global_batch_size
    if params.data is not None or params.validation is not None:
        _of_files(params, chosen, values, parallelism)
    else:
        _of_task(params, chosen, values)
    check_model(params, chosen)
    for name in ("engine_cache_gib", "importance_cap"):
        if name in chosen and params.engine != "vllm":
            raise ConfigError(f"{named(name)}: {chosen[name]:g}, but trainer.params.engine is not vllm; remove one")
    check_tools(params, chosen)
    if params.lora_rank is not None:
        values.setdefault("lora_alpha", 2.0 * params.lora_rank)
    values["warmup_is_default"] = params.warmup_steps is None
    if params.epochs is not None:
        check_epochs(params)
        values["steps"] = 0
    # The longest answer and the token that ends it.
    values.setdefault("max_new_tokens", values["length"] + 2)
    settings = msgspec.convert(values, Settings)
    check(settings)
    return settings if settings.epochs is not None else _scheduled(settings)


def _rewards(params: Params, alone: str) -> list[tuple[str, float]]:
    """Return names and weights of rewards; `alone` is the one where there are not several."""
    if params.rewards is None:
        return [(alone, 1.0)]
    if alone != Params().reward:
        raise ConfigError(f"trainer.params.reward: {alone}, but trainer.params.rewards are set; add it there")
    names = [each.reward for each in params.rewards]
    if twice := next((each for each in names if names.count(each) > 1), None):
        raise ConfigError(f"trainer.params.rewards: {twice} is there twice; add up its weights")
    if zero := next((each for each in params.rewards if each.weight == 0 or not math.isfinite(each.weight)), None):
        raise ConfigError(
            f"trainer.params.rewards: {zero.reward} has the weight {zero.weight:g}, expected a number that is not 0"
        )
    return [(each.reward, each.weight) for each in params.rewards]


def with_steps(settings: Settings, samples: int) -> Settings:
    """Return settings with the number of steps that `epochs` passes over samples take; others as they are.

    Args:
        settings: of a run on files.
        samples: that train; of grpo and ppo, prompts.

    Raises:
        ConfigError: the warm-up does not fit into the steps.
    """
    if settings.epochs is None:
        return settings
    together = settings.batch * settings.minibatches // settings.group  # samples of a step, or prompts of a rollout
    times = max(1, math.ceil(settings.epochs * samples / together - 1e-9))
    return _scheduled(msgspec.structs.replace(settings, steps=settings.sft_steps + times * settings.steps_per_rollout))


_DATA = ("data", "validation", *OF_FILES, "reward", "rewards", "eval_completions", "epochs", "tools", *OF_TOOLS)


def without_data(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `params` of a config without those of data, rewards and completions, whose files need not be here."""
    dropped = {wire(name) for name in _DATA}
    return {name: value for name, value in raw.items() if name not in dropped}


def _of_task(params: Params, chosen: dict[str, Any], values: dict[str, Any]) -> None:
    """Check the fields of a procedural task, and that none is set that needs files."""
    for name in OF_FILES:
        if name in chosen and chosen[name] not in ("auto", {}):
            raise ConfigError(f"{named(name)}: is set, but the task {params.task} has no files; set data or remove it")
    if params.task == "arithmetic":
        if params.length is None:
            values["length"] = min(values["length"], DIGITS)
        elif params.length > DIGITS:
            raise ConfigError(f"trainer.params.length: {params.length}, but arithmetic has at most {DIGITS} digits")
        if params.symbols is not None:
            raise ConfigError(f"trainer.params.symbols: {params.symbols}, but arithmetic has digits; remove it")


def _of_files(params: Params, chosen: dict[str, Any], values: dict[str, Any], parallelism: Parallelism) -> None:
    """Check the fields of data from files, and fill in those that are not set."""
    check_files(params, chosen, sets=len(params.data or ()), budget=parallelism.micro_batch_tokens)
    reinforced = params.method in REINFORCED
    values["text_windows"] = params.method == "sft" and params.truncation is None
    values.setdefault("truncation", "none" if reinforced else "end")
    values["max_length_is_default"] = params.max_length is None
    values.setdefault("max_length", 512 if reinforced else 1024)
    values.setdefault("max_new_tokens", MAX_NEW_TOKENS)
    values["packs"] = parallelism.micro_batch_tokens is not None
    if params.sft_steps is None:
        values["sft_steps"] = 0
    if params.eval_completions is None:
        values["eval_completions"] = values["eval_samples"] if reinforced else EVAL_COMPLETIONS
    if params.eval_batch is None:
        values["eval_batch"] = min(values["eval_batch"], EVAL_BATCH)


def _scheduled(settings: Settings) -> Settings:
    """Return settings whose warm-up suits the steps, after checking that all of them fit."""
    own = settings.steps - settings.sft_steps
    if settings.sft_steps and own <= 0:
        raise ConfigError(
            f"trainer.params.steps: {settings.steps}, and sftSteps {settings.sft_steps} of them leave none for "
            f"{settings.method}; raise it"
        )
    if settings.warmup_is_default:
        settings = msgspec.structs.replace(settings, warmup_steps=min(settings.warmup_steps, max(own, 0) // 10))
    try:
        factor(settings.schedule, 0, own, warm_up=settings.warmup_steps)
    except ValueError as error:
        raise ConfigError(f"trainer.params.warmupSteps: {error}") from error
    return settings
