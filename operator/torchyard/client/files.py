"""Read the job of a job file."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torchyard.api.names import SCRIPT_SUFFIX
from torchyard.api.resource import TrainingJob
from torchyard.api.values import plural
from torchyard.client.errors import InvalidJobError, TorchYardError

if TYPE_CHECKING:
    from torchyard.api.validation.validate import Validation


def job_of(file: Path, sets: Sequence[str]) -> TrainingJob:
    """Read and check a job file after applying `sets`; errors list all problems.

    Raises:
        TorchYardError: the file is invalid or holds no single job.
    """
    return the_job(checked(file, sets), str(file))


def the_job(result: "Validation", source: str) -> TrainingJob:
    """Return the one job of a validation.

    Raises:
        InvalidJobError: there are problems.
        TorchYardError: there is not exactly one job.
    """
    if result.problems:
        count = plural(len(result.problems), "problem")
        raise InvalidJobError(f"{source} is invalid: {count}, named above", result.problems)
    if len(result.jobs) != 1:
        raise TorchYardError(f"{source} holds {len(result.jobs)} jobs", "put each into a file of its own to run it")
    return result.jobs[0]


def checked(file: Path, sets: Sequence[str]) -> "Validation":
    """Return the job of a job file after applying `sets`, or all problems, including those that its trainer finds."""
    from torchyard.api.validation.problems import Problem
    from torchyard.api.validation.validate import Validation, validate_file
    from torchyard.client.trainers import fault

    if file.suffix == SCRIPT_SUFFIX:
        fix = f"`torchyard run {file} --save job.yaml` writes and checks the job file of a script"
        return Validation(problems=(Problem(str(file), 0, "", "a Python script is not a job file", fix),))
    result = validate_file(file, sets)
    if result.problems:
        return result
    faults = tuple(found for job in result.jobs if (found := fault(job, str(file))) is not None)
    return Validation(problems=faults) if faults else result
