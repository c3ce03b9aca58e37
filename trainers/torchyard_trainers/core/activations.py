"""Activation checkpointing: what a block's backward pass needs is computed again instead of kept.

`full` keeps a block's inputs only. `selective` also keeps the results of matrix products and attention, which are dear
to compute, and computes again what is cheap: norms, activations, sums. Neither changes a bit of the result.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

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
    # Workloads draw no random numbers from a generator, so there is no state to put back before the second pass.
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if how == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _policy)
    for block in blocks:
        block.forward = _again(block.forward, options)  # type: ignore[method-assign]


def keeping_activations() -> AbstractContextManager[None]:
    """Compute nothing again meanwhile: passes then cost what the model needs, and not what memory does."""
    return _KEEPS.held()


def _again(forward: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    def forward_again(*inputs: Any, **more: Any) -> Any:
        if _KEEPS.on or not torch.is_grad_enabled():
            return forward(*inputs, **more)
        return checkpoint(forward, *inputs, **more, **options)

    return forward_again


def _policy(_context: Any, operation: Any, *_inputs: Any, **_more: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE
