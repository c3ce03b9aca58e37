"""The interface between exports and a workload.

`safetensors` needs nothing from a workload. `onnx` and `pt2` need its programs, `web` also a page that runs one.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

CASES = 1000


class Program(NamedTuple):
    """A pure function of tensors, with recorded inputs from real use.

    Outputs should be scores rather than choices: of two equal scores, another machine may choose the other one.

    Attributes:
        module: on the CPU, fp32, in `eval` mode; called with the inputs in order, returns a tensor or a tuple of
            tensors. It may hold parts of the model; leave out what only training needs.
        inputs: by name, each [n, ...] with the same n: dimension 0 is the batch and stays free in an export.
        outputs: names of the module's outputs, each [n, ...].
    """

    module: nn.Module
    inputs: dict[str, Tensor]
    outputs: tuple[str, ...]


class Page(NamedTuple):
    """A static folder that runs a program in a browser.

    `export/web/` holds these files and `weights.bin`, `golden.bin` and `manifest.json` (see `core/export/web.py`), all
    together below a megabyte.

    Attributes:
        program: name of the program that the page runs; the folder holds its weights and recorded cases.
        files: files of the page by name: `index.html`, scripts, styles.
        facts: data for its script: sizes, layers, constants of the environment. They become `page` of the
            manifest.
        cases: number of recorded cases in the folder.
        smaller: for each file, the parameter to reduce if the folder is too large.
    """

    program: str
    files: Mapping[str, Path]
    facts: dict[str, Any]
    cases: int = CASES
    smaller: Mapping[str, str] = MappingProxyType({})


@runtime_checkable
class Exportable(Protocol):
    """A workload whose model can be exported as `onnx` and `pt2`."""

    def programs(self, model: nn.Module, cases: int) -> dict[str, Program]:
        """Return the model's programs by name (a file name: `policy`), recorded on `cases` inputs.

        `model` is `build()` with the weights to export: unsharded, on the CPU, in fp32 and `eval` mode. Only rank 0
        calls this, on a workload that is not in training.
        """


@runtime_checkable
class Playable(Exportable, Protocol):
    """A workload whose model can also be exported as `web`."""

    def page(self) -> Page:
        """Return the page that runs one of the programs."""
