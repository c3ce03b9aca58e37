"""Tensors of a checkpoint in files without pickle: storage and planners for torch.distributed.checkpoint.

Each rank writes the bytes of its tensors into one file, and rank 0 an index. DCP decides who writes and reads what;
what is read back is bytes at positions that the index names, checked against the size of the file.
"""

import io
import json
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import metadata
from torch.distributed.checkpoint._nested_dict import set_element
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from torchyard_trainers.core.checkpoints.files import open_regular
from torchyard_trainers.core.checkpoints.index import (
    DTYPES,
    Chunk,
    Index,
    Stored,
    UnreadableError,
    decode,
    dtype_name,
    encode,
    file_of,
    read_index,
    write_index,
)


@dataclass(frozen=True)
class Location:
    """Where a rank wrote a box of a tensor."""

    dtype: str
    chunk: Chunk


@dataclass(frozen=True)
class Value:
    """What a rank has for the index: a value that is not a tensor, as JSON text."""

    text: str


class Writer(StorageWriter):
    """Write a checkpoint into an existing or new folder, durably."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: a writer serves one save."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002 -- the interface of DCP
        """Create the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Name the file of each rank."""
        return [replace(plan, storage_data=file_of(rank)) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's tensors one after the other; values travel to rank 0 in the result."""
        results = []
        with (self._folder / plan.storage_data).open("wb") as file:
            for item in plan.items:
                data = planner.resolve_data(item)
                if item.type == WriteItemType.BYTE_IO:
                    text = data.getvalue().decode()
                    results.append(WriteResult(item.index, len(text), Value(text)))
                    continue
                start, content = file.tell(), _bytes_of(data)
                file.write(content)
                chunk = Chunk(_offsets(item), tuple(data.shape), plan.storage_data, start, len(content))
                results.append(WriteResult(item.index, len(content), Location(dtype_name(data.dtype), chunk)))
            file.flush()
            os.fsync(file.fileno())
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: metadata.Metadata, results: list[list[WriteResult]]) -> None:
        """Write the index, on rank 0."""
        tensors: dict[str, Stored] = {}
        values: dict[str, Any] = {}
        for result in (each for part in results for each in part):
            name, found = result.index.fqn, result.storage_data
            if isinstance(found, Value):
                values[name] = json.loads(found.text)
                continue
            shape = tuple(metadata.state_dict_metadata[name].size)
            tensors.setdefault(name, Stored(found.dtype, shape, [])).chunks.append(found.chunk)
        write_index(self._folder, Index(1, tensors, values))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003 -- the interface of DCP
        """Accept any."""
        return True


class Reader(StorageReader):
    """Read a checkpoint of `Writer` at whatever world size or sharding.

    Raises:
        UnreadableError: its index is missing or not what `Writer` writes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._index = read_index(folder)
        self._chunks = {
            (name, chunk.offsets): (DTYPES[stored.dtype], chunk)
            for name, stored in self._index.tensors.items()
            for chunk in stored.chunks
        }

    @property
    def names(self) -> set[str]:
        """The names of all tensors and values."""
        return self._index.tensors.keys() | self._index.values.keys()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: a reader serves one load."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> metadata.Metadata:  # noqa: ARG002 -- the interface of DCP
        """Return the index that was read, in DCP's words."""
        entries: dict[str, Any] = {name: _in_dcp(stored) for name, stored in self._index.tensors.items()}
        entries |= {name: metadata.BytesStorageMetadata() for name in self._index.values}
        return metadata.Metadata(entries)

    def set_up_storage_reader(
        self, metadata: metadata.Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Do nothing: the index has been read."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what the plan asks for, one box at a time, in the order of the files."""
        wanted = []
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                text = json.dumps(self._index.values[item.storage_index.fqn])
                planner.load_bytes(item, io.BytesIO(text.encode()))
            else:
                dtype, chunk = self._chunks[item.storage_index.fqn, tuple(item.storage_index.offset or ())]
                wanted.append((chunk.file, chunk.start, item, dtype, chunk))
        files = {name: open_regular(self._folder / name) for name in sorted({each[0] for each in wanted})}
        try:
            for name, _, item, dtype, chunk in sorted(wanted, key=lambda each: each[:2]):
                target = planner.resolve_tensor(item).detach()
                target.copy_(_read(files[name], name, dtype, chunk, item))
                planner.commit_tensor(item, target)
        finally:
            for file in files.values():
                file.close()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003 -- the interface of DCP
        """Accept any."""
        return True


class SaveValues(DefaultSavePlanner):
    """Plan a save; values that are not tensors become JSON, not pickles."""

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:  # noqa: A002 -- the interface of DCP
        """Return a tensor as it is, a value as the bytes of JSON text."""
        if write_item.type == WriteItemType.BYTE_IO:
            return io.BytesIO(json.dumps(encode(write_item.index.fqn, object)).encode())
        return object


class LoadValues(DefaultLoadPlanner):
    """Plan a load; values that are not tensors are JSON."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Put a value into the state.

        Raises:
            UnreadableError: the state has a tensor in its place.
        """
        name = read_item.dest_index.fqn
        if isinstance(self.state_dict[name], Tensor):
            raise UnreadableError(f"{name} is a tensor here and a value in the checkpoint")
        try:
            found = decode(json.loads(value.getvalue()))
        except (ValueError, TypeError) as error:
            raise UnreadableError(f"{name}: {error}") from error
        set_element(self.original_state_dict, self.mappings[name], found)


def _bytes_of(tensor: Tensor) -> memoryview:
    whole = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return memoryview(whole.reshape(-1).view(torch.uint8).numpy())


def _offsets(item: WriteItem) -> tuple[int, ...]:
    assert item.tensor_data is not None
    return tuple(item.tensor_data.chunk.offsets)


def _in_dcp(stored: Stored) -> metadata.TensorStorageMetadata:
    chunks = [
        metadata.ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes)) for chunk in stored.chunks
    ]
    return metadata.TensorStorageMetadata(
        metadata.TensorProperties(dtype=DTYPES[stored.dtype]), torch.Size(stored.shape), chunks
    )


def _read(file: Any, name: str, dtype: torch.dtype, chunk: Chunk, item: ReadItem) -> Tensor:
    """Read a box of a chunk: only its rows, since these lie together, and then the rest of its dimensions of them."""
    at, lengths = tuple(item.storage_offsets), tuple(item.lengths)
    if not chunk.sizes:
        return _read_flat(file, name, dtype, chunk.start, 1).reshape(())
    row = math.prod(chunk.sizes[1:])
    flat = _read_flat(file, name, dtype, chunk.start + at[0] * row * dtype.itemsize, lengths[0] * row)
    box = flat.reshape(lengths[0], *chunk.sizes[1:])
    for dimension in range(1, len(chunk.sizes)):
        box = box.narrow(dimension, at[dimension], lengths[dimension])
    return box


def _read_flat(file: Any, name: str, dtype: torch.dtype, start: int, count: int) -> Tensor:
    size = count * dtype.itemsize
    if start + size > os.fstat(file.fileno()).st_size:  # before memory is taken for it
        raise UnreadableError(f"{name} is shorter than the index says")
    if not size:
        return torch.empty(0, dtype=dtype)
    buffer = bytearray(size)
    view, done = memoryview(buffer), 0
    while done < size:
        read = os.preadv(file.fileno(), [view[done:]], start + done)
        if not read:
            raise UnreadableError(f"{name} is shorter than the index says")
        done += read
    return torch.frombuffer(buffer, dtype=dtype)
