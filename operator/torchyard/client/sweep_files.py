"""The sweep that a file or a dict asks for, and the errors of one that is stored."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from torchyard.api.files import read_bounded
from torchyard.api.resource import ObjectMeta, TrainingJob
from torchyard.api.validation.problems import Problem
from torchyard.api.validation.yaml_tree import MAX_BYTES
from torchyard.api.values import DNS_LABEL_PATTERN, plural
from torchyard.client.errors import FAILED, InvalidJobError, NotFoundError, TorchYardError
from torchyard.client.files import no_job_file
from torchyard.client.trainers import fault
from torchyard.local.sweeps import NoSweepError
from torchyard.sweeps.resource import MAX_SWEEP_NAME, TrainingSweep
from torchyard.sweeps.space import bound, trial_spec
from torchyard.sweeps.validate import SweepValidation, validate_sweep_bytes


@contextlib.contextmanager
def explaining(code: int = FAILED) -> Iterator[None]:
    """Raise what a user reads where there is no sweep, or where a stored one is damaged or in use.

    Args:
        code: exit code of the command line for the latter.
    """
    try:
        yield
    except NoSweepError as error:
        raise NotFoundError(str(error).rstrip(".")) from error
    except ValueError as error:
        raise TorchYardError(str(error).rstrip("."), code=code) from error


def checked_sweep(file: Path, sets: Sequence[str]) -> SweepValidation:
    """Return what the file of a sweep holds, or all that is wrong with it, also in the eyes of its trainer."""
    if (problem := no_job_file(file)) is not None:
        return SweepValidation(problems=(problem,))
    try:
        data = read_bounded(file, MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        problem = Problem(str(file), 0, "", f"it cannot be read ({reason})", "give a readable file")
        return SweepValidation(problems=(problem,))
    return checked_trials(validate_sweep_bytes(data, str(file), sets), str(file))


def checked_trials(result: SweepValidation, source: str) -> SweepValidation:
    """Return a valid sweep, or what its trainer rejects of its trials; `source` names it in messages."""
    if result.sweep is None:
        return result
    spec = result.sweep.spec
    said: Problem | None = None
    for last in (False, True):  # a trainer may reject single combinations; those trials fail
        values = {each.path: bound(each, last=last) for each in spec.parameters}
        job = TrainingJob(metadata=ObjectMeta(name="trial"), spec=trial_spec(spec.job_template.spec, values))
        found = fault(job, source)
        if found is None:
            return result
        said = said or found
    assert said is not None
    what = f"{said.what} (with the smallest or first value of each parameter, and a similar fault with the others)"
    return SweepValidation(problems=(msgspec.structs.replace(said, what=what),))


def the_sweep(result: SweepValidation, source: str) -> TrainingSweep:
    """Return the sweep of a validation.

    Raises:
        InvalidJobError: there are problems.
    """
    if result.sweep is None:
        count = plural(len(result.problems), "problem")
        raise InvalidJobError(f"{source} is invalid: {count}, named above", result.problems)
    return result.sweep


def named(sweep: TrainingSweep, name: str | None) -> TrainingSweep:
    """Return the sweep under another name; None: its own.

    Raises:
        TorchYardError: this is not a valid name of a sweep.
    """
    if name is None:
        return sweep
    if len(name) > MAX_SWEEP_NAME or not re.fullmatch(DNS_LABEL_PATTERN, name):
        fix = f"use lower-case letters, digits and '-', at most {MAX_SWEEP_NAME}"
        raise TorchYardError(f"{name!r} is not a valid name of a sweep", fix)
    return msgspec.structs.replace(sweep, metadata=msgspec.structs.replace(sweep.metadata, name=name))
