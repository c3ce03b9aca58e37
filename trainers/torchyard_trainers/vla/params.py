"""Parameters of the `vla` workload. Imports no torch: the operator's schema is made from this file."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.parameters import Count, doc, given, read
from torchyard_trainers.core.schedules import factor

# The geometries of vla/models.py, which needs torch.
Geometry = Literal["tiny-pi0", "small-pi0", "pi0", "tiny-paligemma", "paligemma-3b"]
Rate = Annotated[float, Meta(ge=0, le=1)]


class Params(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """Behaviour cloning of a vision-language-action model. Fields that are not set come from the preset."""

    preset: Annotated[
        Literal["tiny", "large"],
        doc("Sizes to start from: tiny learns on a CPU in a minute, large is pi0 on GPUs."),
    ] = "tiny"
    steps: Annotated[Count | None, doc("Optimizer steps.")] = None
    seed: Annotated[
        Annotated[int, Meta(ge=0, le=2**31 - 1)], doc("Seed of weights, demonstrations, times and noise.")
    ] = 1
    model: Annotated[
        Geometry | None,
        doc(
            "Geometry of the model, with random weights: a vision-language model and an action expert (pi0), or a "
            "vision-language model with a head (paligemma)."
        ),
    ] = None
    pretrained: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096)] | None,
        doc(
            "Folder of a Hugging Face model of type pi0 or paligemma, or of an export hf of this workload; default: "
            "random weights."
        ),
    ] = None
    tokenizer: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096)] | None,
        doc("Folder with the tokenizer.json of the model; default: the folder of pretrained."),
    ] = None
    head: Annotated[
        Literal["flow", "tokens"],
        doc("flow: flow matching; tokens: paligemma answers with a token for each part of an action, all at once."),
    ] = "flow"
    bins: Annotated[
        Annotated[int, Meta(ge=2, le=4096)] | None,
        doc("head tokens: values that a part of an action can have, which are the last tokens of the vocabulary."),
    ] = None
    data: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096)] | None,
        doc("Folder of a LeRobot dataset, version 2.0, 2.1 or 3.0; default: demonstrations on a procedural tabletop."),
    ] = None
    cameras: Annotated[
        list[str], doc("data: features that are images, in the order in which the model sees them; []: all.")
    ] = field(default_factory=list)
    fields: Annotated[
        dict[str, str],
        doc(
            "data: names of the features that are the state of the robot and its action, where they are not "
            "observation.state and action, such as {state: state, action: actions}."
        ),
    ] = field(default_factory=dict)
    image_deltas: Annotated[
        Annotated[list[Annotated[float, Meta(ge=-3600, le=0)]], Meta(min_length=1, max_length=16)],
        doc("data: times of the images that the model sees of each camera, relative to now (seconds)."),
    ] = field(default_factory=lambda: [0.0])
    action_seconds: Annotated[
        Annotated[float, Meta(gt=0, le=3600)] | None,
        doc("data: time between two actions of a chunk (seconds); default: that of a frame."),
    ] = None
    hold_out: Annotated[
        Annotated[float, Meta(gt=0, lt=1)], doc("data: share of the episodes, the last ones, that only evaluate.")
    ] = 0.1
    augment: Annotated[
        Annotated[float, Meta(ge=0, le=1)],
        doc("data: largest change of brightness and contrast, and shift as a share of the image, in training."),
    ] = 0.0
    workers: Annotated[
        Annotated[int, Meta(ge=0, le=64)] | None,
        doc("data: processes of each rank that decode images; default: one for each core of the rank, at most 8."),
    ] = None
    objects: Annotated[
        Annotated[int, Meta(ge=2, le=6)] | None, doc("Objects on the table, of different colours; one is named.")
    ] = None
    chunk: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None, doc("Actions that the model predicts at once (steps).")
    ] = None
    draws: Annotated[
        Annotated[int, Meta(ge=1, le=64)] | None,
        doc("Times and noises for each demonstration of a step: images and instruction are read once for all of them."),
    ] = None
    normalization: Annotated[
        Literal["min-max", "quantile", "mean-std", "none"] | None,
        doc(
            "Scale state and actions by statistics of the demonstrations. min-max: to [-1, 1]; quantile: 98 % of the "
            "values to [-1, 1], so that a few outliers do not matter; mean-std: to mean 0 and standard deviation 1."
        ),
    ] = None
    batch: Annotated[
        Count | None, doc("Samples of an optimizer step over all ranks; parallelism.globalBatchSize overrides it.")
    ] = None
    lr: Annotated[Rate | None, doc("Learning rate after the warm-up.")] = None
    lr_final: Annotated[Rate | None, doc("Learning rate of the last step.")] = None
    schedule: Annotated[
        Literal["constant", "cosine", "linear", "wsd"] | None,
        doc("Fall of the learning rate after the warm-up; wsd: only in the last fifth of the steps."),
    ] = None
    warmup_steps: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        doc("Steps over which the learning rate rises from 0; by default at most a tenth of all steps."),
    ] = None
    expert_lr_scale: Annotated[
        Annotated[float, Meta(gt=0, le=1000)] | None,
        doc("Factor of the learning rate for the action expert and its projections."),
    ] = None
    weight_decay: Annotated[Rate | None, doc("Weight decay of AdamW; norms, biases and embeddings have none.")] = None
    max_grad_norm: Annotated[
        Annotated[float, Meta(gt=0)] | None, doc("Norm to which the gradient of a step is clipped.")
    ] = None
    ema: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        doc(
            "Decay of an exponential moving average of the weights, such as 0.999, which is then what is evaluated and "
            "exported; default: none."
        ),
    ] = None
    freeze_vision: Annotated[bool, doc("Do not train the vision tower.")] = False
    freeze_language: Annotated[bool, doc("Do not train the language model; the action expert still reads it.")] = False
    flow_steps: Annotated[
        Annotated[int, Meta(ge=1, le=1000)] | None, doc("Euler steps from noise to actions, in evaluation.")
    ] = None
    execute: Annotated[
        Count | None, doc("Actions of a chunk that are carried out before the model looks again; default: all.")
    ] = None
    eval_episodes: Annotated[Count | None, doc("Closed-loop episodes of an evaluation.")] = None
    eval_samples: Annotated[Count | None, doc("Held-out demonstrations that the flow loss is measured on.")] = None
    eval_batch: Annotated[Count | None, doc("Episodes or demonstrations that a rank evaluates at once.")] = None
    eval_every: Annotated[Count | None, doc("Optimizer steps between evaluations.")] = None
    log_every: Annotated[Count, doc("Optimizer steps between log lines.")] = 20


class Settings(Struct, frozen=True, kw_only=True):
    """Resolved parameters: every field has a value. The fields are those of `Params`."""

    steps: int
    seed: int
    data: str | None = None
    cameras: list[str] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)
    image_deltas: list[float] = field(default_factory=lambda: [0.0])
    action_seconds: float | None = None
    hold_out: float = 0.1
    augment: float = 0.0
    workers: int | None = None
    pretrained: str | None = None
    tokenizer: str | None = None
    model: str
    head: str = "flow"
    bins: int
    objects: int
    chunk: int
    draws: int
    normalization: str
    batch: int
    lr: float
    lr_final: float
    schedule: Literal["constant", "cosine", "linear", "wsd"]
    warmup_steps: int
    expert_lr_scale: float
    weight_decay: float
    max_grad_norm: float
    ema: float | None = None
    freeze_vision: bool
    freeze_language: bool
    flow_steps: int
    execute: int
    eval_episodes: int
    eval_samples: int
    eval_batch: int
    eval_every: int
    log_every: int


METRICS = (
    "episodes",
    "flowLoss",
    "flowLossUntrained",
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
    **dict.fromkeys(("tokenAccuracy", "tokenLoss", "tokenLossUntrained"), ("head", "tokens")),
}
"""Metrics that are reported only where a parameter has certain values: a pattern that all of such a value matches."""

# Preset -> what it fills in.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "steps": 1400,
        "model": "tiny-pi0",
        "bins": 32,
        "objects": 2,
        "chunk": 4,
        "draws": 4,
        "normalization": "min-max",
        "batch": 64,
        "lr": 3e-3,
        "lr_final": 0.0,
        "schedule": "wsd",
        "warmup_steps": 20,
        "expert_lr_scale": 1.0,
        "weight_decay": 1e-4,
        "max_grad_norm": 1.0,
        "flow_steps": 5,
        "eval_episodes": 128,
        "eval_samples": 512,
        "eval_batch": 128,
        "eval_every": 700,
    },
    "large": {
        "steps": 30_000,
        "model": "pi0",
        "bins": 256,
        "objects": 3,
        "chunk": 50,
        "draws": 1,
        "normalization": "mean-std",
        "batch": 256,
        "lr": 5e-5,
        "lr_final": 5e-6,
        "schedule": "cosine",
        "warmup_steps": 1000,
        "expert_lr_scale": 2.0,
        "weight_decay": 1e-4,
        "max_grad_norm": 1.0,
        "flow_steps": 10,
        "eval_episodes": 128,
        "eval_samples": 512,
        "eval_batch": 32,
        "eval_every": 1000,
    },
}


# What head tokens changes in a preset. Without several draws, smaller batches leave so much noise in a gradient that a
# policy learns to reach objects, but not which one the instruction names.
TOKENS: dict[str, dict[str, Any]] = {
    "tiny": {"steps": 700, "batch": 256, "lr": 2e-3, "eval_every": 350},
    "large": {},
}


def resolve_params(raw: dict[str, Any], parallelism: Parallelism) -> Settings:
    """Check the `params` of a config, fill in the preset, and check what fields require of each other.

    Raises:
        ConfigError: naming the field, the value and what is expected, or fields that contradict each other.
    """
    params = read(raw, Params)
    preset = PRESETS[params.preset] | (TOKENS[params.preset] if params.head == "tokens" else {})
    values = {**preset, **given(params)}
    values.pop("preset")
    if parallelism.global_batch_size is not None:
        values["batch"] = parallelism.global_batch_size
    values.setdefault("execute", values["chunk"])
    if params.warmup_steps is None:
        values["warmup_steps"] = min(values["warmup_steps"], values["steps"] // 10)
    if params.head == "tokens":
        _check_tokens(params, values)
        values |= {"draws": 1, "normalization": "min-max"}
    settings = msgspec.convert(values, Settings)
    _check(params, settings)
    return settings


def _check_tokens(params: Params, values: dict[str, Any]) -> None:
    """Check what action tokens require of other fields."""
    at = "trainer.params"
    if params.pretrained is None and "paligemma" not in values["model"]:
        raise ConfigError(f"{at}.head: tokens, but {values['model']} has an action expert; use model tiny-paligemma")
    for name, value in {
        "draws": params.draws,
        "flowSteps": params.flow_steps,
        "expertLrScale": params.expert_lr_scale,
    }.items():
        if value is not None:
            raise ConfigError(f"{at}.{name}: {value}, but head tokens has no flow; remove it or use head flow")
    if params.normalization not in (None, "min-max"):
        raise ConfigError(f"{at}.normalization: {params.normalization}, but bins reach from -1 to 1; use min-max")
    if params.freeze_language:
        raise ConfigError(f"{at}.freezeLanguage: true, but head tokens is the language model; remove it")


def _check(params: Params, settings: Settings) -> None:
    at = "trainer.params"
    if settings.data is None:
        defaults = {"cameras": [], "fields": {}, "image_deltas": [0.0], "action_seconds": None, "augment": 0.0}
        for name, default in {**defaults, "workers": None}.items():
            value = getattr(params, name)
            if value != default:
                encoded = Params.__struct_encode_fields__[Params.__struct_fields__.index(name)]
                raise ConfigError(
                    f"{at}.{encoded}: {value}, but the procedural tabletop has none; set data or remove it"
                )
    for name in params.fields:
        if name not in ("state", "action"):
            raise ConfigError(f"{at}.fields: {name!r} is not a field of a frame; use state, action")
    if params.bins is not None and settings.head != "tokens":
        raise ConfigError(
            f"{at}.bins: {params.bins}, but head {settings.head} has no tokens; set head: tokens or remove it"
        )
    if params.pretrained is not None and params.model is not None:
        raise ConfigError(f"{at}.model: {params.model}, but the geometry is that of {at}.pretrained; remove one")
    if settings.data is None and settings.normalization == "quantile":
        raise ConfigError(f"{at}.normalization: quantile, but the procedural tabletop has no outliers; use min-max")
    if settings.data is not None and params.objects is not None:
        raise ConfigError(f"{at}.objects: {params.objects}, but {at}.data has its own objects; remove it")
    try:
        factor(settings.schedule, 0, settings.steps, warm_up=settings.warmup_steps)
    except ValueError as error:
        raise ConfigError(f"{at}.warmupSteps: {error}") from error
    if settings.execute > settings.chunk:
        raise ConfigError(f"{at}.execute: {settings.execute}, but a chunk has {settings.chunk} actions; lower it")
