"""What a tensor's device allows, and how work is done there."""

from contextlib import AbstractContextManager

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from torchyard_trainers.core.switch import Switch

_GPU = Switch()


def reads_freely(tensor: Tensor) -> bool:
    """Whether looking at its numbers waits for nothing: it is on a CPU and has some; a forecast's tensors have none."""
    return tensor.device.type == "cpu" and not isinstance(tensor, FakeTensor)


def as_on_gpu(*, wanted: bool) -> AbstractContextManager[None]:
    """Do work on a CPU's tensors meanwhile as a GPU's would be done: for the forecast of a step there."""
    return _GPU.held(on=wanted)


def works_on_cpu(tensor: Tensor) -> bool:
    """Whether work on the tensor is a CPU's, which is fast at other things than a GPU."""
    return tensor.device.type == "cpu" and not _GPU.on
