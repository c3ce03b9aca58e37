"""Parameters of the `vlm` workload. Imports no torch: the operator's schema is made from this file."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.parameters import Count, Positive, doc, given, read
from torchyard_trainers.rl import params as rl

# The geometries of vlm/models.py, which needs torch.
Geometry = Literal["tiny-qwen2-vl", "tiny-qwen2.5-vl", "tiny-qwen3-vl", "qwen2-vl-2b", "qwen2.5-vl-3b", "qwen3-vl-2b"]
Rate = Annotated[float, Meta(ge=0, le=1)]


class Params(rl.PpoParams, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """PPO fine-tuning of a vision-language model as a robot policy. Fields that are not set come from the preset."""

    preset: Annotated[
        Literal["tiny", "large"],
        doc(
            "Sizes to start from: tiny learns on a CPU in minutes, large adapts a model of 2 billion weights on a GPU."
        ),
    ] = "tiny"
    environment: Annotated[
        Annotated[str, Meta(pattern=r"^(tabletop|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$")],
        doc("tabletop, or MODULE:CLASS of an environment with images (see docs/vision-language-rl.md)."),
    ] = "tabletop"
    task: Annotated[
        Literal["reach", "grasp", "pick_place"] | None,
        doc("tabletop: be above the can, grasp it, or put it into the bin."),
    ] = None
    grid: Annotated[Annotated[int, Meta(ge=2, le=64)] | None, doc("tabletop: cells along a side.")] = None
    image_size: Annotated[
        Annotated[int, Meta(ge=8, le=4096)] | None,
        doc("Side of the camera's image (pixels), a multiple of the blocks of patches of the model."),
    ] = None
    model: Annotated[Geometry | None, doc("Geometry of the model, with random weights.")] = None
    pretrained: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096)] | None,
        doc("Folder of a Hugging Face model of type qwen2_vl, qwen2_5_vl or qwen3_vl; default: random weights."),
    ] = None
    tokenizer: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096)] | None,
        doc("Folder with the tokenizer.json of the model; default: the folder of pretrained."),
    ] = None
    lora_rank: Annotated[
        Annotated[int, Meta(ge=1, le=4096)] | None,
        doc("Rank of adapters; the model itself is frozen then. Default: that of the preset; tiny trains all weights."),
    ] = None
    lora_alpha: Annotated[
        Positive | None, doc("The product of both adapters is multiplied by loraAlpha / loraRank.")
    ] = None
    lora_targets: Annotated[
        list[str], doc("Names of the linear layers that get adapters; []: those of the attention of the text model.")
    ] = field(default_factory=list)
    full: Annotated[bool, doc("Train all weights, also with a preset that has adapters.")] = False
    head: Annotated[
        Literal["tokens", "mlp"],
        doc("What chooses an action. tokens: the logits of the words that name actions; mlp: a separate perceptron."),
    ] = "tokens"
    pool: Annotated[
        Literal["last", "mean"],
        doc("What action and value are read from: the last token, or the mean of the tokens of image and instruction."),
    ] = "last"
    freeze_vision: Annotated[
        bool, doc("Do not train the vision tower; each image is then seen once for all steps of a rollout.")
    ] = False
    prompt: Annotated[
        Literal["task", "chat"] | None,
        doc("task: only the instruction; chat: the chat template of Qwen with the names of the actions."),
    ] = None
    rollout_batch: Annotated[
        Count | None, doc("Environments of a rank that the policy looks at together; default: all of them.")
    ] = None
    lr: Annotated[
        Rate | None,
        doc("Learning rate after the warm-up; after cloneSteps preset tiny has 0.0002, which unlearns nothing."),
    ] = None
    lr_final: Annotated[Rate | None, doc("Learning rate of the last rollout; a straight line in between.")] = None
    warmup_rollouts: Annotated[
        Annotated[int, Meta(ge=0)] | None, doc("Rollouts over which the learning rate rises from 0.")
    ] = None
    value_lr_scale: Annotated[
        Annotated[float, Meta(gt=0, le=1000)] | None,
        doc("Factor of the learning rate for the value head, and for the one of head mlp."),
    ] = None
    weight_decay: Annotated[Rate, doc("Weight decay of AdamW; norms, biases and embeddings have none.")] = 0.0
    clone_steps: Annotated[
        Annotated[int, Meta(ge=0)],
        doc("Optimizer steps that clone the expert of the environment first, a multiple of the steps of a rollout."),
    ] = 0
    clone_lr: Annotated[Rate | None, doc("Learning rate of these steps.")] = None
    eval_batch: Annotated[Count | None, doc("Episodes that a rank plays at once.")] = None


class Settings(rl.PpoSettings, frozen=True, kw_only=True):
    """Resolved parameters: every field has a value. The fields are those of `Params`."""

    environment: str
    task: str
    grid: int
    image_size: int
    model: str
    pretrained: str | None = None
    tokenizer: str | None = None
    lora_rank: int | None = None
    lora_alpha: float = 16.0
    lora_targets: list[str] = field(default_factory=list)
    head: str = "tokens"
    pool: str = "last"
    freeze_vision: bool
    compile: bool = False  # parallelism.compile: rollouts by CUDA graphs
    prompt: str
    rollout_batch: int | None = None
    lr: float
    lr_final: float
    warmup_rollouts: int
    value_lr_scale: float
    weight_decay: float
    clone_steps: int
    clone_lr: float
    eval_batch: int

    @property
    def steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.clone_steps + self.rollouts * self.steps_per_rollout


METRICS = (
    *rl.METRICS,
    "envStepsPerSecond",
    "episodeLength",
    "expertAccuracy",
    "successRate",
    "successRateCloned",
    "successRateHigh",
    "successRateLow",
    "successRateSampled",
    "successRateSampledHigh",
    "successRateSampledLow",
    "successRateUntrained",
    "tokensPerSecond",
)
"""Metrics that this workload reports beside those of every workload, over all settings (`core.parameters.METRICS`)."""

# Preset -> what it fills in.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "task": "reach",
        "grid": 4,
        "image_size": 32,
        "model": "tiny-qwen2-vl",
        "prompt": "task",
        "environment_steps": 61_440,
        "environments": 256,
        "horizon": 8,
        "epochs": 2,
        "minibatches": 4,
        "gamma": 0.9,
        "gae_lambda": 0.9,
        "entropy_coefficient": 0.02,
        "lr": 3e-3,
        "lr_final": 0.0,
        "warmup_rollouts": 2,
        "value_lr_scale": 1.0,
        "clone_lr": 3e-3,
        "eval_episodes": 256,
        "eval_batch": 256,
        "eval_every": 10,
    },
    "large": {
        "task": "pick_place",
        "grid": 6,
        "image_size": 252,
        "model": "qwen2-vl-2b",
        "lora_rank": 16,
        "lora_alpha": 32.0,
        "prompt": "chat",
        "environment_steps": 1_000_000,
        "environments": 64,
        "horizon": 16,
        "epochs": 2,
        "minibatches": 8,
        "gamma": 0.95,
        "gae_lambda": 0.95,
        "entropy_coefficient": 0.01,
        "lr": 1e-4,
        "lr_final": 1e-5,
        "warmup_rollouts": 5,
        "value_lr_scale": 10.0,
        "clone_lr": 1e-4,
        "eval_episodes": 128,
        "eval_batch": 64,
        "eval_every": 50,
    },
}


# Preset -> its rate after cloning, where that for a policy that knows nothing would unlearn what was cloned.
CLONED_LR = {"tiny": 2e-4}


def resolve_params(raw: dict[str, Any], parallelism: Parallelism) -> Settings:
    """Check the `params` of a config, fill in the preset, and check what fields require of each other.

    Raises:
        ConfigError: naming the field, the value and what is expected, or fields that contradict each other.
    """
    params = read(raw, Params)
    at = "trainer.params"
    values = {**PRESETS[params.preset], **given(params)}
    if params.clone_steps and params.lr is None:
        values["lr"] = CLONED_LR.get(params.preset, values["lr"])
    full = values.pop("full")
    values.pop("preset")
    if full:
        if params.lora_rank is not None:
            raise ConfigError(f"{at}.full: true, but {at}.loraRank is {params.lora_rank}; remove one")
        values.pop("lora_rank", None)
    if parallelism.global_batch_size is not None:
        values["environments"] = parallelism.global_batch_size
    if params.warmup_rollouts is None:
        steps = values["environments"] * values["horizon"]
        values["warmup_rollouts"] = min(values["warmup_rollouts"], values["environment_steps"] // steps // 10)
    settings = msgspec.convert(values | {"compile": parallelism.compile}, Settings)
    _check(params, settings)
    return settings


def _check(params: Params, settings: Settings) -> None:
    at = "trainer.params"
    if settings.horizon % settings.minibatches:
        raise ConfigError(
            f"{at}.horizon: {settings.horizon} is not a multiple of minibatches ({settings.minibatches}); change one"
        )
    if settings.pool == "mean" and settings.head == "tokens":
        raise ConfigError(f"{at}.pool: mean, but head tokens reads the answer from the last token; set head: mlp")
    if params.pretrained is not None and params.model is not None:
        raise ConfigError(f"{at}.model: {params.model}, but the geometry is that of {at}.pretrained; remove one")
    if settings.lora_rank is None:
        for name, value in {"loraAlpha": params.lora_alpha, "loraTargets": params.lora_targets or None}.items():
            if value is not None:
                raise ConfigError(f"{at}.{name}: {value}, but there are no adapters; set {at}.loraRank or remove it")
    if settings.environment != "tabletop":
        for name, value in {"task": params.task, "grid": params.grid}.items():
            if value is not None:
                raise ConfigError(f"{at}.{name}: is of environment tabletop, not {settings.environment}; remove it")
    if settings.clone_steps % settings.steps_per_rollout:
        fitting = -(-settings.clone_steps // settings.steps_per_rollout) * settings.steps_per_rollout
        raise ConfigError(
            f"{at}.cloneSteps: {settings.clone_steps} is not a multiple of the {settings.steps_per_rollout} steps of a "
            f"rollout; use {fitting}"
        )
    if settings.warmup_rollouts > settings.rollouts:
        raise ConfigError(
            f"{at}.warmupRollouts: {settings.warmup_rollouts}, but there are {settings.rollouts} rollouts; lower it"
        )
