"""The `config.json` of a folder of Hugging Face, written by others: checked before a model is built of it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from torchyard_trainers.core.exits import ConfigError, TrainerError
from torchyard_trainers.core.hub import HEAD, folder_fix, other_than_file
from torchyard_trainers.core.json_text import parse_json

M = TypeVar("M", bound=nn.Module)

MAX_CONFIG_BYTES = 1 << 20
# Far beyond what is published; one of 10^6 layers takes minutes to build, one of 10^12 units no memory can hold.
MAX_LAYERS = 1024
MAX_SIZE = 2**24
_LAYERS = re.compile(r"(^|_)(layers|depths?|experts|blocks)$|^n_layer$", re.IGNORECASE)
_NOT_SIZES = re.compile(r"theta|base|token_id|_length$|^seed$", re.IGNORECASE)
MAX_BUFFER_BYTES = 2**30
GGUF = "*.gguf"


def read_config_json(folder: Path, field: str) -> tuple[dict[str, Any], str]:
    """Return the `config.json` of a folder, and how errors about it begin.

    Args:
        folder: of a model.
        field: of the job that names the folder.

    Raises:
        ConfigError: there is no such file, it is not a JSON object, one of its sizes is beyond every model, or it
            names code.
    """
    path = folder / "config.json"
    at = f"{field}: {path}"
    if other := _other_than_folder(folder):
        raise ConfigError(f"{field}: {folder} {other}")
    if not path.is_file() or path.stat().st_size > MAX_CONFIG_BYTES:
        raise ConfigError(f"{at} is not a file of a model; name a folder that save_pretrained or export hf has written")
    tree = read_object(path, at, "a config of a model")
    _check_fields(tree, at)
    return tree, at


def _other_than_folder(folder: Path) -> str:
    """Return what a path is that is no folder of a model, and what to do; "" if it may be one."""
    if not folder.exists():
        return f"does not exist; {folder_fix(str(folder), 'model')}"
    if folder.suffix == ".gguf" or (folder.is_dir() and not (folder / "config.json").exists() and _first(folder, GGUF)):
        return "is GGUF; convert it: from_pretrained(FOLDER, gguf_file=NAME) of transformers, and save_pretrained"
    if folder.is_file():
        return "is a file; name the folder that it is in"
    if not (folder / "config.json").exists() and (found := _first(folder, "snapshots/*")):
        return f"is a folder of the Hub's cache; name snapshots/{found} in it"
    return _with_adapters(folder) if (folder / "adapter_config.json").exists() else ""


def _with_adapters(folder: Path) -> str:
    """Return what to do with a folder of adapters; "" if it has nothing else that could be meant."""
    if not (folder / "config.json").exists():
        return "has adapters only; name the folder of their base model, and this one in checkpoint.initFrom"
    if _first(folder, "model*.safetensors"):
        return "has weights and adapters to them; merge them with peft (merge_and_unload), or move the adapters away"
    return ""


def other_weights(folder: Path) -> str:
    """Return what a folder without safetensors has in their place, and what to do."""
    if _first(folder, "pytorch_model*.bin"):
        return "has pytorch_model.bin, which can hold code; convert it: load it with transformers, and save_pretrained"
    if _first(folder, GGUF):
        return "has GGUF only; convert it: from_pretrained(FOLDER, gguf_file=NAME) of transformers, and save_pretrained"
    if found := _first(folder, "model*.safetensors"):
        return f"has {found}, but no model.safetensors and no index of its parts; rename the file, or copy the index"
    return "has neither model.safetensors nor model.safetensors.index.json; name a folder of a Hugging Face model"


def check_is_file(path: Path, at: str, error: type[TrainerError] = ConfigError) -> None:
    """Check that a file holds what was published, and nothing that stands for it.

    Args:
        path: of the file.
        at: how errors about it begin.
        error: to raise.

    Raises:
        TrainerError: it is a pointer of Git LFS, or a web page.
    """
    with path.open("rb") as file:
        if other := other_than_file(file.read(HEAD)):
            raise error(f"{at} {other}")


def _first(folder: Path, pattern: str) -> str | None:
    return next((each.name for each in sorted(folder.glob(pattern))), None)


def read_object(path: Path, at: str, what: str) -> dict[str, Any]:
    """Return the JSON object in a small file of a folder.

    Args:
        path: of the file.
        at: how errors about it begin.
        what: the file should be: `a config of a model`.

    Raises:
        ConfigError: it is larger than 1 MiB, or not a JSON object.
    """
    try:
        if not path.is_file() or path.stat().st_size > MAX_CONFIG_BYTES:
            raise ConfigError(f"{at} is not {what}: it is not a file of at most {MAX_CONFIG_BYTES >> 20} MiB")
        check_is_file(path, at)
        tree = parse_json(path.read_text())
    except (ValueError, OSError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{at} is not {what}: {error}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{at} is not {what}: it is not a JSON object")
    return tree


def one_line(error: BaseException) -> str:
    """Return what an error of a library says, on one line of bounded length."""
    return " ".join(str(error).split())[:500] or type(error).__name__


def _check_fields(tree: dict[str, Any], at: str) -> None:
    """Check the numbers of a config, and that it names no code, before anything is built of them.

    Raises:
        ConfigError: naming the first field that is too large, or names code.
    """
    left: list[tuple[str, str, Any]] = [("", "", tree)]
    while left:
        path, key, value = left.pop()
        if isinstance(value, dict):
            left += [(f"{path}.{name}".removeprefix("."), str(name), each) for name, each in value.items()]
        elif isinstance(value, list):
            left += [(path, key, each) for each in value]
        elif isinstance(value, str) and "_implementation" in path and not value.isidentifier():
            # transformers would fetch compiled code of that name, and run it.
            raise ConfigError(f"{at}: {path} names code, {value[:80]!r}, which is never run; remove the field")
        elif isinstance(value, int) and not _NOT_SIZES.search(key):
            limit = MAX_LAYERS if _LAYERS.search(key) else MAX_SIZE
            if value > limit or (limit == MAX_LAYERS and value < 0):
                raise ConfigError(
                    f"{at}: {path} is {str(value)[:24]}, expected 0 to {limit}: that is no size of a model; copy "
                    "config.json again"
                )


def build_of(config_at: str, build: Callable[[], M]) -> M:
    """Build a model of a folder; its parameters have no memory inside `core.weights.parameters_on_meta`.

    It is first built without memory at all: masks of some families are as large as the square of their positions.

    Args:
        config_at: how errors about the config begin.
        build: makes a model of the config.

    Raises:
        ConfigError: no model can be made of the config, or one whose buffers are beyond 1 GiB.
    """
    try:
        with unset_fake_temporarily(), torch.device("meta"):
            shapes = build()
        buffers = sum(each.numel() * each.element_size() for each in shapes.buffers())
        if buffers <= MAX_BUFFER_BYTES:
            return build()
    except Exception as error:  # the classes of the families raise anything
        raise ConfigError(
            f"{config_at}: no model can be made of it: {one_line(error)}; copy the folder again"
        ) from error
    raise ConfigError(
        f"{config_at} describes masks and tables of {buffers >> 30} GiB beside the weights; lower its positions"
    )
