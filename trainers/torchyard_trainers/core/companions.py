"""Copies of the weights in training that are sharded like the model: a moving average, the starting weights.

A companion has no model of its own: its values take the place of the weights while a `with` block evaluates them. It
costs the memory of the trainable weights, divided over the ranks as these are, and is no part of the optimizer's state.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from torchyard_trainers.core.named_tensors import local_part
from torchyard_trainers.core.optimizers import trainable
from torchyard_trainers.core.parallel import reshard


class Companion:
    """A copy of the trainable weights of a possibly sharded model, in their types."""

    def __init__(self, model: nn.Module) -> None:
        """Copy the weights as they are now."""
        self._model = model
        reshard(model)  # a forward pass may have left some gathered, which are other tensors
        self._weights = trainable(model)
        self._values = {name: each.detach().clone() for name, each in self._weights.items()}

    @property
    def bytes(self) -> int:
        """Bytes of this rank's part."""
        return sum(each.numel() * each.element_size() for each in self.parts)

    @property
    def parts(self) -> list[Tensor]:
        """This rank's parts of the values."""
        return [local_part(each)[0] for each in self._values.values()]

    def state(self) -> dict[str, Tensor]:
        """Return the values by the names of the weights, for a checkpoint; a restore fills them in place."""
        return dict(self._values)

    @torch.no_grad()
    def copy(self) -> None:
        """Copy the weights as they are now."""
        for value, weight in self._pairs():
            value.copy_(weight)

    @torch.no_grad()
    def replace_weights(self) -> None:
        """Make the values the weights, for good."""
        for value, weight in self._pairs():
            weight.copy_(value)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Exchange weights and values inside a `with` block, which must not train. No bit changes."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for value, weight in self._pairs():
            kept = weight.clone()  # of one tensor at a time
            weight.copy_(value)
            value.copy_(kept)

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        reshard(self._model)
        for name, weight in self._weights.items():
            yield local_part(self._values[name])[0], local_part(weight)[0]


class MovingAverage(Companion):
    """The exponential moving average of the weights over the optimizer's steps.

    In early steps the decay is (1 + n) / (10 + n), as in TensorFlow's `ExponentialMovingAverage`: the average would
    otherwise hold on to the initial weights for 1 / (1 - decay) steps.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        """Begin with the weights as they are now; `decay` is the share that an average keeps in a step."""
        super().__init__(model)
        self.decay = decay

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take the weights after a step (0 is the first) into the average."""
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        values, weights = zip(*self._pairs(), strict=True)
        torch._foreach_lerp_(values, weights, weight)
