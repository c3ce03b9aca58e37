"""Presets of the `lm` workload, by method. Imports no torch."""

from typing import Any

_SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "model": "tiny-qwen3",
        "length": 4,
        "symbols": 8,
        "batch": 128,
        "lr_final": 0.0,
        "schedule": "linear",
        "warmup_steps": 10,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "eval_samples": 256,
        "eval_batch": 256,
        "eval_every": 100,
    },
    "large": {
        "model": "qwen3-0.6b",
        "length": 1000,
        "symbols": 26,
        "batch": 16,
        "lr": 1e-5,
        "lr_final": 0.0,
        "schedule": "linear",
        "warmup_steps": 50,
        "weight_decay": 0.01,
        "max_grad_norm": 1.0,
        "eval_samples": 64,
        "eval_batch": 64,
        "eval_every": 500,
    },
}
_ROLLOUTS = {"minibatches": 1, "iterations": 1, "clip": 0.2, "loss_level": "token", "kl_coefficient": 0.0}
_METHODS: dict[str, dict[str, Any]] = {
    "sft": {},
    "dpo": {"beta": 0.1, "length_normalized": False},
    "kto": {"beta": 0.1},
    "orpo": {"beta": 0.1},
    "simpo": {"beta": 2.0, "target_margin": 1.0},
    "grpo": _ROLLOUTS | {"group": 16, "ratio_level": "token", "normalize_groups": True},
    "ppo": _ROLLOUTS | {"gamma": 1.0, "gae_lambda": 0.95, "value_coefficient": 0.5},
}
# After 45 steps, half of the seeds do not know the order of the letters yet, and rewards do not teach it (When GRPO
# stalls, docs/language-models.md). After 55 steps they answer from a fifth of the prompts up, a few nearly all. DPO
# needs a better start, PPO also more steps: 2 of 16 and 1 of 20 that began with a quarter or less missed the goal.
_WARM = {"sft_steps": 55, "sft_lr": 3e-3, "schedule": "wsd"}
_TINY: dict[str, dict[str, Any]] = {
    "sft": {"steps": 300, "lr": 3e-3},
    "dpo": _WARM | {"steps": 160, "lr": 1e-3, "sft_steps": 80},
    "kto": _WARM | {"steps": 160, "lr": 1e-3, "sft_steps": 50},
    "simpo": _WARM | {"steps": 160, "lr": 1e-3, "sft_steps": 50},
    "orpo": {"steps": 300, "lr": 3e-3, "sft_lr": 3e-3},
    # 32 prompts in groups of 8 teach sooner than 16 in groups of 16.
    "grpo": _WARM | {"steps": 200, "lr": 1e-3, "batch": 256, "group": 8},
    # At a constant rate, ppo with seed 1 lost what it had learned.
    "ppo": _WARM | {"steps": 260, "lr": 1e-3, "batch": 256, "schedule": "linear", "sft_steps": 65},
}
_PREFERENCES: dict[str, Any] = {"steps": 1000, "sft_steps": 0, "sft_lr": 1e-5}
_LARGE: dict[str, dict[str, Any]] = {
    "sft": {"steps": 1000},
    "dpo": _PREFERENCES,
    "kto": _PREFERENCES,
    "orpo": _PREFERENCES,
    "simpo": _PREFERENCES,
    "grpo": {"steps": 1000, "sft_steps": 0, "sft_lr": 1e-5, "batch": 64, "length": 100},
    "ppo": {"steps": 1000, "sft_steps": 0, "sft_lr": 1e-5, "batch": 64, "length": 100},
}

# Preset -> method -> what it fills in.
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    preset: {method: _SIZES[preset] | _METHODS[method] | own for method, own in methods.items()}
    for preset, methods in {"tiny": _TINY, "large": _LARGE}.items()
}
