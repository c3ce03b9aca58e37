"""Parameters of the `lm` workload. Imports no torch: the operator's schema is made from this file."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.parameters import Count, Positive, Share, doc, given, read
from torchyard_trainers.core.schedules import Kind, factor
from torchyard_trainers.lm.presets import PRESETS

# The geometries of lm/models.py, which needs torch.
Geometry = Literal["tiny-qwen3", "qwen3-0.6b", "qwen3-1.7b", "qwen3-8b", "qwen3-30b-a3b", "llama3-8b", "llama3-70b"]
Rate = Annotated[float, Meta(ge=0, le=1)]
Location = Annotated[str, Meta(min_length=1, max_length=4096)]
# Fields of a record.
FIELDS = ("text", "messages", "prompt", "completion", "chosen", "rejected", "answer")


class Params(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """Fine-tuning of a causal language model of transformers. Fields that are not set come from the preset."""

    preset: Annotated[
        Literal["tiny", "large"],
        doc("Sizes to start from: tiny learns on a CPU in half a minute, large is for benchmarks on a GPU."),
    ] = "tiny"
    method: Annotated[
        Literal["sft", "dpo", "grpo", "ppo"],
        doc(
            "sft: supervised fine-tuning on right answers; dpo: preference of right answers to wrong ones; grpo and "
            "ppo: reinforcement learning on sampled completions, relative to their group or with a value head."
        ),
    ] = "sft"
    steps: Annotated[Count | None, doc("Optimizer steps, those of sftSteps included.")] = None
    sft_steps: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        doc("dpo, grpo, ppo: first steps, of supervised fine-tuning on the right answers."),
    ] = None
    sft_lr: Annotated[Rate | None, doc("dpo, grpo, ppo: learning rate of these steps.")] = None
    seed: Annotated[
        Annotated[int, Meta(ge=0, le=2**31 - 1)], doc("Seed of weights, samples and sampled completions.")
    ] = 1
    model: Annotated[
        Geometry | None, doc("Geometry of the model, with random weights and a tokenizer of characters.")
    ] = None
    pretrained: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096)] | None,
        doc(
            "Folder of a Hugging Face causal language model: config, safetensors, tokenizer and chat template; "
            "default: random weights."
        ),
    ] = None
    lora_rank: Annotated[
        Count | None, doc("Rank of LoRA adapters, which are trained in place of the model; default: train all weights.")
    ] = None
    lora_alpha: Annotated[
        Positive | None, doc("The product of both adapters is multiplied by loraAlpha / loraRank; default: 2 loraRank.")
    ] = None
    lora_targets: Annotated[
        list[str] | None,
        doc("Linear layers with adapters, such as q_proj; default: all but the output layer."),
    ] = None
    task: Annotated[
        Literal["reverse", "sort", "arithmetic"],
        doc("Procedural task: reverse or sort a sequence of letters, or add two numbers."),
    ] = "reverse"
    length: Annotated[
        Annotated[int, Meta(ge=1, le=4096)] | None, doc("Letters of a sequence; arithmetic: digits of a number, to 15.")
    ] = None
    symbols: Annotated[Annotated[int, Meta(ge=2, le=26)] | None, doc("Different letters of a sequence.")] = None
    data: Annotated[
        Annotated[list[Location], Meta(min_length=1, max_length=1000)] | None,
        doc(
            "Files of records (.jsonl, .parquet) or tokens (.bin, .npy): paths, URLs of fsspec, also with wildcards; "
            "each is a set. Default: the procedural task."
        ),
    ] = None
    data_weights: Annotated[
        list[Positive] | None,
        doc("data: share of each set in the samples, relative to the others; default: every record counts the same."),
    ] = None
    validation: Annotated[
        Annotated[list[Location], Meta(min_length=1, max_length=1000)] | None,
        doc("Files that only evaluate; default: a part of data. Without data, only mode eval is possible."),
    ] = None
    hold_out: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        doc("data: share of each set that only evaluates, if there is no validation; 0.05 by default."),
    ] = None
    format: Annotated[
        Literal["auto", "text", "prompt", "messages"],
        doc("data: what a record is, for records that could be several; auto: messages before prompt before text."),
    ] = "auto"
    fields: Annotated[
        dict[str, str],
        doc("data: names of the fields of a record where they differ, such as {prompt: question, answer: solution}."),
    ] = field(default_factory=dict)
    max_length: Annotated[
        Annotated[int, Meta(ge=2, le=2**20)] | None,
        doc(
            "data: longest sample, prompt and completion together, in tokens; 1024; grpo, ppo: longest prompt, 512; or "
            "what the positions of the model allow, if that is less."
        ),
    ] = None
    truncation: Annotated[
        Literal["end", "start", "none"] | None,
        doc("data: what a longer sample loses; none: it is a bad record. grpo, ppo: none by default, else end."),
    ] = None
    train_on: Annotated[
        Literal["completions", "last", "all"] | None,
        doc("data: tokens that count: completions and all turns of the assistant, its last turn only, or all tokens."),
    ] = None
    bad_records: Annotated[
        Literal["fail", "skip"] | None,
        doc("data: end the job with the place of a record that cannot be used, or skip and count such records."),
    ] = None
    token_type: Annotated[Literal["uint16", "uint32"] | None, doc("data: numbers of .bin files; uint16.")] = None
    batch: Annotated[
        Count | None, doc("Samples of an optimizer step over all ranks; parallelism.globalBatchSize overrides it.")
    ] = None
    lr: Annotated[Rate | None, doc("Learning rate after the warm-up.")] = None
    lr_final: Annotated[Rate | None, doc("Learning rate of the last step.")] = None
    schedule: Annotated[
        Kind | None, doc("Fall of the learning rate after the warm-up; wsd: only in the last fifth of the steps.")
    ] = None
    warmup_steps: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        doc("Steps over which the learning rate rises from 0; by default at most a tenth of all after sftSteps."),
    ] = None
    optimizer: Annotated[
        Literal["adamw", "adamw8bit", "muon"],
        doc(
            "adamw8bit: state of 8 bits, a quarter of the memory (needs torchao); muon: Muon for matrices, AdamW for "
            "embeddings, output layer and vectors."
        ),
    ] = "adamw"
    weight_decay: Annotated[Rate | None, doc("Weight decay; norms, biases and embeddings have none.")] = None
    max_grad_norm: Annotated[
        Annotated[float, Meta(gt=0)] | None, doc("Norm to which the gradient of a step is clipped.")
    ] = None
    ema: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        doc("Decay of a moving average of the weights, which is evaluated and exported; rollouts use the weights."),
    ] = None
    max_new_tokens: Annotated[Count | None, doc("Tokens of a completion; a longer one is cut off.")] = None
    temperature: Annotated[
        Annotated[float, Meta(gt=0, le=100)], doc("Divides the logits that completions are sampled from.")
    ] = 1.0
    top_p: Annotated[
        Annotated[float, Meta(gt=0, le=1)],
        doc("Sample from the most probable tokens that have this share; 1: from all."),
    ] = 1.0
    top_k: Annotated[Annotated[int, Meta(ge=0)], doc("Sample from this many most probable tokens; 0: from all.")] = 0
    stop: Annotated[
        Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(max_length=16)],
        doc("Texts that end a completion, beside its end token; they are no part of what is judged."),
    ] = field(default_factory=list)
    reward: Annotated[
        Annotated[str, Meta(pattern=r"^(exact|shaped|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$")],
        doc(
            "Of completions, in grpo, ppo and evaluations: exact: 1 for the right answer; shaped: also a part for each "
            "right character; or MODULE:FUNCTION(prompts, completions, rows), which returns a list of numbers."
        ),
    ] = "exact"
    reward_seconds: Annotated[Annotated[float, Meta(gt=0)], doc("Time limit of a call of MODULE:FUNCTION.")] = 60.0
    reward_workers: Annotated[
        Count, doc("Processes of each rank that call MODULE:FUNCTION, each with a part of the completions.")
    ] = 1
    group: Annotated[
        Annotated[int, Meta(ge=2)] | None,
        doc("grpo: completions of a prompt, which are compared; batch is a multiple."),
    ] = None
    minibatches: Annotated[
        Count | None, doc("grpo, ppo: optimizer steps that share the completions of a rollout, batch for each.")
    ] = None
    iterations: Annotated[Count | None, doc("grpo, ppo: passes over a rollout.")] = None
    rollout_batch: Annotated[
        Count | None, doc("grpo, ppo: completions that a rank generates at once; default: all of its rollout.")
    ] = None
    engine: Annotated[
        Literal["torch", "vllm"] | None,
        doc(
            "grpo, ppo: what generates the completions of rollouts. torch: the model in training itself, exactly; "
            "vllm: a copy of its weights in vLLM, which has to be installed."
        ),
    ] = None
    engine_cache_gib: Annotated[
        Positive | None,
        doc("engine vllm: memory of its keys and values on each rank in GiB; default: of a rolloutBatch, at most 8."),
    ] = None
    importance_cap: Annotated[
        Annotated[float, Meta(ge=1)] | None,
        doc("engine vllm: a token weighs as much more as training finds it more probable than vLLM, at most this; 2."),
    ] = None
    clip: Annotated[Positive | None, doc("grpo, ppo: the ratio of probabilities is clipped this far below 1.")] = None
    clip_high: Annotated[Positive | None, doc("grpo, ppo: and this far above 1.")] = None
    loss_level: Annotated[
        Literal["token", "sequence"] | None,
        doc("grpo, ppo: token: all tokens of a step count the same; sequence: all completions do."),
    ] = None
    normalize_groups: Annotated[bool | None, doc("grpo: divide rewards by the deviation of their group.")] = None
    kl_coefficient: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        doc("Weight of the divergence from the model after sftSteps; grpo: in the loss; ppo: in the reward."),
    ] = None
    gamma: Annotated[Share | None, doc("ppo: discount of a token.")] = None
    gae_lambda: Annotated[Share | None, doc("ppo: decay of generalised advantage estimation.")] = None
    value_coefficient: Annotated[Annotated[float, Meta(ge=0)] | None, doc("ppo: weight of the value loss.")] = None
    value_lr_scale: Annotated[
        Positive | None, doc("ppo: learning rate of the value head, relative to that of the model; 1.")
    ] = None
    beta: Annotated[Positive | None, doc("dpo: how strongly to keep to the model after sftSteps.")] = None
    length_normalized: Annotated[
        bool | None, doc("dpo: divide the log-probability of an answer by its number of tokens.")
    ] = None
    eval_samples: Annotated[Count | None, doc("Samples of the fixed evaluation set.")] = None
    eval_completions: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        doc(
            "Held-out prompts that an evaluation completes, once greedily and once sampled, and judges by reward; "
            "default: with data 16, grpo and ppo those of evalSamples, else 0."
        ),
    ] = None
    eval_batch: Annotated[Count | None, doc("Samples of one forward pass of an evaluation.")] = None
    eval_every: Annotated[Count | None, doc("Optimizer steps between evaluations.")] = None
    log_every: Annotated[Count, doc("Optimizer steps between two lines of output.")] = 20


class Settings(Struct, frozen=True, kw_only=True):
    """Parameters with every preset value filled in."""

    method: str
    steps: int
    seed: int
    model: str
    pretrained: str | None = None
    lora_rank: int | None = None
    lora_alpha: float = 0.0
    lora_targets: tuple[str, ...] = ()
    task: str
    length: int
    symbols: int
    data: tuple[str, ...] = ()
    data_weights: tuple[float, ...] = ()
    validation: tuple[str, ...] = ()
    hold_out: float = 0.05
    format: str = "auto"
    fields: dict[str, str] = field(default_factory=dict)
    max_length: int = 1024
    max_length_is_default: bool = False
    truncation: str = "end"
    train_on: str = "completions"
    bad_records: str = "fail"
    token_type: str = "uint16"  # noqa: S105
    packs: bool = False
    batch: int
    lr: float
    lr_final: float
    schedule: Kind
    warmup_steps: int
    weight_decay: float
    max_grad_norm: float
    ema: float | None = None
    optimizer: str = "adamw"
    compile: bool = False
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    stop: tuple[str, ...] = ()
    eval_samples: int
    eval_completions: int = 0
    eval_batch: int
    eval_every: int
    log_every: int
    sft_steps: int = 0
    sft_lr: float = 0.0
    reward: str = "exact"
    reward_seconds: float = 60.0
    reward_workers: int = 1
    group: int = 1
    minibatches: int = 1
    iterations: int = 1
    rollout_batch: int = 0
    engine: str = "torch"
    engine_cache_gib: float | None = None
    importance_cap: float = 2.0
    clip: float = 0.0
    clip_high: float = 0.0
    loss_level: str = "token"
    normalize_groups: bool = False
    kl_coefficient: float = 0.0
    gamma: float = 1.0
    gae_lambda: float = 1.0
    value_coefficient: float = 0.0
    value_lr_scale: float = 1.0
    beta: float = 0.0
    length_normalized: bool = False

    @property
    def reads_files(self) -> bool:
        """Whether samples are records of files, not those of a procedural task."""
        return bool(self.data or self.validation)

    @property
    def steps_per_rollout(self) -> int:
        """Optimizer steps made with one rollout."""
        return self.minibatches * self.iterations

    @property
    def needs_reference(self) -> bool:
        """Whether the model after `sft_steps` is needed."""
        return self.method == "dpo" or self.kl_coefficient > 0


METRICS = (
    "approxKl",
    "chosenLogProbability",
    "clipFraction",
    "completionTokens",
    "degenerateGroups",
    "engineKl",
    "entropy",
    "evalLoss",
    "evalLossUntrained",
    "evalReward",
    "evalRewardSampled",
    "evalRewardUntrained",
    "exactMatch",
    "exactMatchSupervised",
    "exactMatchUntrained",
    "kl",
    "perplexity",
    "preferenceAccuracy",
    "reward",
    "rewardAccuracy",
    "rewardDeviation",
    "rewardMargin",
    "skippedRecords",
    "tokens",
    "truncatedFraction",
    "valueLoss",
)
"""Metrics that this workload reports beside those of every workload, over all settings (`core.parameters.METRICS`)."""
_ROLLOUTS = ("approxKl", "clipFraction", "engineKl", "entropy", "kl", "reward", "rewardDeviation", "truncatedFraction")
_PAIRS = ("chosenLogProbability", "preferenceAccuracy", "rewardAccuracy", "rewardMargin")
METRICS_WITH = {
    **dict.fromkeys(_ROLLOUTS, ("method", "grpo|ppo")),
    **dict.fromkeys(_PAIRS, ("method", "dpo")),
    "degenerateGroups": ("method", "grpo"),
    "valueLoss": ("method", "ppo"),
    "exactMatchSupervised": ("method", "dpo|grpo|ppo"),
}
"""Metrics that are reported only where a parameter has certain values: a pattern that all of such a value matches."""

_RL = ("grpo", "ppo")
# Fields that only some methods have.
_OWN = {
    "sft_steps": ("dpo", *_RL),
    "sft_lr": ("dpo", *_RL),
    "group": ("grpo",),
    "normalize_groups": ("grpo",),
    **dict.fromkeys(("minibatches", "iterations", "rollout_batch", "clip", "clip_high", "loss_level"), _RL),
    **dict.fromkeys(("engine", "engine_cache_gib", "importance_cap", "kl_coefficient"), _RL),
    **dict.fromkeys(("gamma", "gae_lambda", "value_coefficient", "value_lr_scale"), ("ppo",)),
    **dict.fromkeys(("beta", "length_normalized"), ("dpo",)),
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
    values["compile"] = parallelism.compile
    if parallelism.global_batch_size is not None:
        values["batch"] = parallelism.global_batch_size
    if params.data is not None or params.validation is not None:
        _of_files(params, chosen, values, parallelism)
    else:
        _of_task(params, chosen, values)
    if params.pretrained is not None and params.model is not None:
        raise ConfigError(
            f"trainer.params.model: {params.model}, but the geometry is that of trainer.params.pretrained; remove one"
        )
    if params.lora_rank is None and (params.lora_alpha is not None or params.lora_targets is not None):
        raise ConfigError(
            "trainer.params.loraRank: is not set, but loraAlpha or loraTargets is; set it, or remove them"
        )
    for name in ("engine_cache_gib", "importance_cap"):
        if name in chosen and params.engine != "vllm":
            raise ConfigError(f"{_named(name)}: {chosen[name]:g}, but trainer.params.engine is not vllm; remove one")
    if params.lora_rank is not None:
        values.setdefault("lora_alpha", 2.0 * params.lora_rank)
    if params.warmup_steps is None:
        values["warmup_steps"] = min(values["warmup_steps"], max(values["steps"] - values.get("sft_steps", 0), 0) // 10)
    # The longest answer and the token that ends it.
    values.setdefault("max_new_tokens", values["length"] + 2)
    settings = msgspec.convert(values, Settings)
    _check(settings)
    return settings


# Fields of procedural tasks, and of data from files.
_TASK = ("task", "length", "symbols")
_FILES = (
    *("data_weights", "hold_out", "format", "fields", "max_length", "truncation", "train_on", "bad_records"),
    "token_type",
)
# Fields that a model does not depend on.
_DATA = ("data", "validation", *_FILES, "reward", "eval_completions")


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
    reinforced = params.method in _RL
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
    if params.hold_out is not None and params.validation is not None:
        raise ConfigError(f"{_named('hold_out')}: {params.hold_out}, but trainer.params.validation is set; remove one")
    if budget is not None and params.method != "sft":
        raise ConfigError(
            f"parallelism.microBatchTokens: {budget}, but only method sft packs samples, not {params.method}; set "
            "microBatchSize instead"
        )


def _check(settings: Settings) -> None:
    at = "trainer.params"
    if settings.sft_steps and settings.sft_steps >= settings.steps:
        raise ConfigError(
            f"{at}.steps: {settings.steps}, and sftSteps {settings.sft_steps} of them leave none for "
            f"{settings.method}; raise it"
        )
    try:
        factor(settings.schedule, 0, settings.steps - settings.sft_steps, warm_up=settings.warmup_steps)
    except ValueError as error:
        raise ConfigError(f"{at}.warmupSteps: {error}") from error
    if settings.batch % settings.group:
        raise ConfigError(
            f"{at}.batch: {settings.batch} completions are not groups of {settings.group}; give a multiple of group"
        )
    if settings.sft_steps % settings.steps_per_rollout:
        raise ConfigError(
            f"{at}.sftSteps: {settings.sft_steps} is not a multiple of the {settings.steps_per_rollout} steps of a "
            "rollout (minibatches x iterations); change one"
        )
