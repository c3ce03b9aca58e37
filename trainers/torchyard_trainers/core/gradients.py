"""Gradients and optimizer updates of sharded parameters, computed on the shards of this rank.

DTensor derives how the result of each operation is sharded, once for each list of shapes: in a small model that takes a
third of a worker's time before its second step. What works element by element needs no derivation.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard

LORA = "lora_"  # in the names of adapters
_EXPERT = re.compile(r"experts?\.\d+\.")


def never_learned(missing: Sequence[Sequence[str]], trainable: Iterable[str]) -> list[str]:
    """Return the parameters that a step gives no gradient to. Pure.

    An expert of a mixture to which a step sends no token is left out, if another one of its layer has a gradient.

    Args:
        missing: the parameters without a gradient, of each rank.
        trainable: the parameters that could have one.
    """
    nowhere = set(missing[0]).intersection(*missing[1:])
    learned = {_EXPERT.sub("experts.#.", name) for name in trainable if name not in nowhere}
    return sorted(name for name in nowhere if _EXPERT.sub("experts.#.", name) not in learned)


def shard_of(tensor: Tensor) -> Tensor:
    """Return this rank's shard, which shares the memory of the tensor; a tensor that is not sharded is its own."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def scale(gradients: Iterable[Tensor], factor: Tensor) -> None:
    """Multiply gradients in place by a number that is equal on every rank."""
    alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for shard in map(shard_of, gradients):
        alike[shard.device, shard.dtype].append(shard)
    for (device, dtype), shards in alike.items():
        torch._foreach_mul_(shards, factor.to(device, dtype))


@torch.no_grad()
def clip(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Clip gradients in place to a global norm; return the norm before clipping, equal on every rank.

    Collective if the parameters are sharded.
    """
    learned = [each for each in parameters if each.grad is not None]
    gradients = [each.grad for each in learned if each.grad is not None]
    if not any(isinstance(each, DTensor) for each in gradients):
        return nn.utils.clip_grad_norm_(learned, max_norm)
    norm = _norm(gradients)
    scale(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


def _norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the norm of all gradients of all ranks, in double precision."""
    alike: dict[Any, list[Tensor]] = defaultdict(list)  # by where other shards are
    for each in gradients:
        alike[(each.device_mesh, each.placements) if isinstance(each, DTensor) else None].append(shard_of(each))
    squares = []
    for where, shards in alike.items():
        norms = torch._foreach_norm(shards)  # noqa: SLF001
        square = torch.stack([norm.double() for norm in norms]).square().sum()
        for dimension, placement in enumerate(where[1] if where else ()):
            assert isinstance(placement, (Shard, Replicate)), f"gradients are reduced before they are clipped: {where}"
            if isinstance(placement, Shard):
                torch.distributed.all_reduce(square, group=where[0].get_group(dimension))
        squares.append(square)
    return torch.stack(squares).sum().sqrt()
