"""The seam of exports: what a workload gives away beyond its weights.

`safetensors` needs nothing from a workload. `onnx` and `pt2` need its programs, `web` also the page that runs one.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

CASES = 1000


class Program(NamedTuple):
    """A pure function of tensors, and inputs it was recorded on: those that the model meets in use.

    Give scores rather than choices as outputs: of two equal scores another machine may choose the other.

    Attributes:
        module: on the CPU, fp32, in `eval` mode; called with the inputs in their order, gives a tensor or a tuple of
            them. It may hold parts of the model; what only training needs stays out.
        inputs: by name, each [n, ...] with the same n: dimension 0 is the batch and stays free in an export.
        outputs: names of what the module gives, each [n, ...].
    """

    module: nn.Module
    inputs: dict[str, Tensor]
    outputs: tuple[str, ...]


class Page(NamedTuple):
    """A static folder that shows a program at work in a browser.

    `export/web/` holds these files and `weights.bin`, `golden.bin` and `manifest.json` (see `core/export/web.py`), all
    together below a megabyte.

    Attributes:
        program: name of the program the page runs: its weights and its recorded cases go into the folder.
        files: what the page consists of, by name below the folder: `index.html`, scripts, styles.
        facts: what its script must know: sizes, layers, constants of the environment. They become `page` of the
            manifest.
        cases: how many of the recorded cases go into the folder.
        smaller: parameters to make smaller where the folder is too large, by the file that they make large.
    """

    program: str
    files: Mapping[str, Path]
    facts: dict[str, Any]
    cases: int = CASES
    smaller: Mapping[str, str] = MappingProxyType({})


@runtime_checkable
class Exportable(Protocol):
    """A workload whose model can leave as `onnx` and `pt2`."""

    def programs(self, model: nn.Module, cases: int) -> dict[str, Program]:
        """Return what the model computes, by name (a file name: `policy`), recorded on `cases` inputs.

        `model` is `build()` with the weights to export: unsharded, on the CPU, in fp32 and `eval` mode. Only rank 0
        calls this, on a workload that trains nothing.
        """


@runtime_checkable
class Playable(Exportable, Protocol):
    """A workload whose model can also leave as `web`."""

    def page(self) -> Page:
        """Return the page that runs one of the programs."""
