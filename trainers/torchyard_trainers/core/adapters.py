"""Low-rank adapters (LoRA) by peft, inside a model of transformers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from torch import Tensor, nn

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.parallel import whole

M = TypeVar("M", bound=nn.Module)


def add_lora(
    language: M, *, rank: int, alpha: float, dropout: float = 0.0, targets: str | Sequence[str] = "all-linear"
) -> M:
    """Freeze a model and put adapters beside its linear layers; call it in `Workload.build`.

    Args:
        language: a model of transformers; changed in place.
        rank: of the adapters.
        alpha: the product of both adapters is multiplied by `alpha / rank`.
        dropout: of the adapters' inputs.
        targets: names of linear layers (`q_proj`), or `all-linear` for all but the output layer. Experts of a mixture
            are no linear layers; they stay frozen, and with them the layers whose names peft takes for experts'.

    Raises:
        ConfigError: no layer has such a name, or one that is not linear.
    """
    from peft import LoraConfig, inject_adapter_in_model
    from peft.tuners.lora import Linear

    wanted = _linear(language) if targets == "all-linear" else [targets] if isinstance(targets, str) else list(targets)
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=wanted, task_type="CAUSAL_LM")
    language.requires_grad_(requires_grad=False)
    try:
        adapted = cast("M", inject_adapter_in_model(config, language))
    except ValueError as error:
        raise ConfigError(f"LoRA targets {wanted}: {error}") from error
    if other := [name for name, layer in _adapted(adapted) if not isinstance(layer, Linear)]:
        raise ConfigError(f"LoRA targets {wanted}: {other[0]} is not a linear layer; leave its name out")
    return adapted


def _linear(language: nn.Module) -> list[str]:
    """Return the last part of the names of all linear layers but the output layer.

    In a family with fused experts, peft reads `gate_proj` as that of the experts, also where a dense layer has the name
    (DeepSeek-V3): such names are left out, as adapters of these layers could not be loaded.
    """
    from peft import LoraConfig
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
    from transformers.pytorch_utils import Conv1D

    head = getattr(language, "get_output_embeddings", lambda: None)()
    layers = [
        name for name, each in language.named_modules() if isinstance(each, nn.Linear | Conv1D) and each is not head
    ]
    understood = LoraConfig(target_modules=sorted({name.rsplit(".", 1)[-1] for name in layers}))
    convert_peft_config_for_transformers(understood, language, None)
    return sorted(understood.target_modules)


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """Compute with the frozen base alone inside a `with` block, as a reference."""
    layers = [each for _, each in _adapted(model)]
    for layer in layers:
        layer._disable_adapters = True  # noqa: SLF001 - `enable_adapters` would also change requires_grad
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False  # noqa: SLF001


def has_adapters(model: nn.Module) -> bool:
    """Return whether a model has adapters of peft."""
    return any(True for _ in _adapted(model))


def merged(model: nn.Module, name: str, base: Tensor) -> Tensor:
    """Return a whole weight with the product of its adapters added; the weight itself if it has none. Collective.

    Args:
        model: has the weight.
        name: of the weight in the model.
        base: the whole weight.
    """
    place = name.removesuffix(".base_layer.weight")
    if place == name:
        return base
    layer: Any = model.get_submodule(place)
    found = base.float()
    for adapter in layer.active_adapters:
        down, up = (whole(part[adapter].weight.detach()).float() for part in (layer.lora_A, layer.lora_B))
        change = (up @ down) * layer.scaling[adapter]
        found = found + (change.T if layer.fan_in_fan_out else change)  # GPT-2 has matrices [in, out]
    return found


def _adapted(model: nn.Module) -> Iterator[tuple[str, Any]]:
    from peft.tuners.tuners_utils import BaseTunerLayer

    return ((name, each) for name, each in model.named_modules() if isinstance(each, BaseTunerLayer))
