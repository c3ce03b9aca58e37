"""The formats by name, what each needs, and how each is written and read back."""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.export import graph, web, weights
from torchyard_trainers.core.export.bundle import ExportBundle
from torchyard_trainers.core.export.program import Exportable, Playable
from torchyard_trainers.core.workload import Workload


class Format(NamedTuple):
    """How models are written.

    `write` fills an empty folder and gives facts for the manifest; `verify` reads the folder again, compares, and gives
    what it found. Both raise `ExportError`.
    """

    write: Callable[[ExportBundle, Path], dict[str, Any]]
    verify: Callable[[ExportBundle, Path, Mapping[str, Any]], dict[str, Any]]
    needs: type | None = None  # what the workload must offer
    packages: tuple[str, ...] = ()
    check: Callable[[Workload], None] | None = None  # refuses what can be seen before training


FORMATS: dict[str, Format] = {
    "safetensors": Format(weights.write, lambda bundle, folder, _facts: weights.verify(bundle, folder)),
    "onnx": Format(
        graph.write_onnx,
        lambda bundle, folder, _facts: graph.verify_onnx(bundle, folder),
        needs=Exportable,
        packages=("onnx", "onnxscript", "onnxruntime"),
    ),
    "pt2": Format(graph.write_pt2, lambda bundle, folder, _facts: graph.verify_pt2(bundle, folder), needs=Exportable),
    "web": Format(web.write, web.verify, needs=Playable, check=web.check),
}


def check_formats(work: Workload, formats: Sequence[str]) -> None:
    """Refuse what cannot be written here, before anything is trained.

    Raises:
        ConfigError: naming the field, the format and what exists.
        UnwritableError: the model cannot be written in a format, whatever it learns.
    """
    offered = [name for name, form in FORMATS.items() if form.needs is None or isinstance(work, form.needs)]
    for name in formats:
        if name not in offered:
            raise ConfigError(f"export.formats: {name} is not offered by this workload; use {', '.join(offered)}")
        missing = [package for package in FORMATS[name].packages if find_spec(package) is None]
        if missing:
            raise ConfigError(
                f"export.formats: {name} needs {', '.join(missing)}, which is not installed here; install "
                f"torchyard[export] or leave {name} out"
            )
    for name in formats:
        if (check := FORMATS[name].check) is not None:
            check(work)
