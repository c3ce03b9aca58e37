"""Weights of a Hugging Face folder: safetensors in one file or several, read into the shards of a model.

Each process reads only the rows that it holds. Nothing in a folder is executed: no pickle, no code of a model.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchyard_trainers.core.exits import ConfigError, DataMismatchError
from torchyard_trainers.core.named_tensors import local_part, names_of
from torchyard_trainers.core.world import World

FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 64 * 1024 * 1024
MAX_CONFIG_BYTES = 1 << 20
_SHOWN = 5  # names in an error
# Recomputed from the config; old files hold them.
_NOT_WEIGHTS = re.compile(r"(\.|^)(rotary_emb\.inv_freq|attn\.masked_bias|attn\.bias)$")
# What peft puts into names: the layer that an adapter wraps, and a layer that it trains beside its original.
_WRAPPED = re.compile(r"\.base_layer(?=\.)|\.original_module(?=\.)|^base_model\.model\.")
_ADAPTER = re.compile(r"(\.|^)(lora_[A-Za-z_]+|modules_to_save)\.")


@dataclass(frozen=True)
class Pretrained:
    """A folder with the weights of a model, or of a part of it.

    Attributes:
        folder: with `model.safetensors`, or `model.safetensors.index.json` and the files that it names.
        prefix: of the names in the workload's model, for a part: `language.`.
        new: patterns of names in the model that the folder has no weights for: `value_head.*`. Parts outside of
            `prefix` and adapters are always new. They get initial values.
        renamed: patterns of names in files, and what replaces them; the first match counts. Published models of some
            families name their parts as earlier versions of transformers did.
    """

    folder: Path
    prefix: str = ""
    new: Sequence[str] = ()
    renamed: Sequence[tuple[str, str]] = ()


def read_config_json(folder: Path, field: str) -> tuple[dict[str, Any], str]:
    """Return the `config.json` of a folder, and how errors about it begin.

    Args:
        folder: of a model.
        field: of the job that names the folder.

    Raises:
        ConfigError: there is no such file, or it is not a JSON object.
    """
    path = folder / "config.json"
    at = f"{field}: {path}"
    if not path.is_file() or path.stat().st_size > MAX_CONFIG_BYTES:
        raise ConfigError(f"{at} is not a file of a model; name a folder that save_pretrained or export hf has written")
    try:
        tree = json.loads(path.read_text())
    except ValueError as error:
        raise ConfigError(f"{at} is not a config of a model: {error}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{at} is not a config of a model: it is not a JSON object")
    return tree, at


def stream(pretrained: Pretrained, model: nn.Module, world: World) -> set[str]:
    """Read the weights into a model that is allocated and possibly sharded; return their names in it. Collective.

    The type of a weight in a file may differ from that of the parameter: bf16 files fill fp32 masters.

    Raises:
        ConfigError: the folder has no safetensors.
        DataMismatchError: names or shapes differ; the error lists missing, unexpected and mis-shaped tensors.
    """
    held = names_of(model)
    plan: dict[Path, list[tuple[str, Tensor]]] = defaultdict(list)  # by the names in the file

    def match() -> None:
        files = files_of(pretrained.folder)
        places = {_renamed(name, pretrained): (file, name) for file, names in files.items() for name in names}
        wanted = {
            canonical(name, pretrained): tensor
            for name, tensor in held.items()
            if name.startswith(pretrained.prefix) and not _is_new(name, pretrained)
        }
        shapes = {name: files[file][own] for name, (file, own) in places.items()}
        ignored = _ignored_by(model)
        found = {id(tensor) for name, tensor in wanted.items() if name in places}
        faults = {
            "missing": [name for name, tensor in wanted.items() if name not in places and id(tensor) not in found],
            "unexpected": [
                name
                for name in places
                if name not in wanted
                and not _NOT_WEIGHTS.search(name)
                and not any(each.search(name) for each in ignored)
            ],
            "of another shape": [
                f"{name} {list(shapes[name])} for {list(tensor.shape)}"
                for name, tensor in wanted.items()
                if name in places and tuple(shapes[name]) != tuple(tensor.shape)
            ],
        }
        if any(faults.values()):
            raise DataMismatchError(_described(pretrained.folder, faults))
        read: set[int] = set()
        for name, tensor in wanted.items():
            if name in places and id(tensor) not in read:
                read.add(id(tensor))
                file, own = places[name]
                plan[file].append((own, tensor))

    world.agree(match)
    world.agree(lambda: _read(plan))
    return {name for name in held if name.startswith(pretrained.prefix) and not _is_new(name, pretrained)}


def files_of(folder: Path) -> dict[Path, dict[str, tuple[int, ...]]]:
    """Return the safetensors files of a folder, with the names and shapes of their tensors.

    Raises:
        ConfigError: there are none, or the index is not one.
        DataMismatchError: the index names a tensor that its file lacks, or a file is damaged.
    """
    from safetensors import SafetensorError, safe_open

    index = _index_of(folder)
    if index is None and not (folder / FILE).is_file():
        there = "does not exist" if not folder.is_dir() else f"has neither {FILE} nor {INDEX}"
        raise ConfigError(
            f"{folder} {there}; name a folder of a Hugging Face model with safetensors (other formats can hold code: "
            "convert them with save_pretrained)"
        )
    names = sorted(set(index.values())) if index is not None else [FILE]
    found: dict[Path, dict[str, tuple[int, ...]]] = {}
    for name in names:
        path = folder / name
        if not path.is_file():
            raise DataMismatchError(f"{folder}: {INDEX} names {name}, which does not exist; copy the folder again")
        try:
            with safe_open(path, framework="pt") as file:
                found[path] = {each: tuple(file.get_slice(each).get_shape()) for each in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise DataMismatchError(f"{path}: not a safetensors file ({error}); copy it again") from error
    if index is not None:
        lost = [name for name, file in index.items() if name not in found[folder / file]]
        if lost:
            raise DataMismatchError(f"{folder}: {INDEX} names {_some(lost)}, which their files lack; copy them again")
        found = {
            path: {name: shape for name, shape in tensors.items() if index.get(name) == path.name}
            for path, tensors in found.items()
        }
    return found


def canonical(name: str, pretrained: Pretrained | None = None) -> str:
    """Return the name of a parameter without the prefix and without what peft puts into it."""
    return _WRAPPED.sub("", name.removeprefix(pretrained.prefix if pretrained is not None else ""))


def is_adapter(name: str) -> bool:
    """Return whether a parameter is a part of a peft adapter."""
    return _ADAPTER.search(name) is not None


def _renamed(name: str, pretrained: Pretrained) -> str:
    """Return the name in the model of a tensor in a file."""
    for pattern, replacement in pretrained.renamed:
        found, times = re.subn(pattern, replacement, name, count=1)
        if times:
            return found
    return name


def _is_new(name: str, pretrained: Pretrained) -> bool:
    return is_adapter(name) or any(fnmatchcase(name, pattern) for pattern in pretrained.new)


def _read(plan: Mapping[Path, Iterable[tuple[str, Tensor]]]) -> None:
    from safetensors import safe_open

    for path, tensors in plan.items():
        with safe_open(path, framework="pt") as file, torch.no_grad():
            for name, tensor in tensors:
                local, part = local_part(tensor)
                if local.numel():
                    local.copy_(file.get_slice(name)[part] if part else file.get_tensor(name))


def _index_of(folder: Path) -> dict[str, str] | None:
    path = folder / INDEX
    if not path.is_file():
        return None
    if path.stat().st_size > MAX_INDEX_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_INDEX_BYTES >> 20} MiB; not an index of a model")
    try:
        weight_map: Any = json.loads(path.read_text())["weight_map"]
        names = {str(name): str(file) for name, file in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: has no weight_map ({error}); copy the folder again") from error
    outside = [file for file in set(names.values()) if Path(file).name != file or not file.endswith(".safetensors")]
    if outside:
        raise ConfigError(f"{path}: names {_some(outside)}; only safetensors files of the same folder are read")
    return names


def _ignored_by(model: nn.Module) -> list[re.Pattern[str]]:
    """Return the patterns of tensors that a transformers model does not expect, and does not mind."""
    patterns = [
        pattern
        for each in model.modules()
        for pattern in getattr(each, "_keys_to_ignore_on_load_unexpected", None) or ()
    ]
    return [re.compile(pattern) for pattern in dict.fromkeys(patterns)]


def _described(folder: Path, faults: Mapping[str, Sequence[str]]) -> str:
    told = "; ".join(f"{len(names)} {kind}: {_some(names)}" for kind, names in faults.items() if names)
    return f"{folder} does not fit the model: {told}. Name a folder with this architecture, or change the model"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if names[_SHOWN:] else "")
