"""Resolves the parameters of the `lm` workload and checks what they require of each other. Imports no torch."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.parameters import given, read
from torchyard_trainers.core.schedules import factor
from torchyard_trainers.lm.fields import FIELDS, Params
from torchyard_trainers.lm.presets import PRESETS
from torchyard_trainers.lm.settings import PREFERENCES, REINFORCED, Settings

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

# Fields that only some methods have.
_OWN = {
    **dict.fromkeys(("sft_steps", "sft_lr"), (*PREFERENCES, *REINFORCED)),
    "group": ("grpo",),
    "normalize_groups": ("grpo",),
    **dict.fromkeys(("minibatches", "iterations", "rollout_batch", "clip", "clip_high", "loss_level"), REINFORCED),
    "mask_truncated": REINFORCED,
    **dict.fromkeys(("tools", "tool_seconds", "tool_workers", "max_turns"), ("grpo",)),
    "ratio_level": ("grpo",),
    **dict.fromkeys(("engine", "engine_cache_gib", "importance_cap", "kl_coefficient"), REINFORCED),
    **dict.fromkeys(("gamma", "gae_lambda", "value_coefficient", "value_lr_scale"), ("ppo",)),
    "beta": PREFERENCES,
    **dict.fromkeys(("length_normalized", "objective"), ("dpo",)),
    **dict.fromkeys(("desirable_weight", "undesirable_weight"), ("kto",)),
    "target_margin": ("simpo",),
    "lora_dropout": ("sft",),
}
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
    for name, methods in _OWN.items():
        if name in chosen and params.method not in methods:
            raise ConfigError(f"{_named(name)}: is of method {' and '.join(methods)}, not {params.method}; remove it")
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
    _check_model(params, chosen)
    for name in ("engine_cache_gib", "importance_cap"):
        if name in chosen and params.engine != "vllm":
            raise ConfigError(f"{_named(name)}: {chosen[name]:g}, but trainer.params.engine is not vllm; remove one")
    _check_tools(params, chosen)
    if params.lora_rank is not None:
        values.setdefault("lora_alpha", 2.0 * params.lora_rank)
    values["warmup_is_default"] = params.warmup_steps is None
    if params.epochs is not None:
        _check_epochs(params)
        values["steps"] = 0
    # The longest answer and the token that ends it.
    values.setdefault("max_new_tokens", values["length"] + 2)
    settings = msgspec.convert(values, Settings)
    _check(settings)
    return settings if settings.epochs is not None else _scheduled(settings)


def _check_tools(params: Params, chosen: dict[str, Any]) -> None:
    """Check what fields of tools require of others."""
    if params.tools is None:
        for name in _TOOLS:
            if name in chosen:
                raise ConfigError(f"{_named(name)}: {chosen[name]:g}, but trainer.params.tools is not set; set it")
        return
    if params.data is None and params.validation is None:
        raise ConfigError(
            f"trainer.params.tools: {params.tools[0]}, but the prompts of the task {params.task} are no conversations; "
            "set data with messages, or remove it"
        )
    if params.engine == "vllm":
        raise ConfigError("trainer.params.engine: vllm, but tools need the engine torch; remove one")
    for each in params.tools:
        module, _, function = each.partition(":")
        if module.endswith(".py"):
            raise ConfigError(f"trainer.params.tools: {each} names a file; write its module: {module[:-3]}:{function}")


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


_LORA = ("lora_alpha", "lora_dropout", "lora_targets", "quantize", "modules_to_save")
# Fields of procedural tasks, and of data from files.
_TASK = ("task", "length", "symbols")
_FILES = (
    *("split", "validation_split", "data_weights", "hold_out", "format", "fields", "max_length", "truncation"),
    *("train_on", "bad_records", "check_records", "template_arguments", "token_type"),
)
# Fields that a model does not depend on.
_TOOLS = ("tool_seconds", "tool_workers", "max_turns")
_DATA = ("data", "validation", *_FILES, "reward", "rewards", "eval_completions", "epochs", "tools", *_TOOLS)


def without_data(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `params` of a config without those of data, rewards and completions, whose files need not be here."""
    dropped = {_wire(name) for name in _DATA}
    return {name: value for name, value in raw.items() if name not in dropped}


def _named(name: str) -> str:
    """Return the path of a field in a job."""
    return f"trainer.params.{_wire(name)}"


def _wire(name: str) -> str:
    return Params.__struct_encode_fields__[Params.__struct_fields__.index(name)]


def _of_task(params: Params, chosen: dict[str, Any], values: dict[str, Any]) -> None:
    """Check the fields of a procedural task, and that none is set that needs files."""
    for name in _FILES:
        if name in chosen and chosen[name] not in ("auto", {}):
            raise ConfigError(f"{_named(name)}: is set, but the task {params.task} has no files; set data or remove it")
    if params.task == "arithmetic":
        if params.length is None:
            values["length"] = min(values["length"], DIGITS)
        elif params.length > DIGITS:
            raise ConfigError(f"trainer.params.length: {params.length}, but arithmetic has at most {DIGITS} digits")
        if params.symbols is not None:
            raise ConfigError(f"trainer.params.symbols: {params.symbols}, but arithmetic has digits; remove it")


