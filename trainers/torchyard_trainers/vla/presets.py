"""What the presets of `vla` fill in."""

from typing import Any

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

# What a head changes in a preset. Without several draws, smaller batches leave so much noise in a gradient that a
# policy learns to reach objects, but not which one the instruction names.
HEADS: dict[str, dict[str, dict[str, Any]]] = {
    "tiny": {
        "tokens": {"steps": 700, "batch": 256, "lr": 2e-3, "eval_every": 350, "draws": 1, "normalization": "min-max"},
        # With norms behind sums, or predicted noise, the tiny model does not learn even 64 demonstrations by heart.
        "act": {"draws": 1, "lr": 2e-3, "pre_norm": True, "action_loss": "l2"},
        "diffusion": {"lr": 2e-3, "prediction": "sample"},
    },
    "large": {
        "tokens": {"draws": 1, "normalization": "min-max"},
        "act": {"draws": 1},
        "diffusion": {"chunk": 16, "normalization": "min-max"},
    },
}
