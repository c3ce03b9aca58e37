"""Vision-language models of `transformers` as policies: geometry presets with random weights, the trained module."""

from pathlib import Path
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.kv_cache import hand_out_layers, reading, writing, written
from torchyard_trainers.core.model_config import build_of, one_line, read_config_json
from torchyard_trainers.core.vision_language import FAMILIES
from torchyard_trainers.rl.ppo import ValueHead
from torchyard_trainers.vlm.prompt import FIELD, Prompt
from torchyard_trainers.vlm.tower import Tower, granularity

TOKENIZER_SOURCE = "the published model, such as Qwen/Qwen2-VL-2B-Instruct"
HEAD_WIDTH = 256  # hidden units of an action head


def _text(width: int, inner: int, *, layers: int, heads: int, pairs: int, sections: list[int], **more: Any) -> Any:
    """Return a text config; `sections` of a head are rotated by time, row and column."""
    return {
        "vocab_size": 151_936,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": pairs,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": sections},
        **more,
    }


def _special(first: int) -> dict[str, Any]:
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    order = (0, 1, 3, 4)  # Qwen has a token of padding between
    return {name: first + place for name, place in zip(names, order, strict=True)} | {"tie_word_embeddings": True}


# 0.02 suits wide models; at this width, attention would be flat for hundreds of steps.
_TINY = {"initializer_range": 0.1, "vocab_size": 64, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
_TINY_VISION = {"depth": 1, "num_heads": 4, "patch_size": 8, "initializer_range": 0.1}
_TINY_TEXT = {"layers": 2, "heads": 4, "pairs": 2}
_PUBLISHED = _special(151_652)

# Preset -> `model_type`, and the arguments of its config.
PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "tiny-qwen2-vl": (
        "qwen2_vl",
        {
            "text_config": _text(64, 128, sections=[2, 3, 3], **_TINY_TEXT, **_TINY),
            "vision_config": {**_TINY_VISION, "embed_dim": 64, "hidden_size": 64, "mlp_ratio": 2},
            **_special(58),
        },
    ),
    "tiny-qwen2.5-vl": (
        "qwen2_5_vl",
        {
            "text_config": _text(64, 128, sections=[2, 3, 3], **_TINY_TEXT, **_TINY),
            "vision_config": {
                **_TINY_VISION,
                "depth": 2,
                "hidden_size": 64,
                "intermediate_size": 128,
                "out_hidden_size": 64,
                "window_size": 16,
                "fullatt_block_indexes": [1],
            },
            **_special(58),
        },
    ),
    "tiny-qwen3-vl": (
        "qwen3_vl",
        {
            "text_config": _text(64, 128, sections=[4, 2, 2], head_dim=16, **_TINY_TEXT, **_TINY),
            "vision_config": {
                **_TINY_VISION,
                "depth": 2,
                "hidden_size": 64,
                "intermediate_size": 128,
                "out_hidden_size": 64,
                "num_position_embeddings": 16,
                "deepstack_visual_indexes": [0],
            },
            **_special(58),
        },
    ),
    # The published geometries.
    "qwen2-vl-2b": (
        "qwen2_vl",
        {
            "text_config": _text(1536, 8960, layers=28, heads=12, pairs=2, sections=[16, 24, 24]),
            "vision_config": {"depth": 32, "embed_dim": 1280, "hidden_size": 1536, "num_heads": 16},
            **_PUBLISHED,
        },
    ),
    "qwen2.5-vl-3b": (
        "qwen2_5_vl",
        {
            "text_config": _text(2048, 11_008, layers=36, heads=16, pairs=2, sections=[16, 24, 24]),
            "vision_config": {
                "depth": 32,
                "hidden_size": 1280,
                "intermediate_size": 3420,
                "num_heads": 16,
                "out_hidden_size": 2048,
                "window_size": 112,
                "fullatt_block_indexes": [7, 15, 23, 31],
            },
            **_PUBLISHED,
        },
    ),
    "qwen3-vl-2b": (
        "qwen3_vl",
        {
            "text_config": _text(2048, 6144, layers=28, heads=16, pairs=8, sections=[24, 20, 20], head_dim=128),
            "vision_config": {
                "depth": 24,
                "hidden_size": 1024,
                "intermediate_size": 4096,
                "num_heads": 16,
                "out_hidden_size": 2048,
                "num_position_embeddings": 2304,
                "deepstack_visual_indexes": [5, 11, 17],
            },
            **_PUBLISHED,
        },
    ),
}
for _kind, _tree in PRESETS.values():
    if _kind == "qwen3_vl":
        _tree["text_config"]["rope_parameters"] |= {"mrope_interleaved": True, "rope_theta": 5e6}


