"""Causal language models of `transformers`: geometry presets with random weights, and the module that is trained."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from torchyard_trainers.core.device import only_shapes
from torchyard_trainers.core.losses import (
    CHUNK_ON_GPU,
    IGNORE,
    Softmax,
    chunk_on,
    chunked_cross_entropy,
    linear_cross_entropy,
)
from torchyard_trainers.lm.data.seen import Seen
from torchyard_trainers.lm.document_attention import Documents, begin_pass
from torchyard_trainers.rl.ppo import ValueHead

_QWEN3 = {"head_dim": 128, "vocab_size": 151_936, "max_position_embeddings": 40_960, "rope_theta": 1e6}
_LLAMA3 = {"vocab_size": 128_256, "max_position_embeddings": 8192, "rope_theta": 5e5, "rms_norm_eps": 1e-5}
_TINY = {
    "vocab_size": 0,  # that of the character tokenizer
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    # With the usual 1e4, two of the eight frequencies of a head distinguish neighbouring positions: when a seed learns
    # the order of letters is then chance, from step 45 to step 80.
    "rope_theta": 100.0,
    "tie_word_embeddings": True,
    "initializer_range": 0.1,  # 0.02 suits wide models; at this width, learning then starts ten times later
    # The output layer is tied to the embedding. With smaller logits at first, seeds differ less in when they begin to
    # learn.
    "embedding_range": 0.05,
}


def _geometry(hidden: int, intermediate: int, layers: int, heads: int, key_value_heads: int = 8) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_value_heads,
    }


# Preset -> `model_type` of transformers, and the arguments of its configuration.
PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    "tiny-qwen3": ("qwen3", _TINY),
    "qwen3-0.6b": ("qwen3", {**_QWEN3, **_geometry(1024, 3072, 28, 16), "tie_word_embeddings": True}),
    "qwen3-1.7b": ("qwen3", {**_QWEN3, **_geometry(2048, 6144, 28, 16), "tie_word_embeddings": True}),
    "qwen3-8b": ("qwen3", {**_QWEN3, **_geometry(4096, 12_288, 36, 32)}),
    "llama3-8b": ("llama", {**_LLAMA3, **_geometry(4096, 14_336, 32, 32)}),
    "llama3-70b": ("llama", {**_LLAMA3, **_geometry(8192, 28_672, 80, 64)}),
    "qwen3-30b-a3b": (
        "qwen3_moe",
        {
            **_QWEN3,
            **_geometry(2048, 6144, 48, 32, 4),
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "norm_topk_prob": True,
        },
    ),
}


def limits_of(name: str, tokenizer: Any) -> tuple[int, int]:
    """Return the tokens that the model of a preset knows, and its positions."""
    geometry = PRESETS[name][1]
    return geometry["vocab_size"] or len(tokenizer), geometry["max_position_embeddings"]


@contextmanager
def one_sample_in_a_row() -> Iterator[None]:
    """Keep transformers from building a mask for packed samples inside a `with` block.

    It does so wherever positions are fake, and attention with a mask stores more than attention that is causal.
    """
    from transformers import masking_utils

    found = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda *_: None
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = found


class Scores(NamedTuple):
    """What a forward pass says about the labels, in the order of the flattened labels that are not `IGNORE`."""

    log_probability: Tensor  # [N] of each label
    entropy: Tensor  # [N] of the distribution that it was chosen from, without gradient
    value: Tensor  # [N] of the value head, 0 without one
    greedy: Tensor  # [N] whether the label is the most probable token


class LanguageModel(nn.Module):
    """A causal language model of `transformers`, and a value head if PPO needs one.

    All uses go through `forward`: only there a sharded model gathers its parameters.
    """

    def __init__(self, lm: Any, *, value_head: bool = False) -> None:
        """Wrap a `transformers` model."""
        super().__init__()
        self.lm, self.softmax = lm, Softmax()
        config = lm.config.get_text_config()
        self.value_head = ValueHead(config.hidden_size) if value_head else None
        self._scale, self._cap = _scale_of(config), getattr(config, "final_logit_softcapping", None)

    def forward(
        self,
        tokens: Tensor,
        labels: Tensor | None = None,
        *,
        scores: bool = False,
        temperature: float = 1.0,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
        documents: Sequence[int] | None = None,
        seen: Seen | None = None,
        states: bool = False,
        plain: bool = False,
    ) -> Tensor | Scores:
        """Return the logits [B, V] after the last token, or what the model says about `labels`.

        Args:
            tokens: [B, T]; padded on the right, no mask is needed.
            labels: [B, T], the token that follows each one, or `IGNORE`.
            scores: return `Scores` of the labels, not the sum of their cross-entropies.
            temperature: divides the logits of `Scores`.
            attention_mask: [B, S + T] over the tokens in the cache and those given; needed for padding on the left.
            position_ids: [B, T], where padding on the left shifts positions.
            cache: keys and values of the tokens before, extended in place.
            documents: tokens of each document of a packed row, in order.
            seen: images of a model that reads some; tokens stand for them.
            states: return the hidden states [B, T, d] of all tokens.
            plain: return the logits [B, T, V] of all tokens as transformers computes them twice, and as this class
                does: [3, B, T, V].
        """
        if plain:
            begin_pass(None)
            theirs: list[Tensor] = [self.lm(input_ids=tokens, use_cache=False).logits for _ in range(2)]
            own = self._logits(decoder_of(self.lm)(input_ids=tokens, use_cache=False).last_hidden_state)
            return torch.stack([each.float() for each in (*theirs, own)])
        begin_pass(None if documents is None else Documents(documents, tokens.device))
        # Transformers looks at the values of positions to find packed samples.
        alone = one_sample_in_a_row() if only_shapes() and position_ids is None else nullcontext()
        with alone:
            hidden = decoder_of(self.lm)(
                input_ids=tokens,
                attention_mask=attention_mask,
                position_ids=position_ids,
                past_key_values=cache,
                use_cache=cache is not None,
                **self._pixels(seen),
            ).last_hidden_state
        if seen is not None and not len(seen.grids):
            hidden = hidden + self._unused_tower(seen, hidden)
        if states:
            return hidden
        if labels is None:
            return self._logits(hidden[:, -1]).float()
        assert labels.shape == tokens.shape, f"{tuple(labels.shape)}, {tuple(tokens.shape)}"
        if not scores:
            return self._cross_entropy(hidden.flatten(0, 1), labels.flatten())
        # The labels of a forecast have values, as their number decides about most of the memory.
        with unset_fake_temporarily():
            labels = labels.flatten()
            chosen = (labels != IGNORE).nonzero()[:, 0]
            labels = labels[chosen]
        hidden = hidden.flatten(0, 1)[chosen]
        # No more than a chunk of logits exists, which a backward pass computes again.
        graded = torch.is_grad_enabled()
        classes = len(self.lm.get_output_embeddings().weight)
        size = max((CHUNK_ON_GPU if graded else chunk_on(hidden)) // classes, 1)
        if graded and len(labels) <= size:
            return self._scores(hidden, labels, temperature)
        act = partial(checkpoint, self._scores, use_reentrant=False, preserve_rng_state=False)
        parts: list[Scores] = [
            (act if graded else self._scores)(few, of_few, temperature)
            for few, of_few in zip(hidden.split(size), labels.split(size), strict=True)
        ]
        return Scores(*map(torch.cat, zip(*parts, strict=True)))

    def _pixels(self, seen: Seen | None) -> dict[str, Tensor]:
        if seen is None or not len(seen.grids):
            return {}
        return {"pixel_values": seen.pixels, "image_grid_thw": seen.grids}

    def _unused_tower(self, seen: Seen, hidden: Tensor) -> Tensor:
        """Return 0, with gradients of 0 for the vision tower: processes must all use it, and some have no images."""
        visual = vision_of(self.lm)
        side = visual.spatial_merge_size
        grid = seen.grids.new_tensor([[1, side, side]])
        blank = seen.pixels.new_zeros(side * side, seen.pixels.shape[1])
        features = decoder_of(self.lm).get_image_features(blank, grid)
        deeper = getattr(features, "deepstack_features", None) or ()  # of Qwen3-VL: those of each image, at each level
        parts = [*features.pooler_output, *(part for level in deeper for part in level)]
        return 0 * torch.cat(parts).sum().to(hidden.dtype)

    def _logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [..., V] of hidden states as the family of the model defines them."""
        logits: Tensor = self.lm.get_output_embeddings()(hidden)
        logits = logits * self._scale if self._scale != 1 else logits
        return logits if self._cap is None else self._cap * torch.tanh(logits / self._cap)

    def _cross_entropy(self, hidden: Tensor, labels: Tensor) -> Tensor:
        head, bias = self.lm.get_output_embeddings(), self.lm.get_output_embeddings().bias
        if self._cap is not None:
            return chunked_cross_entropy(self._logits, hidden, labels, classes=len(head.weight))
        if self._scale != 1:
            hidden, bias = hidden * self._scale, None if bias is None else bias * self._scale
        return linear_cross_entropy(hidden, head.weight, labels, bias, softmax=self.softmax)

    def _scores(self, hidden: Tensor, labels: Tensor, temperature: float) -> Scores:
        log_probabilities = F.log_softmax(self._logits(hidden).float() / temperature, -1)
        with torch.no_grad():
            entropy = -(log_probabilities.exp() * log_probabilities).sum(-1)
        log_probability = log_probabilities.gather(-1, labels[:, None])[:, 0]
        value = torch.zeros_like(entropy) if self.value_head is None else self.value_head(hidden)[:, 0].float()
        greedy = log_probabilities.argmax(-1) == labels
        return Scores(log_probability, entropy, value, greedy)


