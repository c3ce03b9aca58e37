"""The sweep that a file asks for."""

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from torchyard.api.forms import DNS_LABEL_PATTERN
from torchyard.api.problems import Problem
from torchyard.cli.errors import RefusalError
from torchyard.cli.job_options import JobOptions
from torchyard.cli.output import say
from torchyard.client.trainers import fault
from torchyard.sweep.resource import MAX_SWEEP_NAME, TrainingSweep
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


def sweep_of(options: JobOptions) -> TrainingSweep:
    """Read and check the file of a sweep; print its problems.

    Raises:
        RefusalError: it is invalid, or options of a job are given.
    """
    file = options.file
    assert file is not None
    given = [options.nodes, options.procs, options.gpus, options.save, options.module, *options.words, *options.env]
    if any(each is not None for each in given):
        fix = "change jobTemplate in the file, or use --set jobTemplate.spec.nodes=2"
        raise RefusalError(f"{file} is a sweep, and options of a job are given", fix)
    result = checked_sweep(file, options.sets)
    if result.sweep is None:
        for problem in result.problems:
            say(str(problem))
        raise RefusalError(f"{file} is invalid: {len(result.problems)} problems, named above")
    return result.sweep


def named(sweep: TrainingSweep, name: str | None) -> TrainingSweep:
    """Return the sweep under another name; None: its own.

    Raises:
        RefusalError: this is no name of a sweep.
    """
    if name is None:
        return sweep
    if len(name) > MAX_SWEEP_NAME or not re.fullmatch(DNS_LABEL_PATTERN, name):
        fix = f"use lower-case letters, digits and '-', at most {MAX_SWEEP_NAME}"
        raise RefusalError(f"--name {name!r} is no name of a sweep", fix)
    return msgspec.structs.replace(sweep, metadata=msgspec.structs.replace(sweep.metadata, name=name))
