"""The export formats by name, with their requirements, writers and verifiers."""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from torchyard_trainers.core.exits import ConfigError
from torchyard_trainers.core.export import graph, hf, web, weights
from torchyard_trainers.core.export.bundle import ExportBundle
from torchyard_trainers.core.export.program import Exportable, Playable
from torchyard_trainers.core.weights import is_deferred
from torchyard_trainers.core.workload import Workload


class Format(NamedTuple):
    """One export format.

    `write` fills an empty folder and returns facts for the manifest; `verify` reads the folder again, compares, and
    returns its findings. Both raise `ExportError`.
    """

    write: Callable[[ExportBundle, Path], dict[str, Any]]
    verify: Callable[[ExportBundle, Path, Mapping[str, Any]], dict[str, Any]]
    needs: type | None = None  # the protocol that the workload must implement
    packages: tuple[str, ...] = ()
    check: Callable[[Workload], None] | None = None  # raises before training if the export would fail


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
    """Check, before training, that every requested format can be written.

    Raises:
        ConfigError: naming the field, the format and the available ones.
        UnwritableError: the model can never be written in a format.
    """
    offered = [name for name, form in FORMATS.items() if form.needs is None or isinstance(work, form.needs)]
    offered += hf.FORMATS if is_deferred(work) or type(work).assets is not Workload.assets else ()
    for name in formats:
        if name not in offered:
            raise ConfigError(f"export.formats: {name} is not offered by this workload; use {', '.join(offered)}")
        packages = FORMATS[name].packages if name in FORMATS else ()
        missing = [package for package in packages if find_spec(package) is None]
        if missing:
            raise ConfigError(
                f"export.formats: {name} needs {', '.join(missing)}, which is not installed here; install "
                f"torchyard[export] or leave {name} out"
            )
    for name in formats:
        if name in FORMATS and (check := FORMATS[name].check) is not None:
            check(work)
