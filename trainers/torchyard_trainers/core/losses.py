"""Losses with a memory-efficient output layer."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from torchyard_trainers.core.device import works_on_cpu

IGNORE = -100  # a target that does not count
# Logits of a chunk. Each chunk reads the head three times and adds to the whole of its gradient. On a CPU, where these
# are 8 MiB in fp32, torch's own chunks of 64 targets took 1.4 times as long as those of 256 for 1,016 targets of 8,192
# classes and width 384. On a GPU, where they are 512 MiB, a compiled step of Qwen3 0.6B took 0.55 times as long
# as with PyTorch's function and 110 targets.
CHUNK_ON_CPU = 2**21
CHUNK_ON_GPU = 2**27


def _softmax(logits: Tensor, target: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return the losses [N], their gradients by the logits [N, V] but for the targets, and those of the targets [N].

    Args:
        logits: [N, V] float32.
        target: [N] int64, the class, or `IGNORE`, whose loss and gradients are 0.
        dtype: of the gradients by the logits; all else is float32.
    """
    counted = target != IGNORE
    scale = logits.logsumexp(-1)
    at_target = logits.gather(-1, target.clamp_min(0)[:, None])[:, 0]
    losses = torch.where(counted, scale - at_target, 0.0)
    scale = torch.where(counted, scale, torch.inf)
    gradient = (logits - scale[:, None]).exp_().to(dtype)
    # In half precision a probability near 1 has no digits left when 1 is subtracted.
    of_target = torch.where(counted, (at_target - scale).exp() - 1, 0.0)
    return losses, gradient, of_target


class Softmax(nn.Module):
    """The part of a cross-entropy that reads every logit: a module without parameters, so that it can be compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.act = _softmax

    def compile(self, *, dynamic: bool = False) -> None:  # type: ignore[override]
        """Compile it."""
        self.act = torch.compile(_softmax, dynamic=dynamic)


_PLAIN = Softmax()


def linear_cross_entropy(
    hidden: Tensor, head: Tensor, target: Tensor, bias: Tensor | None = None, *, softmax: Softmax = _PLAIN
) -> Tensor:
    """Return the summed cross-entropy of `hidden @ head.T` over all counted targets, without materialising all logits.

    The fp32 logits of a language model are most of its memory: a chunk of them is computed, used for the loss and both
    gradients, and freed. So there is one backward pass, and none of higher order. Call it inside the model's own
    `forward`: only there a sharded `head` is gathered.

    Args:
        hidden: [N, d], output of the last layer.
        head: [V, d], weights of the output layer; cast to the type of `hidden`.
        target: [N] int64, the class, or `IGNORE`.
        bias: [V] of the output layer.
        softmax: a `Softmax`, compiled or not; used in bf16 on a GPU.

    Returns:
        One number, float32.
    """
    assert hidden.dim() == 2 and target.shape == hidden.shape[:1], f"{tuple(hidden.shape)}, {tuple(target.shape)}"  # noqa: PT018
    if torch.is_autocast_enabled(hidden.device.type):
        hidden = hidden.to(torch.get_autocast_dtype(hidden.device.type))
    size = rows(*hidden.shape, len(head), chunk=chunk_on(hidden))
    with torch.autocast(hidden.device.type, enabled=False):
        if hidden.dtype == torch.bfloat16 and not works_on_cpu(hidden):
            total: Tensor = _InBfloat16.apply(hidden, head, target, bias, softmax.act, size)
            return total
        # A sum in half precision would keep three digits, and overflow at 65504 in fp16, whose gradients need the scale
        # that the backward pass brings: return each target's loss instead, and recompute chunks in the backward pass.
        half = hidden.dtype != torch.float32
        losses = F.linear_cross_entropy(
            hidden,
            head.to(hidden.dtype),
            target,
            linear_bias=None if bias is None else bias.to(hidden.dtype),
            reduction="none" if half else "sum",
            ignore_index=IGNORE,
            options=nn.LinearCrossEntropyOptions(batch_chunk_size=size, chunking_method=None),
        )
    return losses.float().sum()


class _InBfloat16(torch.autograd.Function):
    """The cross-entropy on a GPU: products in bf16; logits, loss and gradient of the head in fp32.

    PyTorch's function returns a loss in bf16, which has three digits; computed for each target, it computes all logits
    twice, and adds up the gradient of the head in bf16.
    """

    @staticmethod
    def forward(  # noqa: PLR0917 - `apply` takes no keywords
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        target: Tensor,
        bias: Tensor | None,
        softmax: Callable[[Tensor, Tensor, torch.dtype], tuple[Tensor, Tensor, Tensor]],
        size: int,
    ) -> Tensor:
        count, dtype, weights = len(hidden), hidden.dtype, head.to(hidden.dtype)
        of_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        of_head = torch.zeros_like(head, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        of_bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None and ctx.needs_input_grad[3] else None
        total = torch.zeros((), device=hidden.device)
        # Chunks of one size, so that compiled code is made once.
        size = math.ceil(count / math.ceil(count / size)) if count else 1
        places = torch.arange(size, device=target.device)
        for start in range(0, count, size):
            few, of_few = hidden[start : start + size], target[start : start + size]
            missing = size - len(few)
            if missing:
                few, of_few = F.pad(few, (0, 0, 0, missing)), F.pad(of_few, (0, missing), value=IGNORE)
            logits = _product(few, weights.T)
            if bias is not None:
                logits += bias
            losses, gradient, of_target = softmax(logits, of_few, dtype)
            del logits
            gradient[places, of_few.clamp_min(0)] = of_target.to(dtype)
            total += losses.sum()
            if of_hidden is not None:
                of_hidden[start : start + size] = (gradient @ weights)[: size - missing]
            if of_head is not None:
                of_head += _product(gradient.T, few)
            if of_bias is not None:
                of_bias += gradient.sum(0, dtype=torch.float32)
        ctx.gradients = of_hidden, of_head, of_bias
        ctx.types = dtype, head.dtype, None if bias is None else bias.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        assert ctx.gradients is not None, "the loss of an output layer has one backward pass"
        # Scaled in place, so that the gradient of a large head exists once.
        scaled = [
            None if each is None else each.mul_(gradient).to(dtype)
            for each, dtype in zip(ctx.gradients, ctx.types, strict=True)
        ]
        ctx.gradients = None
        of_hidden, of_head, of_bias = scaled
        return of_hidden, of_head, None, of_bias, None, None


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Return the product of matrices in bf16 as float32."""
    return torch.mm(left, right, out_dtype=torch.float32) if left.is_cuda else torch.mm(left, right).float()


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
    size = max(1, chunk_on(hidden) // classes)
    losses = [
        checkpoint(_summed, logits, few, of_few, use_reentrant=False)
        for few, of_few in zip(hidden.split(size), target.split(size), strict=True)
    ]
    return torch.stack(losses).sum()


def _summed(logits: Callable[[Tensor], Tensor], hidden: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits(hidden).float(), target, reduction="sum", ignore_index=IGNORE)


def chunk_on(tensor: Tensor) -> int:
    """Return the logits of a chunk on the device of a tensor."""
    return CHUNK_ON_CPU if works_on_cpu(tensor) else CHUNK_ON_GPU


def rows(targets: int, width: int, classes: int, *, chunk: int) -> int:
    """Return the targets per chunk: as many as `chunk` logits hold, or logits as large as `hidden` if that is more."""
    return min(targets, max(1, chunk // classes, targets * width // classes))