def _of_files(params: Params, chosen: dict[str, Any], values: dict[str, Any], parallelism: Parallelism) -> None:
    """Check the fields of data from files, and fill in those that are not set."""
    _check_files(params, chosen, sets=len(params.data or ()), budget=parallelism.micro_batch_tokens)
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


def _check_files(params: Params, chosen: dict[str, Any], *, sets: int, budget: int | None) -> None:
    """Check what fields of data from files require of others; `sets` are mixed, `budget` tokens packed."""
    for each in msgspec.structs.fields(Params):
        if each.name in _TASK and chosen.get(each.name, each.default) != each.default:
            raise ConfigError(
                f"{_named(each.name)}: {chosen[each.name]}, but samples are read from trainer.params.data; remove one"
            )
    for name in params.fields:
        if name not in FIELDS:
            raise ConfigError(f"trainer.params.fields: {name!r} is not a field of records; use {', '.join(FIELDS)}")
    if params.data_weights is not None and len(params.data_weights) != sets:
        raise ConfigError(
            f"{_named('data_weights')}: {len(params.data_weights)} weights for {sets} sets of trainer.params.data; "
            "give one for each"
        )
    evaluates = next((name for name in ("validation", "validation_split") if getattr(params, name) is not None), None)
    if params.hold_out is not None and evaluates is not None:
        raise ConfigError(f"{_named('hold_out')}: {params.hold_out}, but {_named(evaluates)} is set; remove one")
    if params.split is not None and params.data is None:
        raise ConfigError(f"{_named('split')}: {params.split}, but data is not set; use validationSplit")
    if params.train_on == "all" and params.method in ("kto", "orpo", "simpo"):
        raise ConfigError(
            f"{_named('train_on')}: all, but {params.method} compares answers, of which prompts are no part; remove it"
        )
    if budget is not None and params.check_records == "background":
        raise ConfigError(
            f"{_named('check_records')}: background, but parallelism.microBatchTokens: {budget} needs the lengths of "
            "all records before the first step; remove one"
        )
    if budget is not None and params.method != "sft":
        raise ConfigError(
            f"parallelism.microBatchTokens: {budget}, but only method sft packs samples, not {params.method}; set "
            "microBatchSize instead"
        )


def _check_model(params: Params, chosen: dict[str, Any]) -> None:
    """Check what fields of the model, its tokens and its adapters require of each other."""
    if params.pretrained is not None and params.model is not None:
        raise ConfigError(
            f"trainer.params.model: {params.model}, but the geometry is that of trainer.params.pretrained; remove one"
        )
    if params.tokenizer is not None and params.pretrained is None:
        raise ConfigError(
            f"trainer.params.tokenizer: {params.tokenizer}, but models with random weights read characters; set "
            "pretrained or remove it"
        )
    if params.add_tokens is not None and params.pretrained is None:
        raise ConfigError(
            "trainer.params.addTokens: is set, but models with random weights read characters; set pretrained or "
            "remove it"
        )
    if params.add_tokens is not None and params.lora_rank is not None and params.modules_to_save is None:
        raise ConfigError(
            "trainer.params.addTokens: is set, but with loraRank their embeddings stay frozen; set modulesToSave: "
            "[embed_tokens, lm_head], or the names that the embedding and the output layer of the model have"
        )
    ours = [name for name in _LORA if name in chosen]
    if params.lora_rank is None and ours:
        raise ConfigError(f"trainer.params.loraRank: is not set, but {_wire(ours[0])} is; set it, or remove it")
    if params.quantize is not None and params.pretrained is None:
        raise ConfigError(
            f"trainer.params.quantize: {params.quantize}, but pretrained is not set; set it, or remove one"
        )
    if params.quantize is not None and params.engine == "vllm":
        raise ConfigError(
            f"trainer.params.quantize: {params.quantize}, but engine vllm gets weights of 16 bits; use engine: torch"
        )


def _check_epochs(params: Params) -> None:
    if params.steps is not None:
        raise ConfigError(f"trainer.params.epochs: {params.epochs:g}, but steps is {params.steps}; remove one")
    if params.data is None:
        raise ConfigError(
            f"trainer.params.epochs: {params.epochs:g}, but the samples of a task have no end; set steps, or data"
        )


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


def _check(settings: Settings) -> None:
    at = "trainer.params"
    for name, _ in settings.rewards:
        module, _, function = name.partition(":")
        if module.endswith(".py"):
            raise ConfigError(
                f"{at}.reward: {name} names a file; write its module: {module.removesuffix('.py')}:{function}"
            )
    if settings.objective is not None and settings.length_normalized:
        raise ConfigError(
            f"{at}.lengthNormalized: true, but objective {settings.objective} gets the numbers of tokens; remove one"
        )
    if settings.method == "kto" and settings.batch < 2:
        raise ConfigError(f"{at}.batch: 1, but kto compares with the answers of other samples of a step; raise it")
    if settings.batch % settings.group:
        raise ConfigError(
            f"{at}.batch: {settings.batch} completions are not groups of {settings.group}; give a multiple of group"
        )
    if settings.sft_steps % settings.steps_per_rollout:
        raise ConfigError(
            f"{at}.sftSteps: {settings.sft_steps} is not a multiple of the {settings.steps_per_rollout} steps of a "
            "rollout (minibatches x iterations); change one"
        )
