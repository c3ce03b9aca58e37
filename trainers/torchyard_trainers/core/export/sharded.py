"""Writes the tensors of a (possibly sharded) model as safetensors files, without the whole model in any process.

Tensors are gathered one at a time on all ranks. Each file is collected, written and read back by one rank, whose next
files wait for it: a process holds two files at most.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchyard_trainers.core.checkpoints.commits import write_atomically
from torchyard_trainers.core.export.verify import ExportError
from torchyard_trainers.core.export.weights import same_bits, save
from torchyard_trainers.core.world import World

FILE_BYTES = 4 << 30


class Entry(NamedTuple):
    """A tensor to write: its name and size, how to make it whole, which is collective, and its numbers."""

    name: str
    bytes: int
    make: Callable[[], Tensor]
    numbers: int = 0


def write_files(
    entries: Sequence[Entry],
    folder: Path,
    stem: str,
    world: World,
    *,
    shared: bool,
    verify: bool,
    limit: int = FILE_BYTES,
) -> dict[str, dict[str, Any]]:
    """Write `STEM.safetensors`, or numbered files and `STEM.safetensors.index.json`. Collective.

    Args:
        entries: the same on every rank.
        folder: exists.
        stem: of the names of the files.
        world: its ranks.
        shared: whether all ranks see the folder; otherwise rank 0 writes every file.
        verify: read each file back and compare every bit.
        limit: bytes of a file, unless a single tensor has more.

    Returns:
        The files: bytes and SHA-256 by name.

    Raises:
        ExportError: a tensor reads back differently.
        OSError: of the volume.
    """
    groups = _grouped(entries, limit)
    names = [f"{stem}-{at + 1:05}-of-{len(groups):05}.safetensors" for at in range(len(groups))]
    names = [f"{stem}.safetensors"] if len(groups) == 1 else names
    written: list[Future[tuple[str, dict[str, Any]]]] = []
    with ThreadPoolExecutor(1, "export") as thread:
        for number, (name, group) in enumerate(zip(names, groups, strict=True)):
            mine = world.rank == (number % world.size if shared else 0)
            held: dict[str, Tensor] = {}
            for entry in group:
                with torch.no_grad():
                    whole = entry.make()
                if mine:  # a copy also of a host tensor: it may share memory with another one, and training goes on
                    held[entry.name] = whole.detach().to("cpu", copy=True).contiguous()
            if mine:
                if written:
                    written[-1].exception()  # wait, so that no more than two files are held; raised below
                written.append(thread.submit(_write, held, folder / name, verify=verify))
        parts = world.agree(lambda: [each.result() for each in written])
    files = {name: facts for part in parts for name, facts in part}
    if len(groups) > 1:
        index = folder / f"{stem}.safetensors.index.json"
        places = {entry.name: name for name, group in zip(names, groups, strict=True) for entry in group}
        size = sum(entry.bytes for entry in entries)
        text = json.dumps({"metadata": {"total_size": size}, "weight_map": places}, indent=2)
        world.from_leader(lambda: write_atomically(index, text))
        files[index.name] = _facts(text.encode())
    return dict(sorted(files.items()))


def _grouped(entries: Sequence[Entry], limit: int) -> list[list[Entry]]:
    groups: list[list[Entry]] = [[]]
    size = 0
    for entry in entries:
        if groups[-1] and size + entry.bytes > limit:
            groups.append([])
            size = 0
        groups[-1].append(entry)
        size += entry.bytes
    return groups


def _write(held: dict[str, Tensor], path: Path, *, verify: bool) -> tuple[str, dict[str, Any]]:
    from safetensors import safe_open

    save(held, path)
    if verify:
        with safe_open(path, framework="pt") as file:
            wrong = [name for name, tensor in held.items() if not same_bits(tensor, file.get_tensor(name))]
        if wrong:
            raise ExportError(f"{path.name}: {', '.join(wrong[:5])} read back differently than written; not published")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return path.name, {"bytes": path.stat().st_size, "sha256": digest}


def _facts(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
