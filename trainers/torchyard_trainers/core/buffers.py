"""Buffers that a forward pass changes, such as BatchNorm statistics: not trained, but part of the model.

A checkpoint holds one copy of them, so the ranks, which saw different samples, agree on one after each step. A pass
outside of training, a repeated pass and a pass with non-finite values leave them unchanged.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, distributed, nn

from torchyard_trainers.core.world import World

_BUCKET_BYTES = 250 * 1024 * 1024


class Buffers:
    """The buffers of a module that are part of its state dict."""

    def __init__(self, module: nn.Module) -> None:
        """Look the buffers up once; their owners may replace them by tensors of the same shape later."""
        held = module.state_dict(keep_vars=True)
        self._places = [
            (owner, name)
            for prefix, owner in module.named_modules()
            for name in owner._buffers  # noqa: SLF001 - `named_buffers` does not return the owners
            if f"{prefix}.{name}".removeprefix(".") in held
        ]

    def copy(self) -> list[Tensor]:
        """Return copies of the current values."""
        return [each.clone() for each in self._tensors()]

    def put_back(self, before: Sequence[Tensor]) -> None:
        """Restore the values that `copy` returned."""
        if before:
            torch._foreach_copy_(self._tensors(), list(before))

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Restore the current values at the end of a `with` block."""
        before = self.copy()
        try:
            yield
        finally:
            self.put_back(before)

    def agree(self, world: World) -> None:
        """Copy the buffers of rank 0 to every rank. Collective."""
        if world.size > 1 and self._places:
            distributed._broadcast_coalesced(  # noqa: SLF001 - as DDP does
                distributed.group.WORLD, self._tensors(), _BUCKET_BYTES, 0
            )

    def _tensors(self) -> list[Tensor]:
        # `.data` does not bump version counters: a pending backward pass does not read buffers.
        return [owner.get_buffer(name).data for owner, name in self._places]
