"""The settings that a resumed run of `vla` must have as well."""

from collections.abc import Mapping

from torchyard_trainers.vla.settings import Settings

# Fields that runs of earlier versions do not record, and what those had. Left out here as well, such runs continue, and
# with the same order of samples, which follows from the identity.
_LATER = {"pre_norm": False, "action_loss": "l1", "prediction": "epsilon"}


def identity_of(settings: Settings) -> Mapping[str, str | int | float]:
    """Return the settings that decide what a run learns from which samples, by name."""
    own = ["seed", "chunk", "model" if settings.pretrained is None else "pretrained", "draws", "normalization"]
    own += {
        "tokens": ["head", "bins"],
        "act": ["head", "kl_weight"],
        "diffusion": ["head", "noise_steps"],
    }.get(settings.head, [])
    own += [name for name, value in _LATER.items() if getattr(settings, name) != value]
    own += ["hold_out", "augment"] if settings.recorded else ["objects"]
    own += ["delta_actions"] if settings.delta_actions else []
    own += ["lora_rank", "lora_alpha"] if settings.lora_rank is not None else []
    identity: dict[str, str | int | float] = {
        "trainer.name": "vla",
        **{f"trainer.params.{name}": getattr(settings, name) for name in own},
        "global batch (trainer.params.batch)": settings.batch,
        "seed": settings.seed,
    }
    if settings.recorded:
        views = [*settings.cameras, *map(str, settings.image_deltas), str(settings.action_seconds)]
        identity["cameras and times"] = " ".join(views)
    if settings.fields:
        names = ", ".join(f"{ours}: {name}" for ours, name in sorted(settings.fields.items()))
        identity["trainer.params.fields"] = names
    lists = {"absoluteParts": settings.absolute_parts, "loraTargets": settings.lora_targets}
    identity |= {f"trainer.params.{name}": " ".join(sorted(values)) for name, values in lists.items() if values}
    return identity
