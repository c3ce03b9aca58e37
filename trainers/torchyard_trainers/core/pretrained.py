"""Weights of a Hugging Face folder: safetensors in one file or several, read into the shards of a model.

Each process reads only the rows that it holds. Nothing in a folder is executed: no pickle, no code of a model.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchyard_trainers.core.exits import ConfigError, DataMismatchError
from torchyard_trainers.core.json_text import parse_json
from torchyard_trainers.core.model_config import check_is_file, other_weights
from torchyard_trainers.core.named_tensors import local_part, names_of
from torchyard_trainers.core.new_rows import fill_grown
from torchyard_trainers.core.published import Piece, published
from torchyard_trainers.core.quantization import QuantizedLinear, quantized_in
from torchyard_trainers.core.world import World
from torchyard_trainers.core.wrappers import wrapper_of

FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 64 * 1024 * 1024
# Of all files together: some 300,000 tensors; a model of 10^12 weights has 140,000. Each costs 1 KiB and 10 us to read.
MAX_HEADER_BYTES = 32 * 1024 * 1024
# Types of weights in files, by the names that safetensors gives them.
_FLOATS = {"F64": torch.float32, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
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
        converts: the part is a model of transformers, whose files have the layout of its family: experts one by one.
        added: rows of its embedding and output layer that get new values, whether or not the files have them: see
            `core.new_rows`.
        field: of the job that names the folder; errors begin with it.
    """

    folder: Path
    prefix: str = ""
    new: Sequence[str] = ()
    renamed: Sequence[tuple[str, str]] = ()
    converts: bool = False
    added: range = range(0)
    field: str = "trainer.params.pretrained"

    def at(self, path: Path) -> str:
        """Return how errors about the folder, or a file in it, begin."""
        return f"{self.field}: {path}"


def check_holds(pretrained: Pretrained, model: nn.Module) -> None:
    """Check, before memory is allocated, that the files of a folder are large enough for the weights of a model.

    Raises:
        ConfigError: the folder has no safetensors.
        DataMismatchError: the files are too small.
    """
    files = list(files_in(pretrained))
    stored = sum(path.stat().st_size for path in files)
    weights = {id(each): each.numel() for name, each in names_of(model).items() if _is_filled(name, pretrained)}
    if sum(weights.values()) > stored:
        raise DataMismatchError(
            f"{pretrained.at(pretrained.folder)} does not fit the model: its config.json describes "
            f"{sum(weights.values())} weights, and its files have {stored} bytes. Copy the folder again"
        )


def stream(pretrained: Pretrained, model: nn.Module, world: World) -> set[str]:
    """Read the weights into a model that is allocated and possibly sharded; return their names in it. Collective.

    The type of a weight in a file may differ from that of the parameter: bf16 files fill fp32 masters.

    Raises:
        ConfigError: the folder has no safetensors.
        DataMismatchError: names or shapes differ; the error lists missing, unexpected and mis-shaped tensors.
    """
    held = {name: tensor for name, tensor in names_of(model).items() if _is_filled(name, pretrained)}
    scales = {id(each.scales) for each in quantized_in(model).values()}
    wanted = {canonical(name, pretrained): tensor for name, tensor in held.items() if id(tensor) not in scales}
    plan: Plan = {}
    world.agree(lambda: plan.update(_plan(pretrained, model, wanted)))
    world.agree(lambda: _read(pretrained, plan))
    return set(held)


class _Reading(NamedTuple):
    """What to read of a file: a name in it, and where in which parameter it belongs.

    Attributes:
        again: the parameter is read from another name, too, and has to be the same there.
        grows: it has rows for new tokens.
        quantized: the layer that the parameter is the weight of, if it holds 4 bits of each number.
    """

    piece: Piece
    tensor: Tensor
    again: bool
    grows: bool = False
    quantized: QuantizedLinear | None = None


Plan = dict[Path, list[_Reading]]


class _Stored(NamedTuple):
    """A tensor of a file."""

    file: Path
    name: str
    shape: tuple[int, ...]
    type: str


