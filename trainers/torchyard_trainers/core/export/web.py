"""Format `web`: a static folder that runs a program in a browser, with no dependency and below a megabyte.

    index.html, scripts   the workload's page
    weights.bin           state of the program's module: float32, little-endian, tensor after tensor
    golden.bin            recorded inputs and what the model computes on them: the page compares itself with it
    manifest.json         where each tensor lies in these files, facts for the page, metrics, digests

A tensor is described as `{"name", "dtype", "shape", "offset"}`: offset in bytes, a multiple of 8; dtype float32, int32
or uint8, row-major.
"""

import copy
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchyard_trainers.core.export.gate import ExportError, compare, record
from torchyard_trainers.core.export.material import Material
from torchyard_trainers.core.export.program import Program

WEIGHTS, GOLDEN = "weights.bin", "golden.bin"
MAX_BYTES = 1_000_000
_ALIGNMENT = 8
# What a browser reads through a typed array.
_STORED = {
    torch.bool: torch.uint8,
    torch.uint8: torch.uint8,
    torch.int32: torch.int32,
    torch.int64: torch.int32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float32,
}
_DTYPES = {"float32": torch.float32, "int32": torch.int32, "uint8": torch.uint8}


def write(material: Material, folder: Path) -> dict[str, Any]:
    """Write the folder; give what its manifest says.

    Raises:
        ExportError: it is larger than `MAX_BYTES`.
    """
    page = material.page
    assert page is not None
    program, expected = material.programs[page.program], material.expected[page.program]
    for name, source in page.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, folder / name)
    golden = {f"inputs.{name}": tensor[: page.cases] for name, tensor in program.inputs.items()}
    for name, tensor in zip(program.outputs, expected, strict=True):
        golden[f"outputs.{name}"] = tensor[: page.cases]
    facts = {
        "program": page.program,
        "weights": pack(program.module.state_dict(), folder / WEIGHTS),
        "golden": pack(golden, folder / GOLDEN),
        "page": page.facts,
    }
    sizes = {path.name: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    if sum(sizes.values()) > MAX_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        raise ExportError(
            f"web: {sum(sizes.values())} bytes, but a page has at most {MAX_BYTES}; {largest} has {sizes[largest]}: "
            "export a smaller model, or leave web out of export.formats"
        )
    return facts


def verify(material: Material, folder: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Fill a model with nothing but `weights.bin` and compare it with `golden.bin`.

    That the script of the page computes the same is for a browser to show: the page does it whenever it is opened.

    Raises:
        ExportError: the files do not hold the model.
    """
    page = material.page
    assert page is not None
    program = material.programs[page.program]
    stored = unpack(folder / GOLDEN, facts["golden"])
    expected = [stored[f"outputs.{name}"] for name in program.outputs]
    inputs = {name: stored[f"inputs.{name}"].to(tensor.dtype) for name, tensor in program.inputs.items()}
    module = copy.deepcopy(program.module)
    module.load_state_dict(unpack(folder / WEIGHTS, facts["weights"]))
    held = Program(module, inputs, program.outputs)

    def run(_inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
        return [each.to(_STORED[each.dtype]) for each in record(held)]

    return {page.program: compare(f"web {page.program}", held, expected, run).report()}


def pack(tensors: Mapping[str, Tensor], path: Path) -> list[dict[str, Any]]:
    """Write tensors one after the other, each at a multiple of 8 bytes; give where each lies."""
    index, parts, offset = [], [], 0
    for name, tensor in tensors.items():
        stored = tensor.detach().cpu().to(_STORED[tensor.dtype]).contiguous()
        data = stored.numpy().astype(stored.numpy().dtype.newbyteorder("<"), copy=False).tobytes()
        dtype = str(stored.dtype).removeprefix("torch.")
        index.append({"name": name, "dtype": dtype, "shape": list(stored.shape), "offset": offset})
        padding = -len(data) % _ALIGNMENT
        parts += [data, bytes(padding)]
        offset += len(data) + padding
    path.write_bytes(b"".join(parts))
    return index


def unpack(path: Path, index: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Read what `pack` wrote."""
    data = bytearray(path.read_bytes())
    found = {}
    for entry in index:
        dtype = _DTYPES[entry["dtype"]]
        count = 1
        for size in entry["shape"]:
            count *= size
        flat = torch.frombuffer(data, dtype=dtype, count=count, offset=entry["offset"]) if count else torch.empty(0)
        found[entry["name"]] = flat.to(dtype).reshape(entry["shape"]).clone()
    return found
