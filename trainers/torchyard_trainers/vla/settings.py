"""The settings of a `vla` run: its parameters with every preset value filled in."""

from typing import Any, Literal

from msgspec import Struct, field


class Settings(Struct, frozen=True, kw_only=True):
    """Resolved parameters: every field has a value. The fields are those of `Params`."""

    steps: int
    seed: int
    data: str | None = None
    mixture: dict[str, float] = field(default_factory=dict)
    delta_actions: bool = False
    absolute_parts: list[str] = field(default_factory=list)
    environment: str | None = None
    environment_options: dict[str, Any] = field(default_factory=dict)
    max_episode_steps: int | None = None
    instruction: str | None = None
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
    policy: str | None = None
    lora_rank: int | None = None
    lora_alpha: float = 0.0
    lora_targets: list[str] = field(default_factory=list)
    head: str = "flow"
    kl_weight: float = 10.0
    pre_norm: bool = False
    action_loss: str = "l1"
    noise_steps: int = 100
    denoising_steps: int = 10
    prediction: str = "epsilon"
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

    @property
    def recorded(self) -> bool:
        """Whether the demonstrations are those of datasets, not of the procedural tabletop."""
        return self.data is not None or bool(self.mixture)
