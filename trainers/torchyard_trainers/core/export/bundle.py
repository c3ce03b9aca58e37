"""The input of every export format: a model on the CPU, its programs and its facts, prepared once."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from torchyard_trainers.core.export.program import CASES, Exportable, Page, Playable, Program
from torchyard_trainers.core.export.verify import record
from torchyard_trainers.core.workload import Workload


class ExportBundle(NamedTuple):
    """One model to export.

    Attributes:
        weights: the unsharded state of the model, on the CPU.
        programs: the model's programs by name.
        expected: the outputs of each program's module on its recorded inputs.
        page: its web page; None: no format needs it.
        facts: step, metrics and origin for the manifest.
    """

    weights: dict[str, Tensor]
    programs: dict[str, Program]
    expected: dict[str, tuple[Tensor, ...]]
    page: Page | None
    facts: Mapping[str, Any]


def prepare(
    work: Workload, weights: dict[str, Tensor], facts: Mapping[str, Any], *, programs: bool, page: bool
) -> ExportBundle:
    """Load the weights into a new model and record its outputs.

    Args:
        work: a workload that is not in training: its model is built again.
        weights: of `state_dict()`, unsharded.
        facts: see `ExportBundle`.
        programs: whether a format needs the workload's programs.
        page: whether a format needs its web page, which not every environment has.
    """
    if not programs:
        return ExportBundle(weights, {}, {}, None, facts)
    assert isinstance(work, Exportable)
    model = fresh_model(work, weights)
    found = work.programs(model, CASES)
    for program in found.values():
        _check(program)
    shown = work.page() if page and isinstance(work, Playable) else None
    return ExportBundle(weights, found, {name: record(program) for name, program in found.items()}, shown, facts)


def fresh_model(work: Workload, weights: dict[str, Tensor]) -> nn.Module:
    """Build the model on the CPU, unwrapped and in `eval` mode, with the given weights."""
    model = work.build()
    model.load_state_dict(weights)
    return model.eval().requires_grad_(requires_grad=False)


def _check(program: Program) -> None:
    sizes = {len(tensor) for tensor in program.inputs.values()}
    assert len(sizes) == 1, f"recorded inputs differ in their number: {sizes}"
    assert not program.module.training, "a program is exported in eval mode"
