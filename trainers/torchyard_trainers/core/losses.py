"""Losses with a memory-efficient output layer."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

IGNORE = -100  # a target that does not count
# Logits of a chunk, 8 MiB in fp32. Each chunk adds to the whole gradient of the head: for 1,016 targets of 8,192
# classes and width 384, torch's own chunks of 64 targets took 1.4 times as long as those of 256.
CHUNK = 2**21


def linear_cross_entropy(hidden: Tensor, head: Tensor, target: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the summed cross-entropy of `hidden @ head.T` over all counted targets, without materialising all logits.

    The fp32 logits of a language model are most of its memory: a chunk of them is computed, used for the loss and both
    gradients, and freed. So there is one backward pass, and none of higher order. Call it inside the model's own
    `forward`: only there a sharded `head` is gathered.

    Args:
        hidden: [N, d], output of the last layer.
        head: [V, d], weights of the output layer; cast to the type of `hidden`.
        target: [N] int64, the class, or `IGNORE`.
        bias: [V] of the output layer.

    Returns:
        One number, float32.
    """
    assert hidden.dim() == 2 and target.shape == hidden.shape[:1], f"{tuple(hidden.shape)}, {tuple(target.shape)}"  # noqa: PT018
    if torch.is_autocast_enabled(hidden.device.type):
        hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
    # A sum in half precision would keep three digits and overflow at 65504 in fp16: return each target's loss instead,
    # and recompute chunks in the backward pass.
    half = hidden.dtype != torch.float32
    with torch.autocast(hidden.device.type, enabled=False):
        losses = F.linear_cross_entropy(
            hidden,
            head.to(hidden.dtype),
            target,
            linear_bias=None if bias is None else bias.to(hidden.dtype),
            reduction="none" if half else "sum",
            ignore_index=IGNORE,
            options=nn.LinearCrossEntropyOptions(batch_chunk_size=rows(*hidden.shape, len(head)), chunking_method=None),
        )
    return losses.float().sum()


def chunked_cross_entropy(
    logits: Callable[[Tensor], Tensor], hidden: Tensor, target: Tensor, *, classes: int
) -> Tensor:
    """Return the summed cross-entropy of logits that are more than a product, with a chunk of them in memory at a time.

    Args:
        logits: computes those of `hidden`; twice, as the backward pass needs them again.
        hidden: [N, d].
        target: [N] int64, the class, or `IGNORE`.
        classes: of the logits.
    """
    size = max(1, CHUNK // classes)
    losses = [
        checkpoint(_summed, logits, few, of_few, use_reentrant=False)
        for few, of_few in zip(hidden.split(size), target.split(size), strict=True)
    ]
    return torch.stack(losses).sum()


def _summed(logits: Callable[[Tensor], Tensor], hidden: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits(hidden).float(), target, reduction="sum", ignore_index=IGNORE)


def rows(targets: int, width: int, classes: int) -> int:
    """Return the targets per chunk: as many as `CHUNK` holds, or logits as large as `hidden` if that is more."""
    return min(targets, max(1, CHUNK // classes, targets * width // classes))
