"""The frozen parameters of a model: a checkpoint leaves out those that training does not change.

The base of a LoRA is read from its own files at each start. Only its fingerprint is stored, so that a run cannot resume
on another base. A frozen parameter that does change, such as a moving average inside the model, is saved like others.
"""

import hashlib
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, distributed, nn

# Elements that are converted at a time: a checksum must not need as much memory as the parameter.
_CHUNK = 1 << 24
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class FrozenBase:
    """The frozen parameters of a (possibly sharded) model, as they are when this is created. Collective."""

    def __init__(self, module: nn.Module) -> None:
        held = module.state_dict(keep_vars=True)  # a tied parameter has two names here
        self._frozen = {
            name: each for name, each in held.items() if isinstance(each, nn.Parameter) and not each.requires_grad
        }
        self._before = self._checksums()
        self.fingerprint = self._fingerprint()  # the same at every world size and in bf16 as in fp32; "" without any

    def limited(self, state: dict[str, Any], held: Collection[str]) -> dict[str, Any]:
        """Return a state of the model without the frozen parameters that are not in `held`."""
        return {name: value for name, value in state.items() if name not in self._frozen or name in held}

    def changed(self) -> set[str]:
        """Return the names of those that some rank has changed. Collective."""
        if not self._frozen:
            return set()
        moved = self._checksums() != self._before
        if distributed.is_initialized():
            flags = moved.to(torch.int32).to(_device(self._frozen))
            distributed.all_reduce(flags, distributed.ReduceOp.MAX)
            moved = flags.cpu() > 0
        return {name for name, changed in zip(self._frozen, moved.tolist(), strict=True) if changed}

    def _checksums(self) -> Tensor:
        sums = [_checksum(_local(each)) for each in self._frozen.values()]
        return torch.stack(sums).cpu() if sums else torch.zeros(0, dtype=torch.int64)

    def _fingerprint(self) -> str:
        if not self._frozen:
            return ""
        # Rounded to bf16, so that a base in compute precision has the fingerprint of its files.
        sums = torch.stack(
            [_checksum(_local(each), torch.bfloat16) * _counts_once(each) for each in self._frozen.values()]
        ).to(_device(self._frozen))
        if distributed.is_initialized():
            distributed.all_reduce(sums)  # shards of all ranks
        lines = [
            f"{name} {tuple(each.shape)} {total}"
            for (name, each), total in zip(self._frozen.items(), sums.tolist(), strict=True)
        ]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _checksum(tensor: Tensor, kind: torch.dtype | None = None) -> Tensor:
    """Return the sum of the bits of all elements as integers; sums of shards add up to that of the whole."""
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for part in tensor.reshape(-1).split(_CHUNK):
        bits = (part if kind is None else part.to(kind)).view(_BITS[kind.itemsize if kind else part.element_size()])
        total += bits.sum(dtype=torch.int64)
    return total


def _local(parameter: Tensor) -> Tensor:
    local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return local.detach()


def _counts_once(parameter: Tensor) -> int:
    """Return 1 on one of the ranks that hold the same part of a parameter, 0 on the others."""
    from torch.distributed.tensor import DTensor

    if not isinstance(parameter, DTensor):
        return int(not distributed.is_initialized() or distributed.get_rank() == 0)
    place = parameter.device_mesh.get_coordinate()
    assert place is not None
    copies = zip(place, parameter.placements, strict=True)
    return int(all(at == 0 for at, placement in copies if placement.is_replicate()))


def _device(parameters: dict[str, nn.Parameter]) -> torch.device:
    """Return a device that collectives accept: offloaded parameters are on the host, their process group is not."""
    device = next(iter(parameters.values())).device
    return torch.device("cuda") if device.type == "cpu" and distributed.is_initialized() and _on_gpu() else device


def _on_gpu() -> bool:
    return distributed.get_backend() == "nccl"
