"""Policies with PaliGemma (a SigLIP vision tower and Gemma) as their backbone: with a flow head, or action tokens.

All uses of a policy go through `forward`: only there a sharded model gathers its parameters.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchyard_trainers.vla.heads.bins import to_bins
from torchyard_trainers.vla.heads.flow import integrate
from torchyard_trainers.vla.heads.flow_head import FlowHead
from torchyard_trainers.vla.observation import Observation

# Names of published files, and of other versions of transformers, and what they are called in the model.
RENAMED = (
    (r"^language_model\.lm_head\.", "lm_head."),
    (r"^language_model\.model\.", "model.language_model."),
    (r"^(model\.)?vision_tower\.vision_model\.", "model.vision_tower."),
    (r"^vision_tower\.", "model.vision_tower."),
    (r"^multi_modal_projector\.", "model.multi_modal_projector."),
)


# How `TokenPolicy` answers. Earlier versions, with weights of the same shapes, answered one part after the other.
ANSWERS = "tokens, all parts of a chunk at once"


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


def both_ways(mask: Tensor | None, embeds: Tensor) -> dict[str, Any]:
    """Return the arguments with which the tokens [m, T] of a PaliGemma attend to each other in both directions.

    Without padding no mask is needed, and attention without one is several times as fast on a GPU.
    """
    if mask is None:
        return {"is_causal": False}
    return {"token_type_ids": torch.zeros(embeds.shape[:2], dtype=torch.int64, device=embeds.device)}


class PaliGemmaPolicy(nn.Module):
    """A PaliGemma whose prefix is images of all cameras and an instruction."""

    def __init__(self, vlm: Any) -> None:
        """Wrap `PaliGemmaForConditionalGeneration`."""
        super().__init__()
        self.vlm = vlm
        self.freeze_idle()

    @property
    def language(self) -> nn.Module:
        """The vision-language model, which may get adapters."""
        trunk: nn.Module = self.vlm
        return trunk

    def freeze_idle(self) -> None:
        """Freeze parameters that never get a gradient: those that pool an image."""
        idle = getattr(self.vlm.model.vision_tower, "head", None)
        if idle is not None:
            idle.requires_grad_(requires_grad=False)

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

    def prefix(self, seen: Observation, more: Tensor | None = None) -> Prefix:
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

    def read(self, prefix: Prefix) -> Tensor:
        """Return the last hidden states, [m, T, h]; all tokens attend to each other in both directions."""
        mask = prefix.mask
        found: Tensor = self.vlm.model(
            inputs_embeds=prefix.embeds,
            attention_mask=mask.long() if mask is not None else None,
            position_ids=prefix.positions,
            **both_ways(mask, prefix.embeds),
            use_cache=False,
        ).last_hidden_state
        return found


class HeadPolicy(PaliGemmaPolicy):
    """PaliGemma with a head that reads its last hidden states; its words are not used."""

    def __init__(self, vlm: Any, head: nn.Module, *, action: int, horizon: int) -> None:
        """Wrap `PaliGemmaForConditionalGeneration`.

        Args:
            vlm: the model.
            head: has `layers`.
            action: parts of an action.
            horizon: actions of a chunk.
        """
        super().__init__(vlm)
        self.action_size, self.horizon = action, horizon
        self.head: Any = head

    def freeze_idle(self) -> None:
        """Freeze parameters that never get a gradient, also those that predict words."""
        super().freeze_idle()
        if self.vlm.lm_head.weight is not self.vlm.get_input_embeddings().weight:
            self.vlm.lm_head.requires_grad_(requires_grad=False)

    @property
    def blocks(self) -> list[nn.Module]:
        """The units of sharding and recomputation."""
        return [*super().blocks, *self.head.layers]

    def context(self, seen: Observation, times: int = 1) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return hidden states [m k, T, h], their mask [m k, T] and the state [m k, d], each `times` in a row."""
        prefix = self.prefix(seen)
        context, mask, state = self.read(prefix), prefix.mask, seen.state
        if times > 1:
            context, state = context.repeat_interleave(times, 0), state.repeat_interleave(times, 0)
            mask = mask.repeat_interleave(times, 0) if mask is not None else None
        return context, mask, state


class FlowPolicy(HeadPolicy):
    """PaliGemma with a flow head that attends to its last hidden states; see `models.Policy.forward`."""

    def __init__(self, vlm: Any, *, state: int, action: int, horizon: int) -> None:
        """Wrap `PaliGemmaForConditionalGeneration`; `state` and `action` are sizes, and `horizon` actions a chunk."""
        head = FlowHead(vlm.config.text_config.hidden_size, state=state, action=action, horizon=horizon)
        super().__init__(vlm, head, action=action, horizon=horizon)

    def forward(
        self, seen: Observation, points: Tensor, time: Tensor | None = None, *, steps: int = 0, size: int = 0
    ) -> Tensor:
        """Return the velocity at points [m k, H, a] and times [m k], or the actions that noise flows to."""
        context, mask, state = self.context(seen, len(points) // len(seen.state))

        def velocity(at: Tensor, when: Tensor) -> Tensor:
            speed: Tensor = self.head(context, mask, state, at, when)
            return speed

        if time is not None:
            return velocity(points, time)
        return integrate(lambda at, when: velocity(at, torch.full_like(at[:, 0, 0], when)), points, steps, size)


class TokenPolicy(PaliGemmaPolicy):
    """PaliGemma that reads the state as tokens, and answers with tokens of actions, one for each part of an action.

    All parts of a chunk are answered at once, as in OpenVLA-OFT (Kim 2025): the prompt ends with one token for each of
    them, whose answer is the bin. Bins are the last tokens of the vocabulary and the blanks those before them, which a
    tokenizer keeps for places and segments of images.
    """

    def __init__(self, vlm: Any, *, action: int, horizon: int, bins: int) -> None:
        """Wrap `PaliGemmaForConditionalGeneration`; `action` is a size, and `horizon` the number of actions a chunk."""
        super().__init__(vlm)
        self.action_size, self.horizon, self.bins = action, horizon, bins
        self.first = vlm.config.text_config.vocab_size - bins

    def forward(self, seen: Observation) -> Tensor:
        """Return the logits of the bins of actions, [m, H, a, bins] float32."""
        state = to_bins(seen.state, self.bins) + self.first
        count = self.horizon * self.action_size
        blanks = torch.arange(self.first - count, self.first, device=state.device).expand(len(state), -1)
        hidden = self.read(self.prefix(seen, torch.cat([state, blanks], 1)))[:, -count:]
        with torch.autocast(hidden.device.type, enabled=False):
            head = self.vlm.get_output_embeddings().weight[self.first :]  # no other token can be the answer
            logits = F.linear(hidden.float(), head.float())
        return logits.unflatten(1, (self.horizon, self.action_size))