def decoder_of(lm: Any) -> Any:
    """Return the part of a model of transformers that computes hidden states."""
    # The class of Llama 4 names another part, which a model of text does not have.
    return lm.model if lm.base_model is lm else lm.base_model


def vision_of(lm: Any) -> Any:
    """Return the vision tower of a model of transformers; None: it reads text only."""
    return getattr(decoder_of(lm), "visual", None)


def decoder_layers(lm: Any) -> list[nn.Module]:
    """Return the layers of a model of transformers, those of its vision tower first; [] if they are not one list."""
    visual = vision_of(lm)
    if visual is not None:
        return [*visual.blocks, *decoder_of(lm).language_model.layers]
    count = lm.config.get_text_config().num_hidden_layers
    lists = (each for each in decoder_of(lm).modules() if isinstance(each, nn.ModuleList) and len(each) == count)
    return list(next(lists, ()))


def _scale_of(config: Any) -> float:
    """Return what a family multiplies logits with: Cohere by a factor, Granite and others by the inverse of one."""
    factor, divisor = getattr(config, "logit_scale", None), getattr(config, "logits_scaling", None)
    return float(factor or 1) / float(divisor or 1)


def build_model(name: str, tokenizer: Any, *, seed: int, value_head: bool = False) -> LanguageModel:
    """Build the model of a preset, with the same random weights in every process."""
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, arguments = PRESETS[name]
    geometry = {key: value for key, value in arguments.items() if key != "rope_theta"}
    vocabulary = geometry.pop("vocab_size") or len(tokenizer)
    embedding_range = geometry.pop("embedding_range", None)
    rope = {"rope_type": "default", "rope_theta": arguments.get("rope_theta", 1e4)}
    special = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    config = AutoConfig.for_model(kind, vocab_size=vocabulary, rope_parameters=rope, **geometry, **special)
    torch.manual_seed(seed)
    lm = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    if embedding_range is not None:
        with torch.no_grad():
            lm.get_input_embeddings().weight.mul_(embedding_range / config.initializer_range)
    return LanguageModel(lm, value_head=value_head)
