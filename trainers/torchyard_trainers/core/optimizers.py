"""Optimizers by parameter name: groups, AdamW (optionally with 8-bit state), Muon, and several optimizers as one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.util import find_spec
from itertools import chain
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.optim import Optimizer

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.gradients import shard_of

Rates = Mapping[str, float]
NO_RATES: Rates = MappingProxyType({})


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that take a gradient by name; a tied parameter has its first name only."""
    return {name: each for name, each in model.named_parameters() if each.requires_grad}


def groups(
    model: nn.Module, *, weight_decay: float, rates: Rates = NO_RATES, only: Iterable[str] | None = None
) -> list[dict[str, Any]]:
    """Return parameter groups of a model: vectors (norms, biases) and embeddings do not decay.

    Args:
        model: possibly sharded.
        weight_decay: of all other parameters.
        rates: pattern of parameter names (`value_head.*`) to factor of the learning rate; the first match counts.
        only: names of the parameters to group; None: all trainable ones.

    Raises:
        ConfigError: a pattern matches no trainable parameter.
    """
    learned = trainable(model)
    for pattern in rates:
        if not any(fnmatchcase(name, pattern) for name in learned):
            raise ConfigError(
                f"learning rate of {pattern!r}: no trainable parameter has such a name; the first ones are "
                f"{', '.join(list(learned)[:3])}"
            )
    still = {id(each) for each in _embeddings(model)}
    found: dict[tuple[float, float], list[tuple[str, nn.Parameter]]] = {}
    for name in learned if only is None else only:
        each = learned[name]
        decay = 0.0 if each.ndim < 2 or id(each) in still else weight_decay
        scale = next((factor for pattern, factor in rates.items() if fnmatchcase(name, pattern)), 1.0)
        found.setdefault((decay, scale), []).append((name, each))
    return [
        {"params": [each for _, each in members], "weight_decay": decay, "lr_scale": scale}
        for (decay, scale), members in found.items()
    ]


def adamw(
    model: nn.Module,
    lr: float,
    *,
    weight_decay: float = 0.01,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    rates: Rates = NO_RATES,
    bits: Literal[8, 32] = 32,
) -> Optimizer:
    """Return AdamW over the groups of `groups`; 8 bits store its state in a quarter of the memory.

    Raises:
        ConfigError: 8 bits without torchao, or a pattern of `rates` matches nothing.
    """
    return _adamw(groups(model, weight_decay=weight_decay, rates=rates), lr, betas=betas, eps=eps, bits=bits)


def muon(
    model: nn.Module,
    lr: float,
    *,
    weight_decay: float = 0.1,
    momentum: float = 0.95,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    rates: Rates = NO_RATES,
) -> list[Optimizer]:
    """Return Muon for the matrices inside the model, and AdamW for vectors, embeddings, heads and all else.

    Updates of Muon are scaled to the size of AdamW's, so that one learning rate serves both.
    """
    outer = {id(each) for each in chain(_embeddings(model), _heads(model))}
    learned = trainable(model)
    matrices = [name for name, each in learned.items() if each.ndim == 2 and id(each) not in outer]
    others = [name for name in learned if name not in set(matrices)]
    made: list[Optimizer] = []
    if matrices:
        found = groups(model, weight_decay=weight_decay, rates=rates, only=matrices)
        made.append(Muon(found, lr=lr, momentum=momentum, adjust_lr_fn="match_rms_adamw"))
    if others:
        found = groups(model, weight_decay=weight_decay, rates=rates, only=others)
        made.append(_adamw(found, lr, betas=betas, eps=eps, bits=32))
    return made


class AdamW(torch.optim.AdamW):
    """PyTorch's AdamW, which updates the shards of sharded parameters as plain tensors: its update is elementwise."""

    def _init_group(self, group: dict[str, Any], *lists: list[Tensor]) -> bool:
        found: bool = super()._init_group(group, *lists)
        if any(isinstance(each, DTensor) for each in lists[0]):  # the parameters
            for tensors in lists:
                tensors[:] = map(shard_of, tensors)
        return found


