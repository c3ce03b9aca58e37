"""Format `safetensors`: the weights alone, bit for bit."""

import os
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchyard_trainers.core.export.bundle import ExportBundle
from torchyard_trainers.core.export.verify import ExportError

FILE = "model.safetensors"
_ERRNO = re.compile(r"\(os error (\d+)\)")


def save(weights: dict[str, Tensor], path: Path) -> None:
    """Write tensors to a file, atomically.

    Raises:
        OSError: the volume's error, which safetensors wraps in another exception.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    scratch = path.with_name(f".{path.name}.tmp")
    try:
        save_file({name: tensor.cpu().contiguous() for name, tensor in weights.items()}, scratch)
    except SafetensorError as error:
        said = _ERRNO.search(str(error))
        if said is None:
            raise
        raise OSError(int(said[1]), os.strerror(int(said[1])), str(scratch)) from error
    scratch.replace(path)


def write(bundle: ExportBundle, folder: Path) -> dict[str, Any]:
    """Write `model.safetensors`; return the facts for the manifest."""
    save(bundle.weights, folder / FILE)
    return {"parameters": sum(tensor.numel() for tensor in bundle.weights.values())}


def verify(bundle: ExportBundle, folder: Path) -> dict[str, Any]:
    """Read the file again and compare every bit.

    Raises:
        ExportError: a tensor is missing or differs.
    """
    from safetensors.torch import load_file

    found = load_file(folder / FILE)
    wrong = [name for name in sorted(bundle.weights.keys() | found.keys()) if not _same(bundle.weights, found, name)]
    if wrong:
        raise ExportError(
            f"safetensors: {', '.join(wrong[:5])} read back differently than written; it is not published"
        )
    return {"tensors": len(found)}


def _same(written: dict[str, Tensor], found: dict[str, Tensor], name: str) -> bool:
    if name not in written or name not in found:
        return False
    return same_bits(written[name].cpu(), found[name])


def same_bits(want: Tensor, got: Tensor) -> bool:
    """Return whether two tensors on the CPU are equal in type, shape and every bit, so that NaN equals NaN."""
    if want.shape != got.shape or want.dtype != got.dtype:
        return False
    return torch.equal(want.contiguous().reshape(-1).view(torch.uint8), got.reshape(-1).view(torch.uint8))
