"""Parameters of the `lm` workload. Imports no torch: the operator's schema is made from this file."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from torchyard_trainers.core.config import Parallelism
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.parameters import Count, doc, given, read

# The geometries of lm/models.py, which needs torch.
Geometry = Literal["tiny-qwen3", "qwen3-0.6b", "qwen3-1.7b", "qwen3-8b", "qwen3-30b-a3b", "llama3-8b", "llama3-70b"]
Rate = Annotated[float, Meta(ge=0, le=1)]


class Params(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """Fine-tuning of a causal language model of transformers. Fields that are not set come from the preset."""

    preset: Annotated[
        Literal["tiny", "large"],
        doc("Sizes to start from: tiny learns on a CPU in half a minute, large is for benchmarks on a GPU."),
    ] = "tiny"
    method: Annotated[Literal["sft"], doc("sft: supervised fine-tuning on the right answers.")] = "sft"
    steps: Annotated[Count | None, doc("Optimizer steps.")] = None
    seed: Annotated[
        Annotated[int, Meta(ge=0, le=2**31 - 1)], doc("Seed of weights, samples and sampled completions.")
    ] = 1
    model: Annotated[
        Geometry | None, doc("Geometry of the model, with random weights and a tokenizer of characters.")
    ] = None
    task: Annotated[
        Literal["reverse", "sort", "arithmetic"],
        doc("Procedural task: reverse or sort a sequence of letters, or add two numbers."),
    ] = "reverse"
    length: Annotated[
        Annotated[int, Meta(ge=1, le=4096)] | None, doc("Letters of a sequence; arithmetic: digits of a number, to 15.")
    ] = None
    symbols: Annotated[Annotated[int, Meta(ge=2, le=26)] | None, doc("Different letters of a sequence.")] = None
    batch: Annotated[
        Count | None, doc("Samples of an optimizer step over all ranks; parallelism.globalBatchSize overrides it.")
    ] = None
    lr: Annotated[Rate | None, doc("Learning rate after the warm-up.")] = None
    lr_final: Annotated[Rate | None, doc("Learning rate of the last step; linear in between.")] = None
    warmup_steps: Annotated[
        Annotated[int, Meta(ge=0)] | None, doc("Steps over which the learning rate rises from 0.")
    ] = None
    weight_decay: Annotated[Rate | None, doc("Weight decay of AdamW; norms, biases and embeddings have none.")] = None
    max_grad_norm: Annotated[
        Annotated[float, Meta(gt=0)] | None, doc("Norm to which the gradient of a step is clipped.")
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
    eval_samples: Annotated[Count | None, doc("Samples of the fixed evaluation set.")] = None
    eval_batch: Annotated[Count | None, doc("Samples of one forward pass of an evaluation.")] = None
    eval_every: Annotated[Count | None, doc("Optimizer steps between evaluations.")] = None
    log_every: Annotated[Count, doc("Optimizer steps between two lines of output.")] = 20


class Settings(Struct, frozen=True, kw_only=True):
    """Parameters with every preset value filled in."""

    method: str
    steps: int
    seed: int
    model: str
    task: str
    length: int
    symbols: int
    batch: int
    lr: float
    lr_final: float
    warmup_steps: int
    weight_decay: float
    max_grad_norm: float
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    eval_samples: int
    eval_batch: int
    eval_every: int
    log_every: int


PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "steps": 300,
        "model": "tiny-qwen3",
        "length": 4,
        "symbols": 8,
        "batch": 128,
        "lr": 3e-3,
        "lr_final": 0.0,
        "warmup_steps": 10,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "eval_samples": 256,
        "eval_batch": 256,
        "eval_every": 100,
    },
    "large": {
        "steps": 1000,
        "model": "qwen3-0.6b",
        "length": 1000,
        "symbols": 26,
        "batch": 16,
        "lr": 1e-5,
        "lr_final": 0.0,
        "warmup_steps": 50,
        "weight_decay": 0.01,
        "max_grad_norm": 1.0,
        "eval_samples": 64,
        "eval_batch": 64,
        "eval_every": 500,
    },
}
# Digits of a number that a random number of 53 bits can choose.
DIGITS = 15


def resolve_params(raw: dict[str, Any], parallelism: Parallelism) -> Settings:
    """Check the `params` of a config, fill in the preset, and check what fields require of each other.

    Raises:
        ConfigError: naming the field, the value and what is expected, or fields that contradict each other.
    """
    params = read(raw, Params)
    values = {**PRESETS[params.preset], **given(params)}
    values.pop("preset")
    if parallelism.global_batch_size is not None:
        values["batch"] = parallelism.global_batch_size
    if params.task == "arithmetic":
        if params.length is None:
            values["length"] = min(values["length"], DIGITS)
        elif params.length > DIGITS:
            raise ConfigError(f"trainer.params.length: {params.length}, but arithmetic has at most {DIGITS} digits")
        if params.symbols is not None:
            raise ConfigError(f"trainer.params.symbols: {params.symbols}, but arithmetic has digits; remove it")
    # The longest answer and the token that ends it.
    values.setdefault("max_new_tokens", values["length"] + 2)
    settings = msgspec.convert(values, Settings)
    if settings.warmup_steps > settings.steps:
        raise ConfigError(
            f"trainer.params.warmupSteps: {settings.warmup_steps}, but there are {settings.steps} steps; lower it"
        )
    return settings
