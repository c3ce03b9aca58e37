"""Activation checkpointing: a block's activations are recomputed in the backward pass instead of stored.

`full` stores only a block's inputs. `selective` also stores the results of matrix products and attention, which are
expensive, and recomputes what is cheap: norms, activations, sums. Neither changes a bit of the result, of the random
numbers drawn, or of the buffers.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from torchyard_trainers.core.buffers import Buffers
from torchyard_trainers.core.flag import Flag

_KEEPS = Flag()
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
    """Make blocks recompute their activations in the backward pass. Parameter names do not change."""
    if how == "none":
        return
    contexts = partial(create_selective_checkpoint_contexts, _policy) if how == "selective" else None
    for block in blocks:
        block.forward = _again(block.forward, contexts, Buffers(block))  # type: ignore[method-assign]


def keeping_activations() -> AbstractContextManager[None]:
    """Disable recomputation inside a `with` block, so that passes cost only what the model itself costs."""
    return _KEEPS.set()


Contexts = Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]


def _again(forward: Callable[..., Any], contexts: Contexts | None, buffers: Buffers) -> Callable[..., Any]:
    """Return a forward pass whose recomputation draws the same random numbers and does not change buffers again."""

    def with_buffers_kept() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        first, second = contexts() if contexts is not None else (nullcontext(), nullcontext())
        return first, _both(buffers.kept(), second)

    def forward_again(*inputs: Any, **more: Any) -> Any:
        if _KEEPS.on or not torch.is_grad_enabled():
            return forward(*inputs, **more)
        options: dict[str, Any] = {"use_reentrant": False}
        if torch.compiler.is_compiling():  # the compiler handles buffers and random numbers
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
