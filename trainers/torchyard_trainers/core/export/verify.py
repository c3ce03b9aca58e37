"""Verification of an export: the reloaded format must compute the model's outputs on every recorded input."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchyard_trainers.core.exits import ConfigError, TrainerError
from torchyard_trainers.core.export.program import Program

# Other kernels sum in another order: fp32 keeps about six digits over a deep sum.
TOLERANCE = 1e-4
SAME_CHOICES = 0.999

Runner = Callable[[Mapping[str, Tensor]], Sequence[Tensor]]


class ExportError(TrainerError):
    """An exported format does not compute what the model computes, or the model cannot be written in it."""


class UnwritableError(ExportError, ConfigError):
    """This model can never be written in this format, on any machine. Exit code 64."""


class Verdict(NamedTuple):
    """The result of comparing one program."""

    cases: int
    difference: float  # largest |exported - model| / max(1, |model|) over floating-point outputs
    choices: float  # smallest share of equal integers and equal arguments of the maximum, over outputs

    def report(self) -> dict[str, float]:
        """Return the manifest's `verified` block."""
        return {"cases": self.cases, "largestDifference": self.difference, "sameChoices": self.choices}


@torch.no_grad()
def record(program: Program) -> tuple[Tensor, ...]:
    """Return the model's own outputs on the recorded inputs."""
    found = program.module(*program.inputs.values())
    outputs = (found,) if isinstance(found, Tensor) else tuple(found)
    assert len(outputs) == len(program.outputs), f"{len(outputs)} outputs, but names {program.outputs}"
    return outputs


def compare(what: str, program: Program, expected: Sequence[Tensor], run: Runner) -> Verdict:
    """Run a reloaded export on the recorded inputs and compare.

    Args:
        what: format and program, for the error: `onnx policy`.
        program: what was exported.
        expected: the model's own outputs.
        run: computes the outputs from the inputs, in the order of `program.outputs`.

    Raises:
        ExportError: an output has another shape or type, differs by more than `TOLERANCE`, or chooses differently in
            more than one of a thousand cases.
    """
    found = run(program.inputs)
    cases = len(next(iter(program.inputs.values())))
    difference, choices = 0.0, 1.0
    for name, want, got in zip(program.outputs, expected, found, strict=True):
        if want.shape != got.shape or want.is_floating_point() != got.is_floating_point():
            raise ExportError(
                f"{what}: output {name} is {got.dtype} {tuple(got.shape)}, but the model returns {want.dtype} "
                f"{tuple(want.shape)}"
            )
        difference = max(difference, largest_difference(want, got))
        choices = min(choices, same_choices(want, got))
    if not difference <= TOLERANCE or choices < SAME_CHOICES:
        raise ExportError(
            f"{what}: the reloaded export differs from the model by {difference:.3g} (at most {TOLERANCE:g}) and "
            f"chooses the same in {choices:.2%} of {cases} recorded inputs (at least {SAME_CHOICES:.1%}); not published"
        )
    return Verdict(cases, difference, choices)


def largest_difference(want: Tensor, got: Tensor) -> float:
    """Return the largest difference of two tensors, relative where values exceed 1; equal infinities do not differ."""
    if not want.is_floating_point() or not want.numel():
        return 0.0
    want, got = want.double(), got.double()
    apart = (got - want).abs() / want.abs().clamp(min=1.0)
    return float(torch.where(got == want, 0.0, apart).nan_to_num(nan=torch.inf, posinf=torch.inf).max())


def same_choices(want: Tensor, got: Tensor) -> float:
    """Return the share of cases whose choice is the same: integers themselves, of scores [..., k] the largest one."""
    if want.is_floating_point():
        if want.dim() < 2 or not want.numel():
            return 1.0
        want, got = want.argmax(-1), got.argmax(-1)
    return float((want == got).double().mean()) if want.numel() else 1.0
