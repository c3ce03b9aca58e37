"""Attention of documents in one row, each to itself: its cost grows with the documents, not with the square of the row.

A mask of the whole row has N x N numbers, of which the blocks on the diagonal count. Here documents of about equal
length become the rows of a batch, padded on the right, and attention is causal without a mask: what pads is behind all
tokens that count. Wherever a layer needs more than that, the whole row is computed with a mask.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

NAME = "torchyard_documents"  # of this attention in transformers
# A group of documents has none that is shorter than this share of its longest: at most 1.8 times the products.
SHORTEST = 0.75


class Documents:
    """The documents of a row, and how they are computed as batches.

    Args:
        sizes: tokens of each document, in order.
        device: of the row.
    """

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        self.sizes, self._device = list(sizes), device
        self.longest, self.total = max(sizes), sum(sizes)

    @cached_property
    def groups(self) -> list[Tensor]:
        """The places [m, L] of the tokens of each group of documents; what pads a document is its last token."""
        begins = np.cumsum([0, *self.sizes])
        found = []
        for group in grouped(self.sizes):
            own = np.array([self.sizes[each] for each in group])
            inside = np.minimum(np.arange(own.max()), own[:, None] - 1)
            found.append(torch.tensor(begins[group][:, None] + inside, device=self._device))
        return found

    @cached_property
    def places(self) -> Tensor:
        """The place of each token of the row among those of all groups, one after the other: [N]."""
        places, offset = np.empty(self.total, np.int64), 0
        begins = np.cumsum([0, *self.sizes])
        for group in grouped(self.sizes):
            width = max(self.sizes[each] for each in group)
            for each in group:
                places[begins[each] : begins[each + 1]] = np.arange(offset, offset + self.sizes[each])
                offset += width
        return torch.tensor(places, device=self._device)

    @cached_property
    def mask(self) -> Tensor:
        """Whether a token may see another one: of its document, and not behind it: [1, 1, N, N] bool."""
        number = torch.tensor(np.repeat(np.arange(len(self.sizes)), self.sizes), device=self._device)
        return (number[:, None] == number[None]).tril()[None, None]


def grouped(sizes: Sequence[int]) -> list[list[int]]:
    """Return the numbers of documents of about equal length, the longest first. Pure."""
    groups: list[list[int]] = []
    for number in sorted(range(len(sizes)), key=lambda each: (-sizes[each], each)):
        if groups and sizes[number] >= SHORTEST * sizes[groups[-1][0]]:
            groups[-1].append(number)
        else:
            groups.append([number])
    return [sorted(group) for group in groups]


class _Row:
    """The documents of the pass that is computed; a backward pass that computes it again comes before the next one."""

    documents: Documents | None = None


_ROW = _Row()


def begin_pass(documents: Documents | None) -> None:
    """Take the documents of the row that the next pass computes; None: it has padded rows."""
    _ROW.documents = documents


def use_document_attention(lm: Any) -> bool:
    """Have a model attend to documents one by one; return False if its family computes attention by itself."""
    if not getattr(lm, "_supports_attention_backend", False) or lm.config._attn_implementation != "sdpa":  # noqa: SLF001
        return False
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, _attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, _mask)
    lm.set_attn_implementation(NAME)
    return True


def _mask(
    *args: Any, attention_mask: Tensor | None = None, local_size: int | None = None, use_vmap: bool = False, **more: Any
) -> Tensor | None:
    """Return the mask of a layer; None where causal attention inside of each document is all that it says."""
    from transformers.masking_utils import sdpa_mask

    documents = _ROW.documents
    plain = documents is not None and attention_mask is None and not use_vmap
    if documents is not None and plain and (local_size is None or documents.longest <= local_size):
        return None
    return sdpa_mask(  # type: ignore[no-any-return]
        *args, attention_mask=attention_mask, local_size=local_size, use_vmap=use_vmap, **more
    )


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **more: Any
) -> tuple[Tensor, None]:
    """Return attention [1, N, H, d] of queries, keys and values [1, H, N, d], as transformers' `sdpa` does."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    act: Callable[..., tuple[Tensor, None]] = sdpa_attention_forward
    documents = _ROW.documents
    if documents is None or len(documents.sizes) == 1:
        return act(module, query, key, value, attention_mask, **more)
    assert query.shape[2] == key.shape[2] == documents.total, "documents are packed without a cache"
    if attention_mask is not None or more.get("position_bias") is not None:
        return act(module, query, key, value, _within(documents, attention_mask), **more)
    rows = [each[0].transpose(0, 1) for each in (query, key, value)]  # [N, H, d]
    parts = []
    for places in documents.groups:
        batch = [each[places].transpose(1, 2) for each in rows]  # [m, H, L, d]
        parts.append(act(module, *batch, None, **more)[0].flatten(0, 1))
    every = parts[0] if len(parts) == 1 else torch.cat(parts)
    return every[documents.places][None], None


def _within(documents: Documents, mask: Tensor | None) -> Tensor:
    """Return a mask of the whole row that lets no token see another document."""
    if mask is None:
        return documents.mask
    if mask.dtype == torch.bool:
        return mask & documents.mask
    return mask.masked_fill(~documents.mask, torch.finfo(mask.dtype).min)
