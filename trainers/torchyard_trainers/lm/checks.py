"""Checks of the parameters of `lm`: what fields require of each other. Imports no torch."""

from pathlib import Path
from typing import Any

import msgspec

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.lm.fields import FIELDS, Params
from torchyard_trainers.lm.settings import PREFERENCES, REINFORCED, Settings

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


_LORA = ("lora_alpha", "lora_dropout", "lora_targets", "quantize", "modules_to_save")


# Fields of procedural tasks, and of data from files.
OF_TASK = ("task", "length", "symbols")


OF_FILES = (
    *("split", "validation_split", "data_weights", "hold_out", "format", "fields", "max_length", "truncation"),
    *("train_on", "bad_records", "check_records", "template_arguments", "token_type", "image_folder"),
    "image_max_pixels",
)


# Fields that a model does not depend on.
OF_TOOLS = ("tool_seconds", "tool_workers", "max_turns")


_OF_IMAGES = ("image_folder", "image_max_pixels", "freeze_vision")


def check_method(params: Params, chosen: dict[str, Any]) -> None:
    """Check that no field is set that only other methods have."""
    for name, methods in _OWN.items():
        if name in chosen and params.method not in methods:
            raise ConfigError(f"{named(name)}: is of method {' and '.join(methods)}, not {params.method}; remove it")


def check_model(params: Params, chosen: dict[str, Any]) -> None:
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
        raise ConfigError(f"trainer.params.loraRank: is not set, but {wire(ours[0])} is; set it, or remove it")
    if params.quantize is not None and params.pretrained is None:
        raise ConfigError(
            f"trainer.params.quantize: {params.quantize}, but pretrained is not set; set it, or remove one"
        )
    if params.quantize is not None and params.engine == "vllm":
        raise ConfigError(
            f"trainer.params.quantize: {params.quantize}, but engine vllm gets weights of 16 bits; use engine: torch"
        )


def check_files(params: Params, chosen: dict[str, Any], *, sets: int, budget: int | None) -> None:
    """Check what fields of data from files require of others; `sets` are mixed, `budget` tokens packed."""
    for each in msgspec.structs.fields(Params):
        if each.name in OF_TASK and chosen.get(each.name, each.default) != each.default:
            raise ConfigError(
                f"{named(each.name)}: {chosen[each.name]}, but samples are read from trainer.params.data; remove one"
            )
    for name in params.fields:
        if name not in FIELDS:
            raise ConfigError(f"trainer.params.fields: {name!r} is not a field of records; use {', '.join(FIELDS)}")
    if params.data_weights is not None and len(params.data_weights) != sets:
        raise ConfigError(
            f"{named('data_weights')}: {len(params.data_weights)} weights for {sets} sets of trainer.params.data; "
            "give one for each"
        )
    evaluates = next((name for name in ("validation", "validation_split") if getattr(params, name) is not None), None)
    if params.hold_out is not None and evaluates is not None:
        raise ConfigError(f"{named('hold_out')}: {params.hold_out}, but {named(evaluates)} is set; remove one")
    if params.split is not None and params.data is None:
        raise ConfigError(f"{named('split')}: {params.split}, but data is not set; use validationSplit")
    if params.train_on == "all" and params.method in ("kto", "orpo", "simpo"):
        raise ConfigError(
            f"{named('train_on')}: all, but {params.method} compares answers, of which prompts are no part; remove it"
        )
    if budget is not None and params.check_records == "background":
        raise ConfigError(
            f"{named('check_records')}: background, but parallelism.microBatchTokens: {budget} needs the lengths of "
            "all records before the first step; remove one"
        )
    if budget is not None and params.method != "sft":
        raise ConfigError(
            f"parallelism.microBatchTokens: {budget}, but only method sft packs samples, not {params.method}; set "
            "microBatchSize instead"
        )


def check_tools(params: Params, chosen: dict[str, Any]) -> None:
    """Check what fields of tools require of others."""
    if params.tools is None:
        for name in OF_TOOLS:
            if name in chosen:
                raise ConfigError(f"{named(name)}: {chosen[name]:g}, but trainer.params.tools is not set; set it")
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


def check_epochs(params: Params) -> None:
    """Check what `epochs` require of other fields."""
    if params.steps is not None:
        raise ConfigError(f"trainer.params.epochs: {params.epochs:g}, but steps is {params.steps}; remove one")
    if params.data is None:
        raise ConfigError(
            f"trainer.params.epochs: {params.epochs:g}, but the samples of a task have no end; set steps, or data"
        )


def check(settings: Settings) -> None:
    """Check what resolved parameters require of each other."""
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


def check_reads_text(settings: Settings) -> None:
    """Check the settings of a model that reads text only.

    Raises:
        ConfigError: a field of images is set.
    """
    for name in _OF_IMAGES:
        if value := getattr(settings, name):
            model = settings.pretrained or settings.model
            raise ConfigError(f"{named(name)}: {value}, but {model} reads text only; remove it, or name a Qwen2-VL")


def check_reads_images(settings: Settings, folder: Path) -> None:
    """Check the settings of a model that reads images.

    Raises:
        ConfigError: the method does not, there are no records, or samples are packed.
    """
    at = f"trainer.params.pretrained: {folder} reads images"
    if settings.method != "sft":
        raise ConfigError(f"{at}, and method {settings.method} has text only; use method: sft")
    if not settings.reads_files:
        raise ConfigError(f"{at}, and the task {settings.task} has none; set trainer.params.data")
    if settings.packs:
        raise ConfigError(
            f"parallelism.microBatchTokens: is set, but {folder} reads images, whose samples are not packed; set "
            "microBatchSize in its place"
        )


def named(name: str) -> str:
    """Return the path of a field in a job."""
    return f"trainer.params.{wire(name)}"


def wire(name: str) -> str:
    """Return the name of a field as jobs write it."""
    return Params.__struct_encode_fields__[Params.__struct_fields__.index(name)]
