"""Drawing on a square table seen from above, in pure torch: shapes with soft edges, composited on the device.

The table is the square [-1, 1]^2. Images are [m, 3, S, S] in [0, 1]; rows go from y = -1 to 1.
"""

import torch
from torch import Tensor

TABLE = 0.35  # its grey


def empty_table(count: int, size: int, device: torch.device) -> Tensor:
    """Return `count` images of an empty table, [count, 3, size, size]."""
    return torch.full((count, 3, size, size), TABLE, device=device)


def distance(size: int, points: Tensor) -> Tensor:
    """Return the distance of every pixel to points [m, n, 2]: [m, n, size, size]."""
    x, y = _offsets(size, points)
    return (x.square() + y.square()).sqrt()


def box_distance(size: int, points: Tensor) -> Tensor:
    """Return the distance of every pixel to points [m, n, 2] along the farther axis: [m, n, size, size]."""
    x, y = _offsets(size, points)
    return torch.maximum(*torch.broadcast_tensors(x.abs(), y.abs()))


def filled(away: Tensor, radius: float | Tensor) -> Tensor:
    """Return how much of each pixel is within `radius`, by distances [..., S, S]: in [0, 1]."""
    sharp = away.shape[-1] / 2  # an edge is about a pixel wide
    return torch.sigmoid((radius - away) * sharp * 2)


def outlined(away: Tensor, radius: float | Tensor, width: float | Tensor) -> Tensor:
    """Return how much of each pixel is on a line of half `width` around `radius`: in [0, 1]."""
    return filled((away - radius).abs(), width)


def paint(image: Tensor, covered: Tensor, colour: Tensor | float) -> Tensor:
    """Paint a colour over images, as far as pixels are covered: [m, 3, S, S].

    Args:
        image: [m, 3, S, S].
        covered: [m, 1, S, S] in [0, 1].
        colour: [m, 3, 1, 1], or one grey.
    """
    return image + covered * (colour - image)


def _offsets(size: int, points: Tensor) -> tuple[Tensor, Tensor]:
    line = (torch.arange(size, device=points.device) + 0.5) * (2 / size) - 1
    x, y = points[..., 0, None, None], points[..., 1, None, None]
    return line[None, None, None, :] - x, line[None, None, :, None] - y