class Muon(torch.optim.Muon):
    """PyTorch's Muon, also for sharded matrices: the update of one matrix at a time is gathered on every rank."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all matrices that have a gradient."""
        from torch.optim._muon import _adjust_lr, _zeropower_via_newtonschulz

        assert closure is None, "the loop calls the loss"
        for group in self.param_groups:
            weights: list[Tensor] = []
            gradients: list[Tensor] = []
            moments: list[Tensor] = []
            self._init_group(group, weights, gradients, moments)
            lr, momentum = float(group["lr"]), group["momentum"]
            for weight, gradient, moment in zip(weights, gradients, moments, strict=True):
                moment.lerp_(gradient, 1 - momentum)
                update = gradient.lerp(moment, momentum) if group["nesterov"] else moment
                whole = update.full_tensor() if hasattr(update, "full_tensor") else update
                direction = _zeropower_via_newtonschulz(
                    whole, group["ns_coefficients"], group["ns_steps"], group["eps"]
                )
                weight.mul_(1 - lr * group["weight_decay"])
                scaled = direction.to(weight.dtype) * -_adjust_lr(lr, group["adjust_lr_fn"], weight.shape)
                weight.add_(_like(weight, scaled))


class Optimizers(Optimizer):
    """Several optimizers of different parameters, which step as one."""

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self.parts = list(parts)  # the base class would make groups and state of its own
        self.defaults: dict[str, Any] = {}

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of all parts: the same objects."""
        return [group for part in self.parts for group in part.param_groups]

    @property
    def state(self) -> dict[Tensor, Any]:  # type: ignore[override]
        """The state of all parts by parameter."""
        return {key: value for part in self.parts for key, value in part.state.items()}

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step with each part."""
        assert closure is None, "the loop calls the loss"
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of all parts."""
        for part in self.parts:
            part.zero_grad(set_to_none=set_to_none)


def set_rate(group: dict[str, Any], rate: float) -> None:
    """Set the learning rate of a parameter group, also where it is a tensor, as those of 8-bit AdamW are."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def as_one(made: Optimizer | Sequence[Optimizer]) -> Optimizer:
    """Return what `Workload.optimizer` returned as one optimizer."""
    if isinstance(made, Optimizer):
        return made
    return made[0] if len(made) == 1 else Optimizers(made)


def parts_of(optimizer: Optimizer) -> list[Optimizer]:
    """Return the optimizers that `as_one` joined."""
    return optimizer.parts if isinstance(optimizer, Optimizers) else [optimizer]


def _adamw(
    found: list[dict[str, Any]], lr: float, *, betas: tuple[float, float], eps: float, bits: Literal[8, 32]
) -> Optimizer:
    if bits == 32:
        return AdamW(found, lr=lr, betas=betas, eps=eps, fused=True)
    if find_spec("torchao") is None:
        raise ConfigError(
            "8-bit AdamW needs torchao, which is not installed here; install torchyard[lowbit] or use adamw"
        )
    from torchao.optim import AdamW8bit

    made: Optimizer = AdamW8bit(found, lr=lr, betas=betas, eps=eps)
    return made


def _embeddings(model: nn.Module) -> Iterator[nn.Parameter]:
    return (each.weight for each in model.modules() if isinstance(each, nn.Embedding))


def _heads(model: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters of the output layer that a transformers model names."""
    for each in model.modules():
        head = each.get_output_embeddings() if hasattr(each, "get_output_embeddings") else None
        if isinstance(head, nn.Module):
            yield from head.parameters()


def _like(weight: Tensor, whole: Tensor) -> Tensor:
    """Return the part of an equal tensor of all ranks that a sharded weight has; no communication."""
    if not isinstance(weight, DTensor):
        return whole
    mesh = weight.device_mesh
    everywhere = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return everywhere.redistribute(placements=weight.placements)
