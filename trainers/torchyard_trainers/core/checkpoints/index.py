"""The index of a checkpoint: which tensor lies where, as JSON. Reading it can build data and nothing else.

torch.distributed.checkpoint pickles its own index, and a pickle is a program: anyone who can write the file can run
code in every job that reads it. So this index names types from closed lists, and its numbers, names and sizes are
bounded before anything is allocated or opened.
"""

import json
import math
import os
import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch

from torchyard_trainers.core.checkpoints.files import read_bytes
from torchyard_trainers.core.json_text import parse_json

INDEX = "index.json"
PICKLED_INDEX = ".metadata"  # of torch.distributed.checkpoint, which earlier versions of this file's package wrote
MAX_INDEX_BYTES = 64 * 1024 * 1024
_MAX_DEPTH = 16

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.uint16, torch.uint32, torch.uint64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.complex64, torch.complex128),
    )
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Shape = Annotated[tuple[Count, ...], msgspec.Meta(max_length=16)]
Name = Annotated[str, msgspec.Meta(max_length=1024)]
_FILE = re.compile(r"__\d{1,7}_0\.bin")


class Chunk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A box of a tensor, and the bytes of a file that hold it: contiguous, little-endian."""

    offsets: Shape
    sizes: Shape
    file: Name
    start: Count
    bytes: Count


class Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor of a checkpoint."""

    dtype: Name
    shape: Shape
    chunks: Annotated[list[Chunk], msgspec.Meta(max_length=1_000_000)]


class Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a checkpoint: tensors, and values as `encode` writes them."""

    schema: Annotated[int, msgspec.Meta(ge=1, le=1)]
    tensors: dict[Name, Stored]
    values: dict[Name, Any]


class UnreadableError(ValueError):
    """A checkpoint's index, or a file that it names, is not what this version writes."""


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype in an index.

    Raises:
        ValueError: checkpoints do not hold tensors of this dtype.
    """
    if dtype not in _NAMES:
        raise ValueError(f"a checkpoint cannot hold a tensor of {dtype}; use one of {', '.join(DTYPES)}")
    return _NAMES[dtype]


def encode(name: str, value: object) -> Any:
    """Return a value that is not a tensor as JSON data; tuples and dicts are tagged, so that `decode` restores them.

    Raises:
        ValueError: it is more than None, booleans, numbers and text in lists, tuples and dicts.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [encode(name, each) for each in value]
    if type(value) is tuple:
        return {"tuple": [encode(name, each) for each in value]}
    if isinstance(value, dict):
        return {"dict": [[encode(name, key), encode(name, each)] for key, each in value.items()]}
    raise ValueError(
        f"{name} is of type {type(value).__module__}.{type(value).__qualname__}; a checkpoint holds tensors, and None, "
        "booleans, numbers and text in lists, tuples and dicts: convert the value before it is saved"
    )


def decode(value: Any, depth: int = 0) -> Any:
    """Return what `encode` was given.

    Raises:
        ValueError: `encode` does not write this.
    """
    if depth > _MAX_DEPTH:
        raise ValueError(f"values are nested deeper than {_MAX_DEPTH}")
    if isinstance(value, list):
        return [decode(each, depth + 1) for each in value]
    if not isinstance(value, dict):
        return value
    match value:
        case {"tuple": list(items)} if len(value) == 1:
            return tuple(decode(each, depth + 1) for each in items)
        case {"dict": list(pairs)} if len(value) == 1 and all(isinstance(p, list) and len(p) == 2 for p in pairs):
            return {_key(decode(key, depth + 1)): decode(each, depth + 1) for key, each in pairs}
    raise ValueError(f"a value is {json.dumps(value)[:80]}, which is neither a tuple nor a dict")


def _key(key: object) -> object:
    if key is None or isinstance(key, bool | int | float | str):
        return key
    raise ValueError(f"a key is {str(key)[:80]!r}; keys are None, booleans, numbers and text")


def read_index(folder: Path) -> Index:
    """Read the index of a checkpoint, once, and check all of it.

    Raises:
        UnreadableError: it is missing, or not what this version writes.
        OSError: the volume does not hand it out.
    """
    try:
        data = read_bytes(folder / INDEX, MAX_INDEX_BYTES)
    except FileNotFoundError as error:
        if (folder / PICKLED_INDEX).exists():
            raise UnreadableError(
                f"its index is the pickle {PICKLED_INDEX}, which could run code and is not read; start from a "
                "checkpoint that this version has written, or train from the start"
            ) from error
        raise UnreadableError(f"{INDEX} is missing") from error
    except ValueError as error:
        raise UnreadableError(str(error)) from error
    try:
        # The json module reads NaN and infinities, which JSON has not and a learning rate may be.
        index = msgspec.convert(parse_json(data), Index)
        for name, stored in index.tensors.items():
            _check(name, stored)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"{INDEX}: {str(error)[:300]}") from error
    return index


def write_index(folder: Path, index: Index) -> None:
    """Write the index of a checkpoint, durably.

    Raises:
        ValueError: `read_index` would refuse it.
    """
    data = json.dumps(msgspec.to_builtins(index)).encode()
    if len(data) > MAX_INDEX_BYTES:
        raise ValueError(f"the index of the checkpoint takes {len(data):,} bytes, more than {MAX_INDEX_BYTES:,}")
    with (folder / INDEX).open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _check(name: str, stored: Stored) -> None:
    if stored.dtype not in DTYPES:
        raise ValueError(f"{name}: unknown dtype {stored.dtype[:40]!r}")
    width, held = DTYPES[stored.dtype].itemsize, 0
    for chunk in stored.chunks:
        if not len(chunk.offsets) == len(chunk.sizes) == len(stored.shape):
            raise ValueError(f"{name}: a chunk has another number of dimensions than the tensor")
        if any(at + size > whole for at, size, whole in zip(chunk.offsets, chunk.sizes, stored.shape, strict=True)):
            raise ValueError(f"{name}: a chunk reaches beyond the tensor's shape")
        if chunk.bytes != math.prod(chunk.sizes) * width:
            raise ValueError(f"{name}: a chunk has {chunk.bytes} bytes instead of {math.prod(chunk.sizes) * width}")
        if not _FILE.fullmatch(chunk.file):
            raise ValueError(f"{name}: {chunk.file[:80]!r} is not the name of a file of a checkpoint")
        held += math.prod(chunk.sizes)
    if held != math.prod(stored.shape):
        raise ValueError(f"{name}: its chunks hold {held} elements instead of {math.prod(stored.shape)}")


def file_of(rank: int) -> str:
    """Name the file that holds a rank's tensors."""
    return f"__{rank}_0.bin"
