"""Activation checkpointing: what a block's backward pass needs is computed again instead of kept.

`full` keeps a block's inputs only. `selective` also keeps the results of matrix products and attention, which are dear
to compute, and computes again what is cheap: norms, activations, sums. Neither changes a bit of the result, nor of
what a pass draws or counts.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from torchyard_trainers.core.buffers import Buffers
from torchyard_trainers.core.switch import Switch

_KEEPS = Switch()
_ATEN = torch.ops.aten
# Products and attention, as they reach the dispatcher; kernels of attention differ by device and mask.
_KEPT = frozenset(
    getattr(_ATEN, name).default
    for name in (
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
    )
    if hasattr(_ATEN, name)
)


def checkpoint_activations(blocks: Iterable[nn.Module], how: Literal["none", "selective", "full"]) -> None:
    """Let blocks compute their activations again in the backward pass. Names of parameters stay as they are."""
    if how == "none":
        return
    contexts = partial(create_selective_checkpoint_contexts, _policy) if how == "selective" else None
    for block in blocks:
        block.forward = _again(block.forward, contexts, Buffers(block))  # type: ignore[method-assign]


def keeping_activations() -> AbstractContextManager[None]:
    """Compute nothing again meanwhile: passes then cost what the model needs, and not what memory does."""
    return _KEEPS.held()


Contexts = Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]


def _again(forward: Callable[..., Any], contexts: Contexts | None, buffers: Buffers) -> Callable[..., Any]:
    """Give the forward pass whose second run draws the same random numbers, and changes no buffer once more."""

    def with_buffers_kept() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        first, second = contexts() if contexts is not None else (nullcontext(), nullcontext())
        return first, _both(buffers.kept(), second)

    def forward_again(*inputs: Any, **more: Any) -> Any:
        if _KEEPS.on or not torch.is_grad_enabled():
            return forward(*inputs, **more)
        options: dict[str, Any] = {"use_reentrant": False}
        if torch.compiler.is_compiling():  # buffers and numbers are the compiler's business
            options |= {"preserve_rng_state": False} | ({} if contexts is None else {"context_fn": contexts})
        else:
            captured = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
            options |= {"preserve_rng_state": not captured, "context_fn": with_buffers_kept}
        return checkpoint(forward, *inputs, **more, **options)

    return forward_again


@contextmanager
def _both(outer: AbstractContextManager[Any], inner: AbstractContextManager[Any]) -> Iterator[None]:
    with outer, inner:
        yield


def _policy(_context: Any, operation: Any, *_inputs: Any, **_more: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE
