"""Losses that a large output layer would make too large."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

IGNORE = -100  # a target that does not count
# Logits of a chunk, 8 MiB in fp32. Each chunk adds to the whole gradient of the head: for 1,016 targets of 8,192
# classes and width 384, torch's own chunks of 64 targets took 1.4 times as long as those of 256.
CHUNK = 2**21


def linear_cross_entropy(hidden: Tensor, head: Tensor, target: Tensor) -> Tensor:
    """Sum the cross-entropy of `hidden @ head.T` over all targets that count; all its logits are never there at once.

    Logits of a language model in fp32 are most of its memory: a chunk of them is made, used for the loss and for both
    gradients, and given up. So there is one backward pass, and none of higher order. Call it inside the model's own
    `forward`: only there is a sharded `head` whole.

    Args:
        hidden: [N, d], what the last layer gives.
        head: [V, d], weights of the output layer; cast to the type of `hidden`.
        target: [N] int64, the class, or `IGNORE`.

    Returns:
        One number, float32.
    """
    assert hidden.dim() == 2 and target.shape == hidden.shape[:1], f"{tuple(hidden.shape)}, {tuple(target.shape)}"  # noqa: PT018
    if torch.is_autocast_enabled(hidden.device.type):
        hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
    # A sum in half precision would keep three digits, and end at 65504 in fp16: there each target's loss is given,
    # and chunks are made again in the backward pass.
    half = hidden.dtype != torch.float32
    with torch.autocast(hidden.device.type, enabled=False):
        losses = F.linear_cross_entropy(
            hidden,
            head.to(hidden.dtype),
            target,
            reduction="none" if half else "sum",
            ignore_index=IGNORE,
            options=nn.LinearCrossEntropyOptions(batch_chunk_size=rows(*hidden.shape, len(head)), chunking_method=None),
        )
    return losses.float().sum()


def rows(targets: int, width: int, classes: int) -> int:
    """Give the targets of a chunk: as many as `CHUNK` holds, or logits as large as `hidden` where that is more."""
    return min(targets, max(1, CHUNK // classes, targets * width // classes))
