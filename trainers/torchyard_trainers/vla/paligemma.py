"""Policies with PaliGemma (a SigLIP vision tower and Gemma) as their backbone: with a flow head, or action tokens.

All uses of a policy go through `forward`: only there a sharded model gathers its parameters.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DynamicCache

from torchyard_trainers.vla.bins import middles, to_bins
from torchyard_trainers.vla.flow import integrate
from torchyard_trainers.vla.flow_head import FlowHead
from torchyard_trainers.vla.observation import Observation

# Names of published files, and of other versions of transformers, and what they are called in the model.
RENAMED = (
    (r"^language_model\.lm_head\.", "lm_head."),
    (r"^language_model\.model\.", "model.language_model."),
    (r"^(model\.)?vision_tower\.vision_model\.", "model.vision_tower."),
    (r"^vision_tower\.", "model.vision_tower."),
    (r"^multi_modal_projector\.", "model.multi_modal_projector."),
)


class Prefix(NamedTuple):
    """Images and instruction, as the language model reads them."""

    embeds: Tensor  # [m, T, h]
    mask: Tensor | None  # [m, T] bool; None: all count

    @property
    def positions(self) -> Tensor:
        """Return the positions of tokens, which begin at 1, [m, T] or [1, T]."""
        if self.mask is None:
            return torch.arange(1, self.embeds.shape[1] + 1, device=self.embeds.device)[None]
        return self.mask.cumsum(-1)


class _Policy(nn.Module):
    """A PaliGemma whose prefix is images of all cameras and an instruction."""

    def __init__(self, vlm: Any) -> None:
        super().__init__()
        self.vlm = vlm
        idle = [getattr(vlm.model.vision_tower, "head", None)]  # pools the image, which nothing uses
        for each in idle:
            if each is not None:
                each.requires_grad_(requires_grad=False)

    @property
    def blocks(self) -> list[nn.Module]:
        """The units of sharding and recomputation."""
        return [*self.vlm.model.vision_tower.encoder.layers, *self.vlm.model.language_model.layers]

    def freeze(self, *, vision: bool, language: bool) -> None:
        """Freeze the vision tower, or the language model (with the projection of images into it)."""
        model = self.vlm.model
        parts = [
            *([model.vision_tower] if vision else []),
            *([model.language_model, model.multi_modal_projector, self.vlm.lm_head] if language else []),
        ]
        for each in parts:
            each.requires_grad_(requires_grad=False)

    def _prefix(self, seen: Observation, more: Tensor | None = None) -> Prefix:
        """Return images and instruction, followed by tokens `more` [m, k]."""
        many = len(seen.images)
        embed = self.vlm.get_input_embeddings()
        pixels = seen.images.flatten(0, 1).to(embed.weight.dtype)
        images = self.vlm.model.get_image_features(pixels).pooler_output.unflatten(0, (many, -1)).flatten(1, 2)
        tokens = seen.tokens if more is None else torch.cat([seen.tokens, more], 1)
        words = embed(tokens)
        mask = seen.mask
        if mask is not None:
            ones = mask.new_ones
            extra = 0 if more is None else more.shape[1]
            mask = torch.cat([ones(many, images.shape[1]), mask, ones(many, extra)], 1)
        return Prefix(torch.cat([images.to(words.dtype), words], 1), mask)

    def _read(self, prefix: Prefix, suffix: Tensor | None = None, cache: Any = None) -> Tensor:
        """Return the last hidden states, [m, T, h].

        Args:
            prefix: whose tokens attend to each other in both directions.
            suffix: [m, k, h], embedded tokens that attend to what is before them.
            cache: gets keys and values.
        """
        embeds, mask, positions = prefix.embeds, prefix.mask, prefix.positions
        kinds = torch.zeros(embeds.shape[:2], dtype=torch.int64, device=embeds.device)
        if suffix is not None and suffix.shape[1]:
            many, length = suffix.shape[:2]
            embeds = torch.cat([embeds, suffix.to(embeds.dtype)], 1)
            mask = torch.cat([mask, mask.new_ones(many, length)], 1) if mask is not None else None
            positions = torch.cat([positions, positions[:, -1:] + torch.arange(1, length + 1, device=embeds.device)], 1)
            kinds = F.pad(kinds, (0, length), value=1)
        found: Tensor = self.vlm.model(
            inputs_embeds=embeds,
            attention_mask=mask.long() if mask is not None else None,
            position_ids=positions,
            token_type_ids=kinds,
            past_key_values=cache,
            use_cache=cache is not None,
        ).last_hidden_state
        return found


class FlowPolicy(_Policy):
    """PaliGemma with a flow head that attends to its last hidden states; see `models.Policy.forward`."""

    def __init__(self, vlm: Any, *, state: int, action: int, horizon: int) -> None:
        """Wrap `PaliGemmaForConditionalGeneration`; `state` and `action` are sizes, and `horizon` actions a chunk."""
        super().__init__(vlm)
        self.action_size, self.horizon = action, horizon
        self.head = FlowHead(vlm.config.text_config.hidden_size, state=state, action=action, horizon=horizon)
        if vlm.lm_head.weight is not vlm.get_input_embeddings().weight:
            vlm.lm_head.requires_grad_(requires_grad=False)  # no words are predicted

    @property
    def blocks(self) -> list[nn.Module]:
        """The units of sharding and recomputation."""
        return [*super().blocks, *self.head.layers]

    def forward(
        self, seen: Observation, points: Tensor, time: Tensor | None = None, *, steps: int = 0, size: int = 0
    ) -> Tensor:
        """Return the velocity at points [m k, H, a] and times [m k], or the actions that noise flows to."""
        prefix = self._prefix(seen)
        context, mask, state = self._read(prefix), prefix.mask, seen.state
        if (times := len(points) // len(state)) > 1:
            context, state = context.repeat_interleave(times, 0), state.repeat_interleave(times, 0)
            mask = mask.repeat_interleave(times, 0) if mask is not None else None

        def velocity(at: Tensor, when: Tensor) -> Tensor:
            found: Tensor = self.head(context, mask, state, at, when)
            return found

        if time is not None:
            return velocity(points, time)
        return integrate(lambda at, when: velocity(at, torch.full_like(at[:, 0, 0], when)), points, steps, size)


class TokenPolicy(_Policy):
    """PaliGemma that writes actions as tokens, one for each part of an action; it reads the state in the same way.

    They are the last tokens of the vocabulary, which a tokenizer keeps for places and segments of images.
    """

    def __init__(self, vlm: Any, *, action: int, horizon: int, bins: int) -> None:
        """Wrap `PaliGemmaForConditionalGeneration`; `action` is a size, and `horizon` the number of actions a chunk."""
        super().__init__(vlm)
        self.action_size, self.horizon, self.bins = action, horizon, bins
        self.first = vlm.config.text_config.vocab_size - bins

    def forward(self, seen: Observation, actions: Tensor | None = None) -> Tensor:
        """Return the logits of the bins of demonstrated actions, or the actions that the model would take.

        Args:
            seen: of m episodes.
            actions: [m, H, a] in [-1, 1]; None: the most likely token after each other, without a gradient.

        Returns:
            [m, H, a, bins] float32, or actions [m, H, a] in (-1, 1).
        """
        prefix = self._prefix(seen, to_bins(seen.state, self.bins) + self.first)
        embed = self.vlm.get_input_embeddings()
        shape = (self.horizon, self.action_size)
        if actions is None:
            numbers = self._written(prefix, embed)
            return middles(numbers, self.bins).unflatten(1, shape)
        tokens = to_bins(actions.flatten(1), self.bins) + self.first
        hidden = self._read(prefix, embed(tokens[:, :-1]))[:, prefix.embeds.shape[1] - 1 :]
        return self._logits(hidden).unflatten(1, shape)

    def _written(self, prefix: Prefix, embed: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the numbers of the most likely bins, one after another, [m, H a]."""
        cache = DynamicCache(config=self.vlm.config.text_config)
        hidden, mask, positions = self._read(prefix, cache=cache), prefix.mask, prefix.positions[:, -1:]
        found = [self._logits(hidden[:, -1]).argmax(-1)]
        while len(found) < self.horizon * self.action_size:
            positions = positions + 1
            mask = F.pad(mask, (0, 1), value=True) if mask is not None else None
            hidden = self.vlm.model(
                inputs_embeds=embed(found[-1][:, None] + self.first),
                attention_mask=mask.long() if mask is not None else None,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            ).last_hidden_state
            found.append(self._logits(hidden[:, -1]).argmax(-1))
        return torch.stack(found, 1)

    def _logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of action tokens alone, in float32: no other token can be written."""
        with torch.autocast(hidden.device.type, enabled=False):
            head = self.vlm.get_output_embeddings().weight[self.first :]
            return F.linear(hidden.float(), head.float())
