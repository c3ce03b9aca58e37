"""Parameters and buffers of a model by name, and this process's part of a sharded one."""

from typing import cast

from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.tensor import DTensor


def names_of(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and saved buffers by name; a tied parameter has all its names."""
    return cast("dict[str, Tensor]", model.state_dict(keep_vars=True))


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor unsharded. Collective if it is sharded."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def local_part(tensor: Tensor) -> tuple[Tensor, tuple[slice, ...]]:
    """Return this process's part of a possibly sharded tensor, and where that is in the whole."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if not isinstance(tensor, DTensor):
        return tensor.detach(), tuple(slice(0, size) for size in tensor.shape)
    with unset_fake_temporarily():  # it computes numbers with tensors, also in a forecast
        shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    local = tensor.to_local().detach()
    assert tuple(shape) == tuple(local.shape)
    return local, tuple(slice(at, at + size) for at, size in zip(offset, shape, strict=True))