def _plan(pretrained: Pretrained, model: nn.Module, wanted: Mapping[str, Tensor]) -> Plan:
    """Return what to read of each file."""
    language: Any = model.get_submodule(pretrained.prefix.rstrip(".")) if pretrained.converts else None
    layout = published(language, {name: each.shape for name, each in wanted.items()}) if pretrained.converts else {}
    expected = {*wanted, *(piece.name for pieces in layout.values() for piece in pieces)}
    base = f"{language.base_model_prefix}." if pretrained.converts else ""
    stored: dict[str, _Stored] = {}
    for file, tensors in files_of(pretrained).items():
        for own, (shape, kind) in tensors.items():
            name = _renamed(own, pretrained)
            # The base model alone may have been saved.
            name = f"{base}{name}" if name not in expected and f"{base}{name}" in expected else name
            stored[name] = _Stored(file, own, shape, kind)
    if opaque := [name for name, pieces in layout.items() if not pieces and name not in stored]:
        raise ConfigError(
            f"{pretrained.at(pretrained.folder)}: files of this family hold {_some(opaque)} in another form, which "
            "cannot be read into shards; load it with transformers, and "
            "save_pretrained(..., save_original_format=False)"
        )
    pieces = {name: [Piece(name)] if name in stored else layout.get(name, [Piece(name)]) for name in wanted}
    parts = [(piece, wanted[name]) for name, found in pieces.items() for piece in found]
    found = {id(tensor) for piece, tensor in parts if piece.name in stored}  # of a tied parameter one name is enough
    grown, quantized = _grown(pretrained, language), quantized_in(model)

    def shape_of(piece: Piece, tensor: Tensor) -> list[int]:
        return quantized[id(tensor)].shape if id(tensor) in quantized else _shape(piece, tensor)

    names, ignored = {piece.name for piece, _ in parts}, [_NOT_WEIGHTS, *_ignored_by(model)]
    faults = {
        "missing": [
            piece.name
            for piece, tensor in parts
            if piece.name not in stored and (piece.at is not None or id(tensor) not in found)
        ],
        "unexpected": [
            name for name in stored if name not in names and not any(pattern.search(name) for pattern in ignored)
        ],
        "of another shape": [
            f"{piece.name} {list(stored[piece.name].shape)} for {shape_of(piece, tensor)}"
            for piece, tensor in parts
            if piece.name in stored
            and not _fits(list(stored[piece.name].shape), shape_of(piece, tensor), id(tensor) in grown)
        ],
        "of a type that holds no weights (quantized ones have to be converted)": [
            f"{piece.name} {stored[piece.name].type}"
            for piece, tensor in parts
            if piece.name in stored
            and (tensor.is_floating_point() or id(tensor) in quantized)
            and stored[piece.name].type not in _FLOATS
        ],
    }
    if any(faults.values()):
        own_names = [each.name for each in stored.values() if not is_adapter(each.name)]
        if wrapper := wrapper_of(own_names, lambda own: {_renamed(own, pretrained), base + own} & expected != set()):
            raise DataMismatchError(f"{pretrained.at(pretrained.folder)} does not fit the model: {wrapper}")
        raise DataMismatchError(_described(pretrained, faults))
    plan: Plan = defaultdict(list)
    read: set[tuple[int, str]] = set()
    for piece, tensor in parts:
        if piece.name in stored:
            key, at = (id(tensor), "" if piece.at is None else piece.name), stored[piece.name]
            again = key in read
            plan[at.file].append(
                _Reading(Piece(at.name, piece.at), tensor, again, id(tensor) in grown, quantized.get(id(tensor)))
            )
            read.add(key)
    return plan


def _grown(pretrained: Pretrained, language: Any) -> set[int]:
    """Return the ids of the parameters with a row for each token, if tokens are added."""
    if not pretrained.added:
        return set()
    layers = [language.get_input_embeddings(), language.get_output_embeddings()]
    return {id(each) for layer in layers if layer is not None for each in layer.parameters(recurse=False)}


def _fits(stored: list[int], wanted: list[int], grows: bool) -> bool:
    return stored == wanted or (grows and stored[1:] == wanted[1:] and stored[0] < wanted[0])


def _shape(piece: Piece, tensor: Tensor) -> list[int]:
    if piece.at is None:
        return list(tensor.shape)
    _, rows = piece.at
    return [rows.stop - rows.start, *tensor.shape[2:]]


def files_in(pretrained: Pretrained) -> Iterator[Path]:
    """Yield the safetensors files of a folder.

    Raises:
        ConfigError: there are none, or the index is not one.
        DataMismatchError: the index names a file that does not exist.
    """
    folder, index = pretrained.folder, _index_of(pretrained)
    if index is None and not (folder / FILE).is_file():
        there = other_weights(folder) if folder.is_dir() else "does not exist; name a folder of a Hugging Face model"
        raise ConfigError(f"{pretrained.at(folder)} {there}")
    for name in sorted(set(index.values())) if index is not None else [FILE]:
        path = folder / name
        if not path.is_file():
            raise DataMismatchError(
                f"{pretrained.at(folder)}: {INDEX} names {name}, which does not exist; copy the folder again"
            )
        check_is_file(path, pretrained.at(path), DataMismatchError)
        yield path


def files_of(pretrained: Pretrained) -> dict[Path, dict[str, tuple[tuple[int, ...], str]]]:
    """Return the safetensors files of a folder, with the names, shapes and types of their tensors.

    Raises:
        ConfigError: there are none, or the index is not one.
        DataMismatchError: the index names a tensor that its file lacks, or a file is damaged.
    """
    from safetensors import SafetensorError, safe_open

    found: dict[Path, dict[str, tuple[tuple[int, ...], str]]] = {}
    folder, left = pretrained.folder, MAX_HEADER_BYTES
    for path in files_in(pretrained):
        left -= _header_size(path)
        if left < 0:
            raise DataMismatchError(
                f"{pretrained.at(path)}: the list of tensors, with those of the files before it, would have more than "
                f"{MAX_HEADER_BYTES >> 20} MiB, which no model has; copy the folder again"
            )
        try:
            with safe_open(path, framework="pt") as file:
                slices = {each: file.get_slice(each) for each in file.keys()}  # noqa: SIM118
                found[path] = {name: (tuple(each.get_shape()), each.get_dtype()) for name, each in slices.items()}
        except SafetensorError as error:
            raise DataMismatchError(
                f"{pretrained.at(path)}: not a safetensors file ({error}); copy it again"
            ) from error
    index = _index_of(pretrained)
    if index is not None:
        lost = [name for name, file in index.items() if name not in found[folder / file]]
        if lost:
            raise DataMismatchError(
                f"{pretrained.at(folder)}: {INDEX} names {_some(lost)}, which their files lack; copy them again"
            )
        found = {
            path: {name: each for name, each in tensors.items() if index.get(name) == path.name}
            for path, tensors in found.items()
        }
    return found


def types_of(pretrained: Pretrained) -> dict[str, torch.dtype]:
    """Return the type of each tensor of floating-point numbers in a folder, by its name there; float64 is float32.

    Raises:
        ConfigError: the folder has no safetensors.
        DataMismatchError: a file is damaged.
    """
    every = (pair for tensors in files_of(pretrained).values() for pair in tensors.items())
    return {name: _FLOATS[kind] for name, (_, kind) in every if kind in _FLOATS}


def _header_size(path: Path) -> int:
    """Return the bytes of a safetensors file's list of tensors, as its first 8 bytes give them."""
    with path.open("rb") as file:
        return int.from_bytes(file.read(8), "little")


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


def _is_filled(name: str, pretrained: Pretrained) -> bool:
    """Return whether the folder has the values of a parameter."""
    new = is_adapter(name) or any(fnmatchcase(name, pattern) for pattern in pretrained.new)
    return name.startswith(pretrained.prefix) and not new


def _read(pretrained: Pretrained, plan: Mapping[Path, Iterable[_Reading]]) -> None:
    """Read the tensors of the files.

    Raises:
        DataMismatchError: a weight is not finite, so that no loss would be, or a tied one has two values.
    """
    from safetensors import safe_open

    for path, parts in plan.items():
        with safe_open(path, framework="pt") as file, torch.no_grad():
            for piece, tensor, again, grows, quantized in parts:
                local, part = local_part(tensor)
                if not local.numel() or again:
                    continue
                if quantized is not None:
                    filled = file.get_slice(piece.name)[part[0]]
                    quantized.put(local, local_part(quantized.scales)[0], filled)
                elif grows:
                    filled = local
                    fill_grown(filled, part, file.get_slice(piece.name), pretrained.added, piece.name)
                elif piece.at is None:
                    filled = local
                    filled.copy_(file.get_slice(piece.name)[part] if part else file.get_tensor(piece.name))
                else:
                    (expert, rows), (held, *rest) = piece.at, part
                    assert [each.stop - each.start for each in rest] == list(tensor.shape[1:]), "sharded by experts"
                    if not held.start <= expert < held.stop:
                        continue
                    filled = local[expert - held.start, rows]
                    filled.copy_(file.get_tensor(piece.name))
                if not filled.isfinite().all():
                    raise DataMismatchError(
                        f"{pretrained.at(path)}: {piece.name} has values that are not finite numbers; copy the file "
                        "again, or name the weights of an earlier step"
                    )

    _compare(pretrained, plan)


def _compare(pretrained: Pretrained, plan: Mapping[Path, Iterable[_Reading]]) -> None:
    """Check that a tied weight has the same values under each of its names.

    Raises:
        DataMismatchError: it has not, so that one of them would be lost.
    """
    from safetensors import safe_open

    for path, parts in plan.items():
        if not (repeated := [each for each in parts if each.again]):
            continue
        with safe_open(path, framework="pt") as file, torch.no_grad():
            for piece, tensor, _, grows, _ in repeated:
                local, part = local_part(tensor)
                stored = file.get_slice(piece.name)
                if grows:  # but for the rows that are new
                    end = max(part[0].start, min(part[0].stop, stored.get_shape()[0], pretrained.added.start))
                    local, part = local[: end - part[0].start], (slice(part[0].start, end), *part[1:])
                there = stored[part] if part else file.get_tensor(piece.name)
                least = min(there.dtype, local.dtype, key=lambda each: each.itemsize)
                if not torch.equal(there.to(local.device, least), local.to(least)):
                    raise DataMismatchError(
                        f"{pretrained.at(path)}: {piece.name} has other values than the weights that config.json ties "
                        "it to; set tie_word_embeddings: false there, or remove it from the file"
                    )


def _index_of(pretrained: Pretrained) -> dict[str, str] | None:
    path = pretrained.folder / INDEX
    at = pretrained.at(path)
    if not path.is_file():
        return None
    if path.stat().st_size > MAX_INDEX_BYTES:
        raise ConfigError(f"{at}: larger than {MAX_INDEX_BYTES >> 20} MiB; not an index of a model")
    check_is_file(path, at)
    try:
        weight_map: Any = parse_json(path.read_text())["weight_map"]
        names = {str(name): str(file) for name, file in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{at}: has no weight_map ({error}); copy the folder again") from error
    outside = [file for file in set(names.values()) if Path(file).name != file or not file.endswith(".safetensors")]
    if outside:
        raise ConfigError(f"{at}: names {_some(outside)}; only safetensors files of the same folder are read")
    return names


def _ignored_by(model: nn.Module) -> list[re.Pattern[str]]:
    """Return the patterns of tensors that a transformers model does not expect, and does not mind."""
    patterns = [
        pattern
        for each in model.modules()
        for pattern in getattr(each, "_keys_to_ignore_on_load_unexpected", None) or ()
    ]
    return [re.compile(pattern) for pattern in dict.fromkeys(patterns)]


def _described(pretrained: Pretrained, faults: Mapping[str, Sequence[str]]) -> str:
    listed = "; ".join(f"{len(names)} {kind}: {_some(names)}" for kind, names in faults.items() if names)
    at = pretrained.at(pretrained.folder)
    return f"{at} does not fit the model: {listed}. Name a folder with this architecture, or change the model"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if names[_SHOWN:] else "")
