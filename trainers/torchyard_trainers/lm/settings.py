"""The settings of an `lm` run: its parameters with every preset value filled in."""

from typing import NamedTuple

from msgspec import Struct, field

from torchyard_trainers.core.schedules import Kind

PAIRED = ("dpo", "orpo", "simpo")
PREFERENCES = (*PAIRED, "kto")
REINFORCED = ("grpo", "ppo")
BUILT_IN_REWARDS = ("exact", "shaped")


class Reward(NamedTuple):
    """A reward by its name, and its weight in the sum."""

    name: str
    weight: float = 1.0


class Settings(Struct, frozen=True, kw_only=True):
    """Parameters with every preset value filled in."""

    method: str
    steps: int  # 0 until `with_steps`, if there are `epochs`
    epochs: float | None = None
    seed: int
    model: str
    pretrained: str | None = None
    tokenizer: str | None = None
    add_tokens: tuple[str, ...] = ()
    lora_rank: int | None = None
    lora_alpha: float = 0.0
    lora_dropout: float = 0.0
    lora_targets: tuple[str, ...] = ()
    quantize: str | None = None
    modules_to_save: tuple[str, ...] = ()
    export_dtype: str | None = None
    task: str
    length: int
    symbols: int
    data: tuple[str, ...] = ()
    data_weights: tuple[float, ...] = ()
    split: str | None = None
    validation: tuple[str, ...] = ()
    validation_split: str | None = None
    hold_out: float = 0.05
    format: str = "auto"
    fields: dict[str, str] = field(default_factory=dict)
    max_length: int = 1024
    max_length_is_default: bool = False
    truncation: str = "end"
    text_windows: bool = False
    train_on: str = "completions"
    bad_records: str = "fail"
    check_records: str | None = None
    template_arguments: dict[str, bool | int | float | str] = field(default_factory=dict)
    image_folder: str | None = None
    image_max_pixels: int | None = None
    freeze_vision: bool = False
    token_type: str = "uint16"  # noqa: S105
    packs: bool = False
    batch: int
    lr: float
    lr_final: float
    schedule: Kind
    warmup_steps: int
    warmup_is_default: bool = False
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
    rewards: tuple[Reward, ...] = (Reward("exact"),)
    reward_seconds: float = 60.0
    reward_workers: int = 1
    tools: tuple[str, ...] = ()
    tool_schemas: str = ""  # their descriptions, as JSON
    tool_seconds: float = 10.0
    tool_workers: int = 1
    max_turns: int = 8
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
    ratio_level: str = "token"
    mask_truncated: bool = False
    normalize_groups: bool = False
    kl_coefficient: float = 0.0
    gamma: float = 1.0
    gae_lambda: float = 1.0
    value_coefficient: float = 0.0
    value_lr_scale: float = 1.0
    beta: float = 0.0
    objective: str | None = None
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0
    target_margin: float = 0.0
    length_normalized: bool = False

    @property
    def reads_files(self) -> bool:
        """Whether samples are records of files, not those of a procedural task."""
        return bool(self.data or self.validation)

    @property
    def reward(self) -> str:
        """The names of all rewards."""
        return " + ".join(each.name for each in self.rewards)

    @property
    def needs_answer(self) -> bool:
        """Whether a reward compares with right answers."""
        return any(each.name in BUILT_IN_REWARDS for each in self.rewards)

    @property
    def evaluation_files(self) -> tuple[str, ...]:
        """Files that only evaluate; () if a part of `data` is held out."""
        return self.validation or (self.data if self.validation_split is not None else ())

    @property
    def steps_per_rollout(self) -> int:
        """Optimizer steps made with one rollout."""
        return self.minibatches * self.iterations

    @property
    def needs_reference(self) -> bool:
        """Whether the model after `sft_steps` is needed."""
        return self.method in ("dpo", "kto") or self.kl_coefficient > 0
