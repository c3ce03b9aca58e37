"""The sweep that a file asks for."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from torchyard.api.problems import Problem
from torchyard.cli.errors import RefusalError
from torchyard.cli.output import say
from torchyard.client.trainers import fault
from torchyard.sweep.resource import TrainingSweep
from torchyard.sweep.space import bound, trial_spec
from torchyard.sweep.validate import SweepValidation, validate_sweep


def checked_sweep(file: Path, sets: Sequence[str]) -> SweepValidation:
    """Return what the file of a sweep holds, or all that is wrong with it, also in the eyes of its trainer."""
    try:
        result = validate_sweep(file, sets)
    except OSError as error:
        problem = Problem(str(file), 0, "", f"it cannot be read ({error.strerror})", "give a readable file")
        return SweepValidation(problems=(problem,))
    if result.sweep is None:
        return result
    spec = result.sweep.spec
    first = trial_spec(spec.job_template.spec, {each.path: bound(each, last=False) for each in spec.parameters})
    from torchyard.api.resource import ObjectMeta, TrainingJob

    found = fault(TrainingJob(metadata=ObjectMeta(name="trial"), spec=first), str(file))
    if found is None:
        return result
    said = msgspec.structs.replace(found, what=f"{found.what} (with the smallest or first value of each parameter)")
    return SweepValidation(problems=(said,))


def sweep_of(file: Path, sets: Sequence[str]) -> TrainingSweep:
    """Read and check the file of a sweep; print its problems.

    Raises:
        RefusalError: it is invalid.
    """
    result = checked_sweep(file, sets)
    if result.sweep is None:
        for problem in result.problems:
            say(str(problem))
        raise RefusalError(f"{file} is invalid: {len(result.problems)} problems, named above")
    return result.sweep
