"""What a tensor's device allows, and how work is done there."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


def reads_freely(tensor: Tensor) -> bool:
    """Whether looking at its numbers waits for nothing: it is on a CPU and has some; a forecast's tensors have none."""
    return tensor.device.type == "cpu" and not isinstance(tensor, FakeTensor)


class _Switch:
    gpu = False


_SWITCH = _Switch()


@contextmanager
def as_on_gpu(*, wanted: bool) -> Iterator[None]:
    """Do work on a CPU's tensors meanwhile as a GPU's would be done: for the forecast of a step there."""
    before, _SWITCH.gpu = _SWITCH.gpu, wanted
    try:
        yield
    finally:
        _SWITCH.gpu = before


def works_on_cpu(tensor: Tensor) -> bool:
    """Whether work on the tensor is a CPU's, which is fast at other things than a GPU."""
    return tensor.device.type == "cpu" and not _SWITCH.gpu
