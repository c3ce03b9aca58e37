"""How the device of a tensor affects the code that runs on it."""

from contextlib import AbstractContextManager

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from torchyard_trainers.core.flag import Flag

_GPU = Flag()
_SHAPES = Flag()
_MEMORY = Flag()


def can_sync(tensor: Tensor) -> bool:
    """Whether reading values does not synchronise with a GPU: the tensor is on a CPU and is not fake."""
    return tensor.device.type == "cpu" and not isinstance(tensor, FakeTensor)


def as_on_gpu(*, wanted: bool) -> AbstractContextManager[None]:
    """Treat CPU tensors as GPU tensors inside a `with` block: for the forecast of a step on a GPU."""
    return _GPU.set(on=wanted)


def as_shapes(*, wanted: bool) -> AbstractContextManager[None]:
    """Treat tensors as shapes without values inside a `with` block: for the forecast of a step."""
    return _SHAPES.set(on=wanted)


def only_shapes() -> bool:
    """Whether tensors have no values: what depends on them is taken to be as large as it can be."""
    return _SHAPES.on


def for_memory() -> AbstractContextManager[None]:
    """Count nothing inside a `with` block but the memory that code takes: for the forecast of a step."""
    return _MEMORY.set(on=True)


def only_memory() -> bool:
    """Whether what repeats itself in the same memory may end after it was done once."""
    return _MEMORY.on


def works_on_cpu(tensor: Tensor) -> bool:
    """Whether to use the algorithms that are fast on a CPU."""
    return tensor.device.type == "cpu" and not _GPU.on
