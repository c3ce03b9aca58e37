"""Buffers that a forward pass changes, such as the statistics of BatchNorm: not learned, and yet a part of the model.

A checkpoint holds one copy of them, so ranks that saw other samples agree on one after each step. A pass that is no
part of training, is made a second time or meets numbers that are not finite leaves them as they were.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, distributed, nn

from torchyard_trainers.core.world import World

_BUCKET_BYTES = 250 * 1024 * 1024


class Buffers:
    """The buffers of a module that a checkpoint holds."""

    def __init__(self, module: nn.Module) -> None:
        """Look them up once; who holds one may put another tensor of that shape in its place."""
        held = module.state_dict(keep_vars=True)
        self._places = [
            (owner, name)
            for prefix, owner in module.named_modules()
            for name in owner._buffers  # noqa: SLF001 - `named_buffers` does not tell whose they are
            if f"{prefix}.{name}".removeprefix(".") in held
        ]

    def copy(self) -> list[Tensor]:
        """Give what is in them now."""
        return [each.clone() for each in self._tensors()]

    def put_back(self, before: Sequence[Tensor]) -> None:
        """Have again what `copy` gave."""
        if before:
            torch._foreach_copy_(self._tensors(), list(before))

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Let whatever happens meanwhile leave them as they are."""
        before = self.copy()
        try:
            yield
        finally:
            self.put_back(before)

    def agree(self, world: World) -> None:
        """Let every rank have those of rank 0. Collective."""
        if world.size > 1 and self._places:
            distributed._broadcast_coalesced(  # noqa: SLF001 - as DDP does
                distributed.group.WORLD, self._tensors(), _BUCKET_BYTES, 0
            )

    def _tensors(self) -> list[Tensor]:
        # Without a counter of versions: a backward pass that is still to come reads none of them.
        return [owner.get_buffer(name).data for owner, name in self._places]