class Answer(NamedTuple):
    """What a policy says about m images."""

    logits: Tensor  # [m, actions] float32, of the tokens of actions only
    value: Tensor  # [m] float32, expected discounted return
    features: Tensor  # [m, levels, tokens, hidden], what the language model saw


class ActionHead(nn.Module):
    """A perceptron with one hidden layer that chooses an action, in float32 and without dropout."""

    def __init__(self, width: int, actions: int) -> None:
        """Choose one of `actions` actions from hidden states of this width."""
        super().__init__()
        self.inner, self.out = nn.Linear(width, HEAD_WIDTH), nn.Linear(HEAD_WIDTH, actions)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits [m, actions] of hidden states [m, width]."""
        inner = F.gelu(F.linear(hidden, self.inner.weight.float(), self.inner.bias.float()))
        return F.linear(inner, self.out.weight.float(), self.out.bias.float())


class Policy(nn.Module):
    """A vision-language model that answers with an action, one token, and a value head.

    All uses go through `forward`: only there a sharded model gathers its parameters.
    """

    def __init__(
        self, vlm: Any, prompt: Prompt, size: int, *, batched: bool = True, head: str = "tokens", pool: str = "last"
    ) -> None:
        """Wrap a model of transformers.

        Args:
            vlm: one of `FAMILIES`.
            prompt: around the image.
            size: of images, in pixels.
            batched: see `Tower`.
            head: `tokens`, or `mlp` for a separate action head.
            pool: `last`, or `mean` of image and instruction.
        """
        super().__init__()
        self.vlm, self._mean = vlm, pool == "mean"
        width = vlm.config.text_config.hidden_size
        self.value_head = ValueHead(width)
        self.action_head = ActionHead(width, len(prompt.actions)) if head == "mlp" else None
        words = vlm.get_output_embeddings().weight
        if self.action_head is not None and words is not vlm.get_input_embeddings().weight:
            words.requires_grad_(requires_grad=False)  # no words are predicted
        self.tower = Tower(vlm.model.visual, size, batched=batched)
        side = self.tower.side // self.tower.merge
        self.register_buffer("before", torch.tensor(prompt.before), persistent=False)
        self.register_buffer("after", torch.tensor(prompt.after), persistent=False)
        self.register_buffer("actions", torch.tensor(prompt.actions), persistent=False)
        self.register_buffer("positions", _positions(len(prompt.before), side, len(prompt.after)), persistent=False)
        text = vlm.model.language_model
        hand_out_layers(text.layers)
        if hasattr(text, "_deepstack_process"):
            text._deepstack_process = MethodType(_add_level, text)  # noqa: SLF001 - the library looks at values

    @property
    def sees_alike(self) -> bool:
        """Whether the vision tower is frozen, so that features of a rollout hold for all its steps."""
        return not any(each.requires_grad for each in self.vlm.model.visual.parameters())

    @property
    def blocks(self) -> list[nn.Module]:
        """The units of sharding and recomputation."""
        return [*self.vlm.model.visual.blocks, *self.vlm.model.language_model.layers]

    def forward(self, images: Tensor | None, features: Tensor | None = None, *, shares: bool = True) -> Answer:
        """Answer to images.

        Args:
            images: [m, 3, S, S] in [0, 1]; may be None if there are features.
            features: of an earlier answer to the same images.
            shares: compute keys and values of the tokens before the image once for all images, not once for each.
        """
        visual, text = self.vlm.model.visual, self.vlm.model.language_model
        if features is None:
            features = self.tower(visual, images)
        many, first = len(features), len(self.before)
        embed = text.embed_tokens
        parts = [features[:, 0], embed(self.after).expand(many, -1, -1).to(features.dtype)]
        more: dict[str, Any] = {}
        if shares:
            cache = writing(len(text.layers))
            text(
                inputs_embeds=embed(self.before)[None], position_ids=self.positions[..., :first], past_key_values=cache
            )
            more["past_key_values"] = reading(written(cache))
        else:
            parts.insert(0, embed(self.before).expand(many, -1, -1).to(features.dtype))
        if features.shape[1] > 1:
            more["deepstack_visual_embeds"] = features[:, 1:].unbind(1)
            more["visual_pos_masks"] = 0 if shares else first  # where the image begins, see `_add_level`
        positions = self.positions[..., first:] if shares else self.positions
        every = text(
            inputs_embeds=torch.cat(parts, 1), position_ids=positions.expand(-1, many, -1), use_cache=False, **more
        ).last_hidden_state
        with torch.autocast(every.device.type, enabled=False):  # few numbers, and probabilities depend on them
            hidden = every[:, 0 if shares else first :].float().mean(1) if self._mean else every[:, -1].float()
            if self.action_head is None:
                logits = F.linear(hidden, self.vlm.get_output_embeddings().weight[self.actions].float())
            else:
                logits = self.action_head(hidden)
            value = F.linear(hidden, self.value_head.weight.float(), self.value_head.bias.float())
        return Answer(logits, value[:, 0], features)


def _add_level(_text: Any, hidden: Tensor, first: int, level: Tensor) -> Tensor:
    """Add a level of features to the hidden states of the image, which begins at `first`."""
    before, image, after = hidden.tensor_split((first, first + level.shape[1]), 1)
    return torch.cat([before, image + level.to(hidden.dtype), after], 1)


def _positions(before: int, side: int, after: int) -> Tensor:
    """Return the positions of all tokens in time, row and column, [3, 1, T]: those of the image form a square."""
    cells = torch.arange(side * side)
    image = torch.stack([torch.zeros_like(cells), cells // side, cells % side]) + before
    ends = torch.arange(after) + before + side
    return torch.cat([torch.arange(before).expand(3, -1), image, ends.expand(3, -1)], 1)[:, None]


def config_of(name: str, pretrained: Path | None) -> Any:
    """Return the config of a preset, or of a folder with a pretrained model.

    Raises:
        ConfigError: the folder has no config of such a model.
    """
    import transformers

    if pretrained is None:
        kind, arguments = PRESETS[name]
        return getattr(transformers, FAMILIES[kind][0])(**arguments)
    tree, at = read_config_json(pretrained, FIELD)
    kind = str(tree.get("model_type"))
    if kind not in FAMILIES:
        raise ConfigError(
            f"{at} has model_type {kind!r}, expected {', '.join(FAMILIES)}; name a folder of such a model"
        )
    if tree.get("quantization_config") is not None:
        raise ConfigError(f"{at} describes quantized weights; name a folder with float32, bfloat16 or float16 weights")
    try:
        return getattr(transformers, FAMILIES[kind][0]).from_dict(tree)
    except Exception as error:  # the classes of the families raise anything
        raise ConfigError(f"{at} is not a config of a model: {one_line(error)}") from error


def build_policy(config: Any, prompt: Prompt, size: int, *, head: str = "tokens", pool: str = "last") -> Policy:
    """Build a policy; its parameters have no memory inside `core.weights.parameters_on_meta`.

    Raises:
        ConfigError: sizes in the config contradict each other.
    """
    import transformers

    kind: Any = getattr(transformers, FAMILIES[config.model_type][1])

    def build() -> Any:
        return kind._from_config(config, attn_implementation="sdpa", dtype=torch.float32)  # noqa: SLF001

    vlm: Any = build_of(f"{FIELD}: its config.json", build)
    return Policy(vlm, prompt, size, head=head, pool=pool)


def check_size(config: Any, size: int) -> None:
    """Check that images of `size` pixels are whole blocks of patches.

    Raises:
        ConfigError: naming a size that fits.
    """
    step = granularity(config.vision_config)
    if size % step:
        fitting = max(step, round(size / step) * step)
        raise ConfigError(f"trainer.params.imageSize: {size} is not a multiple of {step}; use {fitting}")
