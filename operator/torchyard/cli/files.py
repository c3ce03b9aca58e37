"""The job that a file asks for."""

from collections.abc import Sequence
from pathlib import Path

from torchyard.api.resource import TrainingJob
from torchyard.cli.errors import RefusalError
from torchyard.cli.output import say


def job_of(file: Path, sets: Sequence[str]) -> TrainingJob:
    """Read and check a job file after applying `sets`; every fault is said.

    Raises:
        RefusalError: the file is invalid or holds no single job.
    """
    from torchyard.api.validate import validate_file

    result = validate_file(file, sets)
    if result.problems:
        for problem in result.problems:
            say(str(problem))
        count = len(result.problems)
        raise RefusalError(f"{file} is invalid: {count} problem{'s' if count > 1 else ''}, named above")
    if len(result.jobs) != 1:
        raise RefusalError(f"{file} holds {len(result.jobs)} jobs", "put each into a file of its own to run it")
    return result.jobs[0]
