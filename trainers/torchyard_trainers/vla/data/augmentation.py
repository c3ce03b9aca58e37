"""Changes of images in training, on the device: brightness, contrast, and a shift."""

import torch
from torch import Tensor
from torch.nn import functional as F

from torchyard_trainers.core.randomness import split_keys, uniform


def augmented(images: Tensor, keys: Tensor, strength: float) -> Tensor:
    """Return images [m, cameras, 3, S, S] in [-1, 1], changed by as much as `strength` in [0, 1].

    All images of a sample change alike, since they show one moment; what follows from the keys [m] follows from
    nothing else.
    """
    many, cameras = images.shape[:2]
    draws = uniform(split_keys(keys, 4)) * 2 - 1
    gain, bias, shift = 1 + strength * draws[:, 0], strength * draws[:, 1], strength * 2 * draws[:, 2:]
    changed = (images * gain[:, None, None, None, None] + bias[:, None, None, None, None]).clamp(-1, 1)
    move = torch.eye(2, 3, device=images.device).repeat(many, 1, 1)
    move[:, :, 2] = shift
    grid = F.affine_grid(move, [many, 1, *images.shape[-2:]], align_corners=False).repeat_interleave(cameras, 0)
    found = F.grid_sample(changed.flatten(0, 1), grid, padding_mode="border", align_corners=False)
    return found.unflatten(0, (many, cameras))
