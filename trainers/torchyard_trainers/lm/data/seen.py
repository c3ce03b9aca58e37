"""What a model reads of the images of documents, as tensors: pixels, their grids, and positions of tokens."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from torchyard_trainers.lm.data.images import Images, Picture


class Seen(NamedTuple):
    """What a model reads beside the tokens of m documents.

    Attributes:
        pixels: [patches, p], of all images in the order of documents.
        grids: [images, 3] int64: frames, rows and columns of patches.
        positions: [3, m, T] int64 of tokens in time, row and column.
    """

    pixels: Tensor
    grids: Tensor
    positions: Tensor

    def to(self, device: torch.device) -> "Seen":
        """Return a copy on a device."""
        return Seen(*(each.to(device) for each in self))


def seen_of(images: Images, tokens: Tensor, pictures: Sequence[Sequence[Picture]]) -> Seen:
    """Return what the model reads beside documents.

    Args:
        images: of the run.
        tokens: [m, T], padded on the right.
        pictures: of each document.
    """
    every = [each for some in pictures for each in some]
    with unset_fake_temporarily():
        rows = [positions(images, row, some) for row, some in zip(tokens, pictures, strict=True)]
        grids = torch.tensor([[1, *each.grid] for each in every], dtype=torch.int64).view(-1, 3)
        processor = images.processor
        if not every:
            size = 3 * processor.temporal_patch_size * processor.patch_size**2
            return Seen(torch.zeros(0, size), grids, torch.stack(rows, 1))
        found = processor.preprocess([each.image for each in every], return_tensors="pt")
        assert found["image_grid_thw"].equal(grids), f"{found['image_grid_thw'].tolist()}, {grids.tolist()}"
        return Seen(found["pixel_values"], grids, torch.stack(rows, 1))


def positions(images: Images, tokens: Tensor, pictures: Sequence[Picture]) -> Tensor:
    """Return the positions of tokens [T] in time, row and column, [3, T]: those of an image form a rectangle."""
    places = (tokens == images.token).nonzero()[:, 0].tolist()
    parts, start, at, end = [], 0, 0, 0  # `end` tokens have positions, the next text begins with `start`
    for picture in pictures:
        rows, columns = (each // images.merge for each in picture.grid)
        text, cells = places[at] - end, torch.arange(rows * columns)
        parts.append(torch.arange(text).expand(3, -1) + start)
        start += text
        parts.append(torch.stack([torch.zeros_like(cells), cells // columns, cells % columns]) + start)
        end = places[at] + len(cells)
        start, at = start + max(rows, columns), at + len(cells)
    parts.append(torch.arange(len(tokens) - end).expand(3, -1) + start)
    return torch.cat(parts, 1)
