"""The vision tower for many images of one size, without a loop over images and without waiting for the GPU.

The attention of the library computes one image after the other, and reads their sizes from the device in each layer.
Here all images have one size: one call computes all of them with the same bits, and what follows from the size alone is
computed once. The library embeds patches by a convolution that sees each of them once, which is a matrix product.
"""

import sys
from types import MethodType
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

from torchyard_trainers.core.image_processor import CLIP, HALVES

# Versions of transformers whose attention was compared with this one, bit by bit; with others, theirs is used.
COMPARED = ("5.23",)


class Tower(nn.Module):
    """What a vision tower has to know about images of `size` pixels; it has no parameters."""

    def __init__(self, visual: Any, size: int, *, batched: bool = True) -> None:
        """Prepare `visual` of a transformers model, in place.

        Args:
            visual: the tower.
            size: of the side of an image in pixels, a multiple of `granularity`.
            batched: exchange its attention, if this version of transformers was compared.
        """
        super().__init__()
        config = visual.config
        self.patch, self.merge, self.temporal = config.patch_size, config.spatial_merge_size, config.temporal_patch_size
        self.side = size // self.patch  # patches
        assert size % granularity(config) == 0, f"{size} pixels are no whole blocks of patches"
        self.tokens = (self.side // self.merge) ** 2
        shift, scale = colours_of(config)
        self.shift: Tensor
        self.scale: Tensor
        self.register_buffer("shift", torch.tensor(shift)[:, None, None], persistent=False)
        self.register_buffer("scale", torch.tensor(scale)[:, None, None], persistent=False)
        self.grid: Tensor
        self.register_buffer("grid", torch.tensor([[1, self.side, self.side]]), persistent=False)
        self._names = []  # of what the library would compute from the sizes
        for name, value in _facts(visual, self.side).items():
            self._names.append(name)
            self.register_buffer(name, value, persistent=False)
        visual.patch_embed.proj.forward = MethodType(_embed, visual.patch_embed.proj)
        self.batched = batched and is_compared() and _has_equal_windows(self)
        if self.batched:
            for block in visual.blocks:
                block.attn.forward = MethodType(_attend, block.attn)

    def forward(self, visual: Any, images: Tensor) -> Tensor:
        """Return what the language model sees of images [m, 3, S, S] in [0, 1]: [m, levels, tokens, hidden].

        The first level is the embedding of the tokens; those of Qwen3-VL after it are added in its first layers.
        """
        many, kind = len(images), visual.patch_embed.proj.weight.dtype
        found = visual(self.patches(images).to(kind), grid_thw=self.grid.expand(many, -1), **self._facts_of(many))
        levels = [found.pooler_output, *(getattr(found, "deepstack_features", None) or ())]
        return torch.stack([each.unflatten(0, (many, self.tokens)) for each in levels], 1)

    def patches(self, images: Tensor) -> Tensor:
        """Return images [m, 3, S, S] in [0, 1] as the library's processor does: [m * patches, 3 * 2 * P * P]."""
        many, grid = len(images), self.side // self.merge
        images = (images - self.shift) / self.scale
        parts = images.reshape(many, 3, grid, self.merge, self.patch, grid, self.merge, self.patch)
        parts = parts.permute(0, 2, 5, 3, 6, 1, 4, 7)[..., None, :, :]  # the frame is repeated in time
        return parts.expand(*[-1] * 6, self.temporal, -1, -1).reshape(many * self.side**2, -1)

    def _facts_of(self, many: int) -> dict[str, Tensor]:
        """Return what the library would compute from the sizes of `many` images."""
        found = {"cu_seqlens": self._bounds(many, self.side**2)}
        for name in self._names:
            each = self.get_buffer(name)
            if name == "window_index":
                first = torch.arange(many, device=each.device)[:, None] * self.tokens
                found[name] = (each + first).flatten()
            elif name == "cu_window_seqlens":
                first = torch.arange(many, device=each.device, dtype=each.dtype)[:, None] * self.side**2
                found[name] = F.pad((each[1:] + first).flatten(), (1, 0))
            else:
                found[name] = each.repeat(many, *[1] * (each.dim() - 1))
        return found

    def _bounds(self, many: int, length: int) -> Tensor:
        return torch.arange(many + 1, device=self.shift.device, dtype=torch.int32) * length


def is_compared() -> bool:
    """Return whether the attention of the installed transformers was compared with the one of this module."""
    return ".".join(transformers.__version__.split(".")[:2]) in COMPARED


def colours_of(config: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each colour that the library's processor of a tower scales images by."""
    return HALVES if config.model_type == "qwen3_vl_vision" else CLIP


def granularity(config: Any) -> int:
    """Return what the side of an image is a multiple of (pixels), by the config of a tower."""
    return int(config.patch_size * config.spatial_merge_size)


def _facts(visual: Any, side: int) -> dict[str, Tensor]:
    """Return what the library computes from the size of one image, by the names of its arguments."""
    from transformers import vision_utils

    grid, merge = torch.tensor([[1, side, side]]), visual.config.spatial_merge_size
    found = {"position_ids": vision_utils.get_vision_position_ids(grid, merge)}
    if hasattr(visual, "window_size"):
        found["window_index"], found["cu_window_seqlens"] = vision_utils.get_vision_window_index(
            grid, spatial_merge_size=merge, window_size=visual.window_size, patch_size=visual.config.patch_size
        )
    if hasattr(visual, "num_grid_per_side"):
        found["interp_indices"], found["interp_weights"] = vision_utils.get_vision_interpolation_indices_and_weights(
            grid,
            num_grid_per_side=visual.num_grid_per_side,
            mode=visual.interpolation_mode,
            align_corners=visual.interpolation_align_corners,
            spatial_merge_size=merge,
        )
    return found


def _has_equal_windows(tower: Tower) -> bool:
    """Return whether all windows of an image have one size, so that one call can compute them."""
    if "cu_window_seqlens" not in dict(tower.named_buffers()):
        return True
    return len(tower.get_buffer("cu_window_seqlens").diff().unique()) == 1


def _embed(convolution: Any, patches: Tensor) -> Tensor:
    """Compute a convolution whose kernel covers all of its input, [N, 3, 2, P, P] -> [N, d], as a matrix product.

    A convolution takes four to five times as long for this on a CPU.
    """
    return F.linear(patches.flatten(1), convolution.weight.flatten(1), convolution.bias)


def _attend(
    attention: Any,
    hidden_states: Tensor,
    cu_seqlens: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    **_more: Any,
) -> Tensor:
    """Compute the attention within each of equally long sequences that follow each other: [N, d]."""
    rotate = sys.modules[type(attention).__module__].apply_rotary_pos_emb_vision
    query, key, value = attention.qkv(hidden_states).unflatten(-1, (3, attention.num_heads, -1)).unbind(1)
    query, key = rotate(query, key, *position_embeddings)
    parts = (each.unflatten(0, (len(cu_seqlens) - 1, -1)).transpose(1, 2) for each in (query, key, value))
    found = F.scaled_dot_product_attention(*parts, scale=attention.scaling)
    projected: Tensor = attention.proj(found.transpose(1, 2).reshape(len(hidden_states), -1))
    return projected
