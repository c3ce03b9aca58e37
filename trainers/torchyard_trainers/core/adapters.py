"""Low-rank adapters (LoRA) by peft, inside a model of transformers."""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from torch import Tensor, nn

from torchyard_trainers.core.exits import ConfigError, DataMismatchError
from torchyard_trainers.core.named_tensors import names_of
from torchyard_trainers.core.named_tensors import whole as gathered
from torchyard_trainers.core.pretrained import is_adapter

ADAPTERS = "adapter_config.json"
# Options of saved adapters that are applied, and those that mean nothing after training.
_TAKEN = ("r", "lora_alpha", "target_modules", "modules_to_save", "fan_in_fan_out", "use_rslora", "use_dora")
_IGNORED = {
    *("auto_mapping", "base_model_name_or_path", "bias", "inference_mode", "init_lora_weights", "lora_dropout"),
    *("megatron_core", "peft_type", "peft_version", "qalora_group_size", "revision", "task_type"),
}

# Classes of transformers whose `forward` writes out the product of `nn.Linear` and computes nothing else.
_PRODUCTS = ("FalconLinear",)

MOST_ADDED = 1 << 20  # tokens

M = TypeVar("M", bound=nn.Module)


def add_lora(
    language: M,
    *,
    rank: int,
    alpha: float,
    dropout: float = 0.0,
    targets: str | Sequence[str] = "all-linear",
    whole: Sequence[str] = (),
) -> M:
    """Freeze a model and put adapters beside its linear layers; call it in `Workload.build`.

    Args:
        language: a model of transformers; changed in place.
        rank: of the adapters.
        alpha: the product of both adapters is multiplied by `alpha / rank`.
        dropout: of the adapters' inputs.
        targets: names of linear layers (`q_proj`), or `all-linear` for all but the output layer. Experts of a mixture
            are no linear layers; they stay frozen, and with them the layers whose names peft takes for experts'.
        whole: names of modules that are trained themselves (`embed_tokens`), peft's `modules_to_save`.

    Raises:
        ConfigError: no layer has such a name, one that is not linear or the output layer, or one is named twice.
    """
    from peft import LoraConfig, inject_adapter_in_model
    from peft.tuners.lora import Linear

    wanted = _linear(language) if targets == "all-linear" else [targets] if isinstance(targets, str) else list(targets)
    if not wanted:
        raise ConfigError(
            f"LoRA targets: {type(language).__name__} has no linear layers that take adapters; train all weights"
        )
    if unknown := [each for each in wanted if not _has_layer(language, each)]:
        known = ", ".join(_linear(language))
        raise ConfigError(
            f"LoRA targets {wanted}: the model has no layer {unknown[0]!r}; its linear layers are {known}"
        )
    config = LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=wanted, task_type="CAUSAL_LM")
    head = output_layer(language)
    if of_head := [each for each in wanted if head is not None and f".{head}".endswith(f".{each}")]:
        raise ConfigError(
            f"LoRA targets {wanted}: {of_head[0]!r} is the output layer, whose weights are read without adapters (and "
            "are often those of the embedding); leave its name out, or train it whole (modulesToSave)"
        )
    unfrozen = [each for name in whole for each in _module(language, name, wanted)]
    language.requires_grad_(requires_grad=False)
    try:
        adapted = cast("M", inject_adapter_in_model(config, language))
    except ValueError as error:
        raise ConfigError(f"LoRA targets {wanted}: {error}") from error
    if other := [name for name, layer in _adapted(adapted) if not isinstance(layer, Linear)]:
        raise ConfigError(f"LoRA targets {wanted}: {other[0]} is not a linear layer; leave its name out")
    for each in unfrozen:
        each.requires_grad_(requires_grad=True)
    # For the export. Given before, peft would train copies of these modules.
    cast("Any", adapted).peft_config["default"].modules_to_save = list(whole) or None
    return adapted


