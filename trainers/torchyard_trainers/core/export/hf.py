"""Formats `hf` and `hf-merged`: a folder that transformers and peft load.

`hf` has the layout of `save_pretrained`: safetensors, config, generation config, and the workload's assets (tokenizer,
chat template). Of a model that learns nothing but adapters it has the adapters only, as peft writes them; `hf-merged`
adds them to the weights of their base.
"""

import math
import shutil
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchyard_trainers.core.adapters import learns_only_adapters, merged, whole_modules
from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.export.sharded import FILE_BYTES, Entry, write_files
from torchyard_trainers.core.named_tensors import names_of, whole
from torchyard_trainers.core.pretrained import canonical, is_adapter, types_of
from torchyard_trainers.core.published import Piece, published
from torchyard_trainers.core.quantization import quantized_in
from torchyard_trainers.core.workload import Session, Workload

FORMATS = ("hf", "hf-merged")
ADAPTER = "adapter_model"
MODEL = "model"


class Types(NamedTuple):
    """The types in which weights are written: of most of them, and by the names in files of those that differ."""

    most: torch.dtype = torch.float32
    others: Mapping[str, torch.dtype] = MappingProxyType({})

    def of(self, name: str, tensor: Tensor) -> torch.dtype:
        """Return the type of a tensor."""
        return self.others.get(name, self.most) if tensor.is_floating_point() else tensor.dtype


_IN_FLOAT32 = Types()


def language_of(model: nn.Module) -> tuple[str, Any]:
    """Return the transformers model in a workload's model, and the prefix of its names.

    Raises:
        ConfigError: there is none.
    """
    from transformers import PreTrainedModel

    for name, each in model.named_modules():
        if isinstance(each, PreTrainedModel):
            return f"{name}." if name else "", each
    raise ConfigError("export.formats: hf needs a model of transformers; this workload has none: leave it out")


def write(
    work: Workload,
    session: Session,
    folder: Path,
    form: str,
    *,
    shared: bool,
    verify: bool,
    limit: int = FILE_BYTES,
) -> dict[str, Any]:
    """Write a format into an empty folder; return the facts for the manifest. Collective."""
    prefix, language = language_of(session.parallel.module)
    only_adapters = form == "hf" and learns_only_adapters(language)
    types = _types(work)
    entries = _adapters(language, types) if only_adapters else weight_entries(session.parallel.module, prefix, types)
    stem = ADAPTER if only_adapters else MODEL
    files = write_files(entries, folder, stem, session.world, shared=shared, verify=verify, limit=limit)
    base = str(work.pretrained.folder.absolute()) if work.pretrained is not None else None

    def add_configs() -> None:
        if only_adapters:
            (config,) = language.peft_config.values()
            config.base_model_name_or_path, config.inference_mode = base, True
            config.modules_to_save = whole_modules(language) or None
            config.save_pretrained(str(folder))
        else:
            _save_config(language, folder, types.most)
        _save_generation(language, folder)  # adapters may have learned to end answers with other tokens than their base
        add_assets(folder, work.assets())

    session.world.from_leader(add_configs)
    return {"parameters": sum(entry.numbers for entry in entries), "files": files, "base": base}


def _types(work: Workload) -> Types:
    """Return the types that a workload asks for, or those of the weights that it started from."""
    if work.export_dtype is not None:
        return Types(getattr(torch, work.export_dtype))
    if work.pretrained is None:
        return Types()
    stored = types_of(work.pretrained)
    most, _ = Counter(stored.values()).most_common(1)[0]
    return Types(most, {name: each for name, each in stored.items() if each != most})


def add_assets(folder: Path, assets: Mapping[str, Path | str]) -> None:
    """Write files that belong to a model: copies of files, or text, by their path in the folder."""
    for name, content in assets.items():
        target = folder / name
        assert target.resolve().is_relative_to(folder.resolve()), f"{name}: outside the folder"
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            shutil.copyfile(content, target)
        else:
            target.write_text(content)


def weight_entries(model: nn.Module, prefix: str, types: Types = _IN_FLOAT32) -> list[Entry]:
    """Return the weights of the language model in the layout of its family, with adapters added to their base."""
    parts: dict[str, tuple[str, Tensor]] = {}
    quantized = quantized_in(model)
    seen = {id(each.scales) for each in quantized.values()}
    for name, tensor in names_of(model).items():
        inner = name.removeprefix(prefix)
        if not name.startswith(prefix) or is_adapter(inner) or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        parts[canonical(inner)] = (name, tensor)
    language: Any = model.get_submodule(prefix.rstrip("."))
    shapes = {
        name: quantized[id(tensor)].shape if id(tensor) in quantized else tensor.shape
        for name, (_, tensor) in parts.items()
    }
    layout = published(language, shapes)

    @lru_cache(1)  # the pieces of a parameter follow each other
    def gathered(shown: str) -> Tensor:
        name, tensor = parts[shown]
        layer = quantized.get(id(tensor))
        return merged(model, name, whole(tensor.detach()) if layer is None else layer.dequantized())

    def part(shown: str, piece: Piece) -> Tensor:
        every = gathered(shown)
        return (every if piece.at is None else every[piece.at]).to(types.of(piece.name, every))

    entries = []
    for shown, (_, tensor) in parts.items():
        pieces = layout.get(shown) or [Piece(shown)]
        numbers = math.prod(shapes[shown]) // len(pieces)
        like = torch.empty(0) if id(tensor) in quantized else tensor
        for each in pieces:
            size = numbers * types.of(each.name, like).itemsize
            entries.append(Entry(each.name, size, partial(part, shown, each), numbers))
    return entries


def _adapters(language: nn.Module, types: Types) -> list[Entry]:
    """Return the adapters under the names that peft gives them, with the modules that are trained beside them.

    These have the types of the base. Tied weights are there under each of their names, since peft copies each module.
    """

    def peft_name(name: str) -> str:
        return "base_model.model." + name.replace(".default.", ".")

    def entry(name: str, tensor: Tensor) -> Entry:
        dtype = tensor.dtype if is_adapter(name) else types.of(name, tensor)
        size = tensor.numel() * dtype.itemsize
        return Entry(peft_name(name), size, lambda: whole(tensor.detach()).to(dtype), tensor.numel())

    beside = set(whole_modules(language))
    return [
        entry(name, tensor)
        for name, tensor in names_of(language).items()
        if is_adapter(name) or name.rpartition(".")[0] in beside
    ]


def _save_config(language: Any, folder: Path, dtype: torch.dtype) -> None:
    config = type(language.config).from_dict(language.config.to_dict())
    config.dtype = dtype
    config.architectures = [original_class(type(language)).__name__]
    config.save_pretrained(str(folder))


def _save_generation(language: Any, folder: Path) -> None:
    if getattr(language, "generation_config", None) is not None:
        # `save_pretrained` raises an error at settings that contradict each other, which published models have.
        language.generation_config.to_json_file(str(folder / "generation_config.json"))


def original_class(kind: type) -> type:
    """Return the class below the one that FSDP made."""
    from torch.distributed.fsdp import FSDPModule

    return next(each for each in kind.__mro__ if not issubclass(each, FSDPModule))
