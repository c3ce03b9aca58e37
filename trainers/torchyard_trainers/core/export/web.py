"""Format `web`: a static folder that runs a program in a browser, with no dependency and below a megabyte.

    index.html, scripts   the workload's page
    weights.bin           state of the program's module: float32, little-endian, tensor after tensor
    golden.bin            recorded inputs and the model's outputs, with which the page checks itself
    manifest.json         position of each tensor in these files, facts for the page, metrics, digests

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

from torchyard_trainers.core.export.bundle import ExportBundle
from torchyard_trainers.core.export.program import Page, Playable, Program
from torchyard_trainers.core.export.verify import UnwritableError, compare, record
from torchyard_trainers.core.workload import Workload

WEIGHTS, GOLDEN = "weights.bin", "golden.bin"
MAX_BYTES = 1_000_000
_ALIGNMENT = 8
_SMALLER = {WEIGHTS: "the model (trainer.params)", GOLDEN: "what it observes (trainer.params)"}
# Types that a browser reads through a typed array.
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


def write(bundle: ExportBundle, folder: Path) -> dict[str, Any]:
    """Write the folder; return the facts for its manifest.

    Raises:
        UnwritableError: it is larger than `MAX_BYTES`.
    """
    page = bundle.page
    assert page is not None
    program, expected = bundle.programs[page.program], bundle.expected[page.program]
    for name, source in page.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, folder / name)
    facts = {
        "program": page.program,
        "weights": pack(program.module.state_dict(), folder / WEIGHTS),
        "golden": pack(_recorded(page, program, expected), folder / GOLDEN),
        "page": page.facts,
    }
    _fit({path.name: path.stat().st_size for path in folder.rglob("*") if path.is_file()}, page)
    return facts


def check(work: Workload) -> None:
    """Check, before training, that the folder will be small enough: its size does not depend on the weights.

    Args:
        work: a workload that is not in training.

    Raises:
        UnwritableError: naming the parameter to reduce.
    """
    assert isinstance(work, Playable)
    model = work.build().eval().requires_grad_(requires_grad=False)
    page = work.page()
    program = work.programs(model, 1)[page.program]
    _fit(sizes(page, program, record(program)), page)


def sizes(page: Page, program: Program, expected: Sequence[Tensor]) -> dict[str, int]:
    """Return the size in bytes of each file that `write` creates, by name.

    Args:
        page: the page to write.
        program: recorded on at least one case; all cases have the same size.
        expected: the outputs of the program's module.
    """
    recorded = _recorded(page, program, expected)
    found = {name: source.stat().st_size for name, source in page.files.items()}
    found[WEIGHTS] = sum(_room(tensor, tensor.numel()) for tensor in program.module.state_dict().values())
    found[GOLDEN] = sum(_room(tensor, tensor[0].numel() * page.cases) for tensor in recorded.values())
    return found


def verify(bundle: ExportBundle, folder: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Load a model from `weights.bin` alone and compare it with `golden.bin`.

    The page itself checks that its script computes the same, whenever it is opened.

    Raises:
        ExportError: the files do not match the model.
    """
    page = bundle.page
    assert page is not None
    program = bundle.programs[page.program]
    stored = unpack(folder / GOLDEN, facts["golden"])
    expected = [stored[f"outputs.{name}"] for name in program.outputs]
    inputs = {name: stored[f"inputs.{name}"].to(tensor.dtype) for name, tensor in program.inputs.items()}
    module = copy.deepcopy(program.module)
    module.load_state_dict(unpack(folder / WEIGHTS, facts["weights"]))
    held = Program(module, inputs, program.outputs)

    def run(_inputs: Mapping[str, Tensor]) -> Sequence[Tensor]:
        return [each.to(_STORED[each.dtype]) for each in record(held)]

    return {page.program: compare(f"web {page.program}", held, expected, run).report()}


def _recorded(page: Page, program: Program, expected: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the recorded cases that go into the folder."""
    outputs = zip(program.outputs, expected, strict=True)
    return {
        **{f"inputs.{name}": tensor[: page.cases] for name, tensor in program.inputs.items()},
        **{f"outputs.{name}": tensor[: page.cases] for name, tensor in outputs},
    }


def _fit(bytes_of: Mapping[str, int], page: Page) -> None:
    total = left = sum(bytes_of.values())
    if total <= MAX_BYTES:
        return
    # The smallest set of files without which the rest would fit: reducing one of two may not be enough.
    guilty = []
    for name in sorted(bytes_of, key=lambda name: -bytes_of[name]):
        if left > MAX_BYTES:
            guilty.append(name)
            left -= bytes_of[name]
    smaller = " and ".join(page.smaller.get(name, _SMALLER.get(name, name)) for name in guilty)
    raise UnwritableError(
        f"export.formats: web: the page would have {total} bytes, at most {MAX_BYTES} are allowed; "
        f"{' and '.join(f'{name} has {bytes_of[name]}' for name in guilty)}: make {smaller} smaller, or leave web out"
    )


def _room(tensor: Tensor, count: int) -> int:
    """Return the bytes that numbers of a tensor's type take in a file of `pack`."""
    size = count * _STORED[tensor.dtype].itemsize
    return size + -size % _ALIGNMENT


def pack(tensors: Mapping[str, Tensor], path: Path) -> list[dict[str, Any]]:
    """Write tensors one after the other, each at a multiple of 8 bytes; return their positions."""
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
    """Read tensors that `pack` wrote."""
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