def _module(language: nn.Module, name: str, targets: Sequence[str]) -> list[nn.Module]:
    """Return the modules of a name, which are trained beside adapters.

    Raises:
        ConfigError: there is none, it has no parameters of its own, or it gets adapters.
    """
    at = f"trainer.params.modulesToSave: {name!r}"
    found = {each: module for each, module in language.named_modules() if f".{each}".endswith(f".{name}")}
    if not found:
        head, embedding = output_layer(language), getattr(language, "get_input_embeddings", lambda: None)()
        names = [each for each, module in language.named_modules() if module is embedding]
        known = ", ".join(each.rpartition(".")[2] for each in (*names, head) if each)
        raise ConfigError(f"{at}: the model has no such module; its embedding and output layer are {known}")
    for each, module in found.items():
        if not list(module.parameters(recurse=False)):
            raise ConfigError(f"{at}: {each} has no weights of its own; name the modules in it")
        if any(f".{each}".endswith(f".{target}") for target in targets):
            raise ConfigError(f"{at}: {each} has adapters; leave it out of loraTargets, or of modulesToSave")
    return list(found.values())


def learns_only_adapters(language: nn.Module) -> bool:
    """Return whether a model is its frozen base, adapters, and modules named in `add_lora` that are trained whole."""
    if not has_adapters(language):
        return False
    configs = getattr(language, "peft_config", {}).values()  # those of a part of the model are in the part
    named = [f".{name}" for config in configs for name in config.modules_to_save or ()]
    modules = [each for name, each in language.named_modules() if f".{name}".endswith(tuple(named))]
    beside = {id(each) for module in modules for each in module.parameters(recurse=False)}
    trained = ((name, each) for name, each in language.named_parameters() if each.requires_grad)
    return all(is_adapter(name) or id(each) in beside for name, each in trained)


def whole_modules(language: nn.Module) -> list[str]:
    """Return the modules of a model with adapters that are trained themselves; one of each name of tied weights."""
    names = [name for name, each in names_of(language).items() if each.requires_grad and not is_adapter(name)]
    return list(dict.fromkeys(name.rpartition(".")[0] for name in names))


def output_layer(language: nn.Module) -> str | None:
    """Return the name of the layer that makes logits; None if there is none."""
    head = getattr(language, "get_output_embeddings", lambda: None)()
    return next((name for name, each in language.named_modules() if each is head), None) if head is not None else None


def _has_layer(language: nn.Module, target: str) -> bool:
    """Return whether a layer has a name; peft ignores one that none has, if another target has one."""
    return any(f".{name}".endswith(f".{target}") for name, _ in language.named_modules())


class SavedLora(NamedTuple):
    """Adapters of a folder."""

    folder: Path
    config: Mapping[str, Any]  # arguments of peft's LoraConfig
    weights: Mapping[str, Tensor]


def saved_lora(folder: Path, tree: Mapping[str, Any], at: str) -> SavedLora:
    """Read LoRA adapters that peft has saved.

    Only a closed list of options is taken: others make peft import modules, match patterns or read other files.

    Args:
        folder: with `adapter_model.safetensors`.
        tree: of its `adapter_config.json`.
        at: how errors about the config begin.

    Raises:
        ConfigError: these are no such adapters, or they have an option that is not known here.
        DataMismatchError: the file is damaged, or its sizes are not those of the config.
    """
    fix = "merge the adapters with peft's merge_and_unload, and name the folder of the whole model"
    if tree.get("peft_type") != "LORA":
        raise ConfigError(f"{at}: peft_type is {str(tree.get('peft_type'))[:40]!r}, expected 'LORA'; {fix}")
    for name, value in tree.items():
        if value and name not in _TAKEN and name not in _IGNORED:
            raise ConfigError(f"{at}: {str(name)[:40]} is set, which is not known here; {fix}")
    if tree.get("init_lora_weights", True) not in (True, False, "gaussian") or tree.get("bias", "none") != "none":
        raise ConfigError(f"{at}: init_lora_weights or bias changes the model beside its adapters; {fix}")
    config = {name: tree[name] for name in _TAKEN if tree.get(name) is not None}
    rank, targets = config.get("r"), config.get("target_modules")
    if not isinstance(rank, int) or rank < 1:
        raise ConfigError(f"{at}: r is {str(rank)[:40]}, expected the rank of the adapters; copy the folder again")
    for name, each in (("target_modules", targets), ("modules_to_save", config.get("modules_to_save", []))):
        if not isinstance(each, list) or not all(isinstance(one, str) for one in each):
            raise ConfigError(f"{at}: {name} is {str(each)[:40]!r}, expected a list of names; {fix}")
    return SavedLora(folder, config, _saved_weights(folder / "adapter_model.safetensors", rank, at))


