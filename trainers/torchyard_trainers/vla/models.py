"""Policies of `transformers`: geometry presets with random weights, and the module that is trained."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.kv_cache import KeysAndValues, hand_out_layers, reading, writing, written
from torchyard_trainers.core.model_config import build_of, one_line, read_config_json
from torchyard_trainers.vla.heads.act import ActPolicy
from torchyard_trainers.vla.heads.diffusion import DiffusionPolicy
from torchyard_trainers.vla.heads.flow import integrate
from torchyard_trainers.vla.observation import Observation
from torchyard_trainers.vla.paligemma import FlowPolicy, TokenPolicy, both_ways


def _geometry(
    vision: dict[str, Any], language: dict[str, Any], expert: dict[str, Any], *, vocabulary: int, spread: float = 0.02
) -> dict[str, Any]:
    """Return the arguments of PI0Config; `spread` is the standard deviation of initial weights."""
    text = {"model_type": "gemma", "vocab_size": vocabulary, "initializer_range": spread, **language}
    return {
        "vlm_config": {
            "model_type": "paligemma",
            "vision_config": {"model_type": "siglip_vision_model", "vision_use_head": False, **vision},
            "text_config": text,
            "projection_dim": language["hidden_size"],
            "image_token_id": vocabulary,
            "initializer_range": spread,
        },
        "dit_config": {"model_type": "gemma", "initializer_range": spread, **expert},
        "initializer_range": spread,
    }


def _vision(size: int, patch: int, width: int, inner: int, *, layers: int, heads: int) -> dict[str, Any]:
    return {
        "image_size": size,
        "patch_size": patch,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }


def _gemma(width: int, inner: int, *, layers: int, heads: int, head_dim: int) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 1,
        "head_dim": head_dim,
    }


# Preset -> arguments of PI0Config. Layers and heads of the expert attend to those of the language model.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny-pi0": {
        **_geometry(
            _vision(42, 14, 64, 128, layers=1, heads=4),
            _gemma(64, 128, layers=3, heads=4, head_dim=16),
            _gemma(64, 128, layers=3, heads=4, head_dim=16),
            vocabulary=64,
            spread=0.1,  # 0.02 suits wide models; at this width, attention would be flat for hundreds of steps
        ),
        "max_state_dim": 2,
        "max_action_dim": 2,
    },
    "small-pi0": _geometry(
        _vision(224, 16, 384, 1536, layers=12, heads=6),
        _gemma(768, 3072, layers=12, heads=6, head_dim=128),
        _gemma(384, 1536, layers=12, heads=6, head_dim=128),
        vocabulary=32_000,
    ),
    # The published pi0: PaliGemma-3B and an expert of 300M.
    "pi0": _geometry(
        _vision(224, 14, 1152, 4304, layers=27, heads=16),
        _gemma(2048, 16_384, layers=18, heads=8, head_dim=256),
        _gemma(1024, 4096, layers=18, heads=8, head_dim=256),
        vocabulary=257_152,
    ),
}


PALIGEMMAS: dict[str, dict[str, Any]] = {
    "tiny-paligemma": PRESETS["tiny-pi0"]["vlm_config"],
    "paligemma-3b": PRESETS["pi0"]["vlm_config"],
}


TOKENIZER_SOURCE = "google/paligemma-3b-pt-224 (pi0 has PaliGemma's)"
"""Where the tokenizer of such models is published."""

# Names of published files of pi0, which transformers also saves, and what they are called in the model.
_PARTS = r"^(model\.)?paligemma_with_expert\."
RENAMED = (
    (_PARTS + r"paligemma\.lm_head\.", "model.vlm.language_model.embed_tokens."),
    (_PARTS + r"gemma_expert\.lm_head\.", "model.dit.embed_tokens."),
    (_PARTS + r"gemma_expert\.model\.", "model.dit."),
    (_PARTS + r"paligemma\.model\.language_model\.model\.", "model.vlm.language_model."),
    (_PARTS + r"paligemma\.model\.vision_tower\.vision_model\.", "model.vlm.vision_tower."),
    (_PARTS + r"paligemma\.model\.", "model.vlm."),
    (r"^(model\.)?(state_proj|action_in_proj|action_time_mlp_in|action_time_mlp_out)\.", r"embed_action_time.\2."),
    (r"^model\.action_out_proj\.", "action_out_proj."),
)


class Policy(nn.Module):
    """A vision-language model and an action expert that attends to its keys and values.

    All uses go through `forward`: only there a sharded model gathers its parameters.
    """

    def __init__(self, pi0: Any) -> None:
        """Wrap `PI0ForConditionalGeneration`; parameters that never get a gradient are frozen.

        Of the last layer of the language model only keys and values are used and computed, and the expert embeds no
        tokens.
        """
        super().__init__()
        self.pi0 = pi0
        last = pi0.model.vlm.language_model.layers[-1]
        last.forward = partial(_write_keys_and_values, last)
        self.freeze_idle()
        for model in (pi0.model.vlm.language_model, pi0.model.dit):
            hand_out_layers(model.layers)

    @property
    def language(self) -> nn.Module:
        """The vision-language model, which may get adapters."""
        trunk: nn.Module = self.pi0.model.vlm
        return trunk

    def freeze_idle(self) -> None:
        """Freeze parameters that never get a gradient."""
        model = self.pi0.model
        last = model.vlm.language_model.layers[-1]
        idle = (last.self_attn.q_proj, last.self_attn.o_proj, last.mlp, last.post_attention_layernorm)
        for each in (*idle, model.vlm.language_model.norm, model.dit.embed_tokens):
            each.requires_grad_(requires_grad=False)

    @property
    def horizon(self) -> int:
        """Actions of a chunk."""
        return int(self.pi0.config.chunk_size)

    @property
    def action_size(self) -> int:
        """Parts of an action, of which the last ones may mean nothing."""
        return int(self.pi0.config.max_action_dim)

    def freeze(self, *, vision: bool, language: bool) -> None:
        """Freeze the vision tower, or the language model (with the projection of images into it)."""
        vlm = self.pi0.model.vlm
        parts = [
            *([vlm.vision_tower] if vision else []),
            *([vlm.language_model, vlm.multi_modal_projector] if language else []),
        ]
        for each in parts:
            each.requires_grad_(requires_grad=False)

    @property
    def blocks(self) -> list[nn.Module]:
        """The units of sharding and recomputation.

        The last layer of the language model is not one: nothing follows its output, which would announce to a sharded
        model that the layer's own backward pass begins.
        """
        model = self.pi0.model
        return [*model.vlm.vision_tower.encoder.layers, *model.vlm.language_model.layers[:-1], *model.dit.layers]

    def forward(
        self, seen: Observation, points: Tensor, time: Tensor | None = None, *, steps: int = 0, size: int = 0
    ) -> Tensor:
        """Return the velocity at points of the flow, or the actions that noise flows to; [m k, H, a] float32.

        Args:
            seen: of m episodes; its state has at most as many parts as the model takes.
            points: [m k, H, a], k in a row for each episode, which is read once; noise, if `time` is None.
            time: [m k] float32.
            steps: of the integration.
            size: parts of an action that mean something.
        """
        keys_and_values = self._read(seen)
        state, mask = self._padded(seen.state, self.pi0.config.max_state_dim), self._mask(seen)
        if (times := len(points) // len(state)) > 1:
            keys_and_values = [
                (k.repeat_interleave(times, 0), v.repeat_interleave(times, 0)) for k, v in keys_and_values
            ]
            state = state.repeat_interleave(times, 0)
            mask = mask.repeat_interleave(times, 0) if mask is not None else None

        def velocity(at: Tensor, when: Tensor) -> Tensor:
            embedded = self.pi0.embed_action_time(state, self._padded(at, self.pi0.config.max_action_dim), when)
            hidden = self.pi0.model(
                action_embeds=embedded, attention_mask=mask, past_key_values=reading(keys_and_values)
            ).last_hidden_state[:, -self.horizon :]
            found: Tensor = self.pi0.action_out_proj(hidden)
            return found.float()

        if time is not None:
            return velocity(points, time)[..., : points.shape[-1]]
        return integrate(lambda at, when: velocity(at, torch.full_like(at[:, 0, 0], when)), points, steps, size)

    def _read(self, seen: Observation) -> KeysAndValues:
        """Return keys and values of each layer for images and instruction."""
        model, config = self.pi0.model, self.pi0.config
        many, cameras = seen.images.shape[:2]
        tower = config.vlm_config.vision_config
        patches = cameras * (tower.image_size // tower.patch_size) ** 2
        images = seen.tokens.new_full((many, patches), config.vlm_config.image_token_id)
        shown = torch.ones(many, cameras, dtype=torch.bool, device=seen.images.device)
        embeds = model.embed_prefix(torch.cat([images, seen.tokens], 1), seen.images.to(self._dtype), shown)
        mask = self._mask(seen)
        length = torch.arange(embeds.shape[1], device=embeds.device)[None]
        cache = writing(len(model.vlm.language_model.layers))
        model.vlm(
            inputs_embeds=embeds,
            attention_mask=mask,
            position_ids=length if mask is None else mask.cumsum(-1) - 1,
            **both_ways(mask, embeds),
            past_key_values=cache,
            use_cache=True,
        )
        return written(cache)

    def _mask(self, seen: Observation) -> Tensor | None:
        """Return which tokens of images and instruction there are, [m, T]; None: all."""
        if seen.mask is None:
            return None
        tower = self.pi0.config.vlm_config.vision_config
        patches = seen.images.shape[1] * (tower.image_size // tower.patch_size) ** 2
        return torch.cat([seen.mask.new_ones(len(seen.mask), patches), seen.mask], 1).long()

    @property
    def _dtype(self) -> torch.dtype:
        """The type of weights, which sharded ones have only inside `forward`."""
        found: torch.dtype = self.pi0.action_out_proj.weight.dtype
        return found

    def _padded(self, values: Tensor, size: int) -> Tensor:
        return nn.functional.pad(values.to(self._dtype), (0, size - values.shape[-1]))


def _write_keys_and_values(
    layer: Any,
    hidden: Tensor,
    *,
    position_embeddings: tuple[Tensor, Tensor],
    past_key_values: Any,
    **_ignored: Any,
) -> Tensor:
    """Write keys and values of hidden states [m, T, h] into a cache, as `GemmaDecoderLayer.forward` does first."""
    from transformers.models.gemma.modeling_gemma import apply_rotary_pos_emb

    attention, normed = layer.self_attn, layer.input_layernorm(hidden)
    keys, values = (
        project(normed).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
        for project in (attention.k_proj, attention.v_proj)
    )
    _, keys = apply_rotary_pos_emb(keys[:, :0], keys, *position_embeddings)
    past_key_values.update(keys, values, attention.layer_idx)
    return hidden


def config_of(name: str, pretrained: Path | None, *, chunk: int) -> Any:
    """Return the `PI0Config` or `PaliGemmaConfig` of a preset, or of a folder with a pretrained model.

    Raises:
        ConfigError: the folder has no config of such a model.
    """
    from transformers import PaliGemmaConfig, PI0Config

    if pretrained is None:
        return (
            PaliGemmaConfig(**PALIGEMMAS[name]) if name in PALIGEMMAS else PI0Config(**PRESETS[name], chunk_size=chunk)
        )
    tree, at = read_config_json(pretrained, "trainer.params.pretrained")
    kinds: dict[Any, Any] = {"pi0": PI0Config, "paligemma": PaliGemmaConfig}
    kind = tree.get("model_type")
    if kind not in kinds:
        raise ConfigError(f"{at} has model_type {kind!r}, expected pi0 or paligemma; name a folder of such a model")
    try:
        config = kinds[kind].from_dict({**tree, "chunk_size": chunk} if kind == "pi0" else tree)
    except Exception as error:  # the classes of the families raise anything
        raise ConfigError(f"{at} is not a config of a model: {one_line(error)}") from error
    text = parts_of(config).text_config.model_type
    if text != "gemma":  # PaliGemma 2: its attention has no fused implementation in transformers
        raise ConfigError(f"{at} has a language model of type {text!r}, expected gemma; name a folder of PaliGemma 1")
    return config


def build_policy(
    config: Any,
    *,
    state: int = 0,
    action: int = 0,
    horizon: int = 0,
    bins: int | None = None,
    head: str = "flow",
    pre_norm: bool = False,
) -> Any:
    """Build a model; its parameters have no memory inside `core.weights.parameters_on_meta`.

    Args:
        config: of `config_of`; that of pi0 says all sizes.
        state: parts of the robot's state.
        action: parts of an action.
        horizon: actions of a chunk.
        bins: of action tokens; None: a head.
        head: flow, act or diffusion, of a PaliGemma.
        pre_norm: of head act.

    Raises:
        ConfigError: sizes in the config contradict each other.
    """
    from transformers import PaliGemmaForConditionalGeneration, PI0ForConditionalGeneration

    kind: Any = PI0ForConditionalGeneration if config.model_type == "pi0" else PaliGemmaForConditionalGeneration

    def build() -> Any:
        return kind._from_config(config, attn_implementation="sdpa", dtype=torch.float32)  # noqa: SLF001

    model: Any = build_of("trainer.params.pretrained: its config.json", build)
    if config.model_type == "pi0":
        return Policy(model)
    if bins is not None:
        return TokenPolicy(model, action=action, horizon=horizon, bins=bins)
    kinds: dict[str, Any] = {"flow": FlowPolicy, "diffusion": DiffusionPolicy}
    if head == "act":
        return ActPolicy(model, state=state, action=action, horizon=horizon, pre_norm=pre_norm)
    return kinds[head](model, state=state, action=action, horizon=horizon)


def parts_of(config: Any) -> Any:
    """Return the config of the vision-language model in a config of `config_of`."""
    return config.vlm_config if config.model_type == "pi0" else config
