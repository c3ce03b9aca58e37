"""Read the job of a job file."""

import difflib
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torchyard.api.names import SCRIPT_SUFFIX
from torchyard.api.resource import TrainingJob
from torchyard.api.values import plural
from torchyard.client.errors import InvalidJobError, TorchYardError

if TYPE_CHECKING:
    from torchyard.api.validation.problems import Problem
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


def no_job_file(file: Path) -> "Problem | None":
    """Return why a file cannot be the file of a job or a sweep, and what to type instead; None: it may be one."""
    from torchyard.api.validation.problems import Problem

    name = shlex.quote(str(file))
    if file.suffix == SCRIPT_SUFFIX:
        what, fix = "a Python script is not a job file", f"`torchyard run {name} --save job.yaml` writes its job file"
    elif file.suffix == ".ipynb":
        what = "a notebook is not a program"
        fix = (
            f"`jupyter nbconvert --to script {name}` writes the script {shlex.quote(str(file.with_suffix('.py')))}, or "
            "decorate a function in the notebook with @torchyard.job and call torchyard.run(function)"
        )
    elif file.is_dir():
        what, fix = "a folder is not a job file", "give the path of a file in it"
        if (file / "__init__.py").exists() or (file / "__main__.py").exists():
            fix = f"`torchyard run -m {'.'.join(file.parts)}` starts a package"
    elif not file.exists() and file.parts[:1] in {("https:",), ("http:",)}:  # kubectl takes URLs
        url = f"{file.parts[0]}//{'/'.join(file.parts[1:])}"
        what, fix = "a job file is not read from a URL", f"download it first: `curl -fsSLO {shlex.quote(url)}`"
    elif not file.exists() and (meant := _meant(file)) is not None:
        what, fix = "there is no such file", f"did you mean {meant}?"
    else:
        return None
    return Problem(str(file), 0, "", what, fix)


def _meant(file: Path) -> str | None:
    """Return the file or module that was most likely meant by the name of a file that does not exist."""
    module = Path(*file.name.split("."))
    if "." in file.name and not file.parent.name and module.with_suffix(SCRIPT_SUFFIX).exists():
        return f"-m {file.name}"
    try:
        names = [each.name for each in file.parent.iterdir() if each.is_file()]
    except OSError:
        return None
    found = difflib.get_close_matches(file.name, names, n=1, cutoff=0.75)
    return str(file.with_name(found[0])) if found else None


def checked(file: Path, sets: Sequence[str]) -> "Validation":
    """Return the job of a job file after applying `sets`, or all problems, including those that its trainer finds."""
    from torchyard.api.validation.validate import Validation, validate_file
    from torchyard.client.trainers import fault

    if (problem := no_job_file(file)) is not None:
        return Validation(problems=(problem,))
    result = validate_file(file, sets)
    if result.problems:
        return result
    faults = tuple(found for job in result.jobs if (found := fault(job, str(file))) is not None)
    return Validation(problems=faults) if faults else result