def _saved_weights(path: Path, rank: int, at: str) -> dict[str, Tensor]:
    """Return the tensors of adapters of one rank; see `saved_lora`."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise ConfigError(f"{path}: does not exist; save the adapters with safetensors (other formats can hold code)")
    try:
        weights = load_file(path)
    except SafetensorError as error:
        raise DataMismatchError(f"{path}: not a safetensors file ({error}); copy it again") from error
    for name, each in weights.items():
        if not each.is_floating_point() or not each.isfinite().all():
            raise DataMismatchError(f"{path}: {name} does not consist of finite numbers; copy the file again")
        if ".lora_A." in name and each.shape[0] != rank:
            raise DataMismatchError(
                f"{path}: {name} has the rank {each.shape[0]}, and {at} says r: {rank}; copy both again"
            )
    if not any(".lora_A." in name for name in weights):
        raise DataMismatchError(f"{path} has no adapters of rank {rank}; copy the folder again")
    return weights


def merged_with(language: Any, adapters: SavedLora) -> Any:
    """Add saved adapters to the weights of a model of transformers, and return it.

    Raises:
        DataMismatchError: the adapters belong to another model.
    """
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict

    try:
        _grow(language, adapters)
        adapted: Any = get_peft_model(language, LoraConfig(**adapters.config, task_type="CAUSAL_LM"))
        odd = set_peft_model_state_dict(adapted, dict(adapters.weights)).unexpected_keys
    except (ValueError, TypeError, RuntimeError, AttributeError, KeyError) as error:
        raise DataMismatchError(f"{adapters.folder}: the adapters do not fit the base model: {error}") from error
    if odd:
        raise DataMismatchError(
            f"{adapters.folder}: the base model has no place for {', '.join(odd[:5])}; name its base"
        )
    return adapted.merge_and_unload()


def _grow(language: Any, adapters: SavedLora) -> None:
    """Add rows to the embedding of a model for tokens that were added when the adapters were trained."""
    embedding = language.get_input_embeddings()
    rows = len(embedding.weight)
    name = next(each for each, module in language.named_modules() if module is embedding)
    saved = adapters.weights.get(f"base_model.model.{name}.weight")
    if saved is not None and saved.ndim == 2 and rows < len(saved) <= rows + MOST_ADDED:
        language.resize_token_embeddings(len(saved), mean_resizing=False)


def _linear(language: nn.Module) -> list[str]:
    """Return the ends of the names of all linear layers but the output layer.

    A layer that computes more than a product, such as the router of Phi's experts, does not count. In a family with
    fused experts, peft reads `gate_proj` as that of the experts, also where a dense layer has the name (DeepSeek-V3):
    such names are left out, as adapters of these layers could not be loaded.
    """
    from peft import LoraConfig
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
    from transformers.pytorch_utils import Conv1D

    head = output_layer(language)
    layers = [
        name
        for name, each in language.named_modules()
        if name != head
        and (type(each).forward in (nn.Linear.forward, Conv1D.forward) or type(each).__name__ in _PRODUCTS)
    ]
    others = _ends({name for name, _ in language.named_modules()} - {*layers, head})
    understood = LoraConfig(target_modules=sorted({_short(name, others) for name in layers}))
    convert_peft_config_for_transformers(understood, language, None)
    return sorted(understood.target_modules)


def _short(name: str, others: Collection[str]) -> str:
    """Return the end of a name, of as few parts as no other name ends with: `q_proj`, but `attn.proj` and `mlp.0`."""
    parts = name.split(".")
    ends = (".".join(parts[-count:]) for count in range(1, len(parts) + 1))
    return next((each for each in ends if each not in others), name)


def _ends(names: Iterable[str]) -> set[str]:
    """Return all ends of names that are whole parts."""
    divided = [each.split(".") for each in names]
    return {".".join(parts[-count:]) for parts in divided for count in range(1, len(parts) + 1)}


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
        down, up = (gathered(part[adapter].weight.detach()).float() for part in (layer.lora_A, layer.lora_B))
        change = (up @ down) * layer.scaling[adapter]
        found = found + (change.T if layer.fan_in_fan_out else change)  # GPT-2 has matrices [in, out]
    return found


def _adapted(model: nn.Module) -> Iterator[tuple[str, Any]]:
    if "peft" not in sys.modules:  # to import it takes longer than an export, and nothing has made adapters
        return iter(())
    from peft.tuners.tuners_utils import BaseTunerLayer

    return ((name, each) for name, each in model.named_modules() if isinstance(each, BaseTunerLayer))
