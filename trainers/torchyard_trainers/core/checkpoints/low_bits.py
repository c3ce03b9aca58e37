"""Optimizer state of 8 bits (torchao) in checkpoints, which hold plain fp32 tensors: they load at any world size."""

from typing import Any

import torch
from torch import Tensor


def in_full(value: Any) -> Any:
    """Return optimizer state with its 8-bit tensors in fp32."""
    from torch.distributed.tensor import DTensor

    if isinstance(value, dict):
        return {name: in_full(each) for name, each in value.items()}
    if not _has_8_bits(value):
        return value
    if not isinstance(value, DTensor):
        return value.dequantize(torch.float32)
    full = value.to_local().dequantize(torch.float32)
    where = {"shape": value.shape, "stride": value.stride(), "run_check": False}
    return DTensor.from_local(full, value.device_mesh, value.placements, **where)


def as_held(held: Any, loaded: Any) -> Any:
    """Return loaded optimizer state in which what is held in 8 bits is so again.

    With the blocks that it was saved with, it has the same values; another sharding has other blocks, and rounds.
    """
    if isinstance(loaded, dict):
        return {name: as_held(held[name], each) for name, each in loaded.items()}
    if not _has_8_bits(held):
        return loaded
    _round(_local(held), _local(loaded))
    return held


@torch.no_grad()
def _round(held: Any, values: Tensor) -> None:
    """Fill 8-bit state with values, exactly if it can hold them.

    A block was scaled so that its largest magnitude is 1, which a positive value keeps and a negative one does not: the
    least number of 8 bits is -0.993. So the scale is the largest magnitude, or that divided by 0.993.
    """
    from torchao.optim.quant_utils import quantize_8bit_with_qmap

    held.copy_(values)
    blocks = values.reshape(-1, held.block_size).float()
    divided = blocks.abs().amax(-1) / held.qmap[0].abs().clamp(min=0.1)
    infinity = torch.tensor(torch.inf, device=divided.device)
    codes, scale = held.codes.view(-1, held.block_size), held.scale
    for candidate in (divided, divided.nextafter(infinity), divided.nextafter(-infinity)):
        wrong = (held.qmap[codes.long()] * scale[:, None] != blocks).any(-1)
        if not wrong.any():
            return
        other = quantize_8bit_with_qmap(blocks / candidate[:, None], held.qmap)
        right = wrong & (held.qmap[other.long()] * candidate[:, None] == blocks).all(-1)
        codes[right], scale[right] = other[right], candidate[right]


def _has_8_bits(value: Any) -> bool:
    return isinstance(value, Tensor) and hasattr(_local(value), "codes")


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
