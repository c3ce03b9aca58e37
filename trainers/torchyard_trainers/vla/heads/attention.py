"""Attention of the heads, with linear layers that are sharded and initialised like all others."""

import math

from torch import Tensor, nn
from torch.nn import functional as F

HEAD_SIZE = 64  # at most


class Attention(nn.Module):
    """Attention with several heads over vectors of one width."""

    def __init__(self, width: int, linear: type[nn.Linear] = nn.Linear) -> None:
        """Divide `width` into heads of 64 units, or into four where it is narrower; `linear` is the kind of layers."""
        super().__init__()
        size = math.gcd(width, HEAD_SIZE if width > HEAD_SIZE else max(width // 4, 1))
        self.heads = width // size
        self.query, self.key, self.value, self.out = (linear(width, width) for _ in range(4))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return what queries [m, q, w] read from keys and values [m, k, w] that `mask` [m, k] has; None: all."""
        asked, places, content = (
            layer(each).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, each in ((self.query, query), (self.key, key), (self.value, value))
        )
        seen = mask[:, None, None] if mask is not None else None
        mixed = F.scaled_dot_product_attention(asked, places, content, attn_mask=seen)
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result
