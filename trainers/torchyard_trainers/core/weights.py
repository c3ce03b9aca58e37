"""Weights apart from the architecture: a model is built without them, sharded, and only then filled.

No process ever holds the whole model: parameters are built on the meta device, and each process fills its own shards
from the files of a pretrained model, or with initial values. These follow from the name of a module and the seed, so
that they are the same in every process and at every world size.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol, cast

import torch
from torch import Tensor, distributed, nn
from torch.nn.parameter import is_lazy

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.named_tensors import local_part, names_of
from torchyard_trainers.core.pretrained import Pretrained, stream
from torchyard_trainers.core.randomness import stream_key
from torchyard_trainers.core.world import World

Initialize = Callable[[nn.Module, nn.Module, str], None]


class Architecture(Protocol):
    """A model and where its weights come from: what of a `core.workload.Workload` is needed here."""

    pretrained: Pretrained | None
    deferred: bool
    identity: Mapping[str, str | int | float]

    def build(self) -> nn.Module:
        """Build the model."""

    def initialize(self, model: nn.Module, module: nn.Module, name: str) -> None:
        """Fill the parameters of one of its modules."""


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Create parameters without memory inside a `with` block; buffers, such as rotary frequencies, get their values.

    A parameter moves to the meta device when its module registers it, before anything writes to it.
    """
    register = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, parameter)
        held = module._parameters[name]  # noqa: SLF001 - as accelerate does
        if held is not None and not is_lazy(held) and not held.is_meta:
            empty = nn.Parameter(held.detach().to("meta"), requires_grad=held.requires_grad)
            module._parameters[name] = empty  # noqa: SLF001

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def is_deferred(work: Architecture) -> bool:
    """Return whether `build` makes a model without weights, which are filled in when it is sharded."""
    return work.deferred or work.pretrained is not None


def built(work: Architecture) -> nn.Module:
    """Build the model of a workload; its parameters have no memory yet if `is_deferred`.

    Raises:
        ConfigError: it has lazy layers.
    """
    with parameters_on_meta() if is_deferred(work) else nullcontext():
        model = work.build()
    for name, each in model.named_parameters():
        if is_lazy(each):
            layer = model.get_submodule(name.rpartition(".")[0])
            raise ConfigError(
                f"the model has a lazy layer {name.rpartition('.')[0]!r} ({type(layer).__name__}), whose weights have "
                "no size before its first input; make it with the sizes of its inputs, as nn.Linear(in, out)"
            )
    return model


def allocate(model: nn.Module, device: torch.device) -> None:
    """Allocate parameters that are on the meta device, and move the others to the device; tied ones stay tied."""
    swaps = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)  # a parameter remains the same object
    try:
        model._apply(lambda each: torch.empty_like(each, device=device) if each.is_meta else each.to(device))  # noqa: SLF001
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swaps)


def fill(work: Architecture, model: nn.Module, world: World) -> None:
    """Fill an allocated, possibly sharded model: from the pretrained files, and what they lack initially. Collective.

    Raises:
        DataMismatchError: the files do not fit the model.
        ConfigError: there are no such files, or it is not known how to initialize a module.
    """
    rest = set(names_of(model))
    if work.pretrained is not None:
        rest -= stream(work.pretrained, model, world)
    initialize(work, model, world, rest)


def initialize(work: Architecture, model: nn.Module, world: World, names: set[str]) -> None:
    """Fill the named parameters with initial values. Each rank makes those of some modules. Collective."""
    owners: list[tuple[str, nn.Module, list[str]]] = []
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        own = [
            name
            for name, each in module.named_parameters(recurse=False)
            if f"{prefix}.{name}".removeprefix(".") in names and id(each) not in seen
        ]
        seen |= {id(each) for each in module.parameters(recurse=False)}
        if own:
            owners.append((prefix, module, own))
    seed = int(work.identity.get("seed", 0))
    for start in range(0, len(owners), world.size):
        together = owners[start : start + world.size]
        values: Mapping[str, Tensor] = {}
        if world.rank < len(together):
            prefix, module, _ = together[world.rank]
            values = _initial(work, model, prefix, module, seed)
        for rank, (_, module, own) in enumerate(together):
            for name in own:
                whole = values[name] if rank == world.rank else None
                _put(module.get_parameter(name), whole, rank, world)


def default_initialize(model: nn.Module, module: nn.Module, name: str) -> None:
    """Initialize the parameters of one module as its library does.

    Args:
        model: the whole model; a model of transformers in it knows how to initialize its modules.
        module: holds the parameters.
        name: of the module in the model.

    Raises:
        ConfigError: it is not known how.
    """
    if ".lora_B." in f".{name}.":  # the product of both adapters is 0 at first
        for each in module.parameters():
            nn.init.zeros_(each)
        return
    places = [model] if name == "" else [model, *_path(model, name)]
    knows = next((each for each in reversed(places) if hasattr(each, "_init_weights")), None)
    if knows is not None and ".lora_A." not in f".{name}.":
        cast("Any", knows)._init_weights(module)  # noqa: SLF001
    elif hasattr(module, "reset_parameters"):
        cast("Any", module).reset_parameters()
    else:
        raise ConfigError(
            f"{type(module).__name__} {name!r} has no reset_parameters, so its initial weights are unknown; add that "
            "method, or define `initialize` of the workload"
        )


def _initial(
    work: Architecture, model: nn.Module, prefix: str, module: nn.Module, seed: int
) -> Mapping[str, nn.Parameter]:
    """Return initial values of a module's own parameters, on the CPU."""
    bare = _bare(module)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(stream_key(seed, f"weights of {prefix}") % 2**63)
        work.initialize(model, bare, prefix)
    return dict(bare.named_parameters())


def _bare(module: nn.Module) -> nn.Module:
    """Return a module with parameters of the same shapes on the CPU, and without the modules below it."""
    from torch.distributed.fsdp import FSDPModule

    kind = next(each for each in type(module).__mro__ if not issubclass(each, FSDPModule))
    bare: nn.Module = object.__new__(kind)
    bare.__dict__ = {
        **module.__dict__,
        "_modules": {},
        "_parameters": {
            name: each if each is None else nn.Parameter(torch.zeros(each.shape, dtype=torch.float32))
            for name, each in module._parameters.items()  # noqa: SLF001
        },
    }
    return bare


def _put(parameter: Tensor, whole: Tensor | None, owner: int, world: World) -> None:
    """Copy a tensor that rank `owner` has to all ranks' parts of a parameter."""
    local, part = local_part(parameter)
    if world.size > 1:
        if whole is None:
            whole = torch.empty(parameter.shape, dtype=torch.float32)
        whole = whole.detach().to(world.device)
        distributed.broadcast(whole, src=owner)
    assert whole is not None
    local.copy_(whole[part] if part else whole)


def _path(model: nn.Module, name: str) -> Iterator[nn.Module]:
    """Yield the modules on the way to a module, without the model itself."""
    for part in name.split("."):
        model = model.get_submodule(part)
        yield model
