"""What the checkpoints of an `lm` run are of."""

from typing import Any

from torchyard_trainers.lm.settings import PREFERENCES, Settings

# What samples depend on beyond the task.
_ROLLOUTS = ("minibatches", "iterations", "sft_steps")
_IDENTITY = {"sft": (), **dict.fromkeys(PREFERENCES, ("sft_steps",)), "grpo": (*_ROLLOUTS, "group"), "ppo": _ROLLOUTS}


def identity_of(settings: Settings) -> dict[str, str | int | float]:
    """Return what the checkpoints of a run are of."""
    origin = "model" if settings.pretrained is None else "pretrained"
    data = () if settings.reads_files else ("task", "length", "symbols")
    own = ["seed", "method", origin, *data, *_IDENTITY[settings.method]]
    own += ["add_tokens"] if settings.add_tokens else []
    own += ["tokenizer"] if settings.tokenizer is not None else []
    own += ["lora_rank", "lora_alpha"] if settings.lora_rank is not None else []
    own += [
        name for name in ("lora_dropout", "quantize", "modules_to_save", "freeze_vision") if getattr(settings, name)
    ]
    return {
        "trainer.name": "lm",
        **{f"trainer.params.{name}": _one(getattr(settings, name)) for name in own},
        "global batch (trainer.params.batch)": settings.batch,
    }


def _one(value: Any) -> str | int | float:
    return ", ".join(value) if isinstance(value, tuple) else value
