"""What a tensor's device allows."""

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


def reads_freely(tensor: Tensor) -> bool:
    """Whether looking at its numbers waits for nothing: it is on a CPU and has some; a forecast's tensors have none."""
    return tensor.device.type == "cpu" and not isinstance(tensor, FakeTensor)
