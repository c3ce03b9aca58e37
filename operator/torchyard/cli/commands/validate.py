"""`torchyard validate FILE...`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchyard.api.names import SCRIPT_SUFFIX
from torchyard.api.values import plural
from torchyard.cli import arguments as common
from torchyard.cli.commands.job_options import (
    JobOptions,
    checked_program,
    declare_program,
    fields,
    options_of,
)
from torchyard.cli.errors import INVALID, SUCCEEDED, RefusalError
from torchyard.cli.output import Format, emit, say
from torchyard.client.errors import TorchYardError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchyard.api.profiles.resource import TrainingProfile
    from torchyard.api.profiles.validate import ProfileValidation
    from torchyard.api.validation.validate import Validation
    from torchyard.sweeps.validate import SweepValidation


def validate_arguments(parser: common.Parser) -> None:
    """Declare the command line of `validate`."""
    parser.trailing = "words"
    parser.usage = f"{parser.prog} [FILE... | SCRIPT | -m MODULE] [OPTIONS] [-- ARGUMENT...]"
    parser.add_argument(
        "files", metavar="FILE", nargs="*", type=Path, help="job files (YAML or JSON), or one Python script (.py)"
    )
    declare_program(parser, "local")
    common.output(parser, "json", help="print jobs and problems as JSON")


def validate(files: list[Path], output: Format | None, **values: Any) -> int:
    """Carry out `torchyard validate`.

    Every mistake is listed with its line and its fix.

    A TrainingProfile among the files is checked, too, and the jobs that name it are compared with its limits.

    A script, module or command is checked as `torchyard run` would start it, with the same options.

    Exit codes: 0 all files are valid, 64 some are not.
    """
    options = options_of({"file": None, **values})
    programs = [file for file in files if file.suffix == SCRIPT_SUFFIX]
    if programs or not files:
        if len(files) > 1:
            raise RefusalError(f"{programs[0]} is a script among other files", "check it by itself")
        return _program(options._replace(file=programs[0] if programs else None), output)
    if options.module is not None or options.words:
        raise RefusalError("job files and a program are given", "check them in two commands")
    if options.env:
        raise RefusalError("--env belongs to a program, and job files are given", "put variables into spec.env")
    return _job_files(files, [*fields(options), *options.sets], output)


def _program(options: JobOptions, output: Format | None) -> int:
    from torchyard.api.validation.problems import Problem
    from torchyard.api.validation.validate import Validation

    try:
        result, source = checked_program(options, "local")
    except TorchYardError as error:
        if output is None:
            raise
        source = str(options.file or "")
        result = Validation(problems=(Problem(source, 0, "", error.sentence.removeprefix(f"{source}: "), error.fix),))
    return _print([(source, result)], output)


def _job_files(files: list[Path], sets: list[str], output: Format | None) -> int:
    from torchyard.api.profiles.resource import KIND as PROFILE
    from torchyard.api.profiles.validate import validate_profile
    from torchyard.api.validation.validate import has_kind
    from torchyard.client.files import checked
    from torchyard.client.sweep_files import checked_sweep
    from torchyard.sweeps.resource import KIND

    profiles = {file: validate_profile(file) for file in files if has_kind(file, PROFILE)}
    sweeps = {file: checked_sweep(file, sets) for file in files if has_kind(file, KIND)}
    jobs = [(str(file), checked(file, sets)) for file in files if file not in sweeps and file not in profiles]
    known = [each.profile for each in profiles.values() if each.profile is not None]
    jobs = [(file, _within_profile(result, file, known)) for file, result in jobs]
    others: list[tuple[str, SweepValidation | ProfileValidation]] = [
        *((str(file), each) for file, each in sweeps.items()),
        *((str(file), each) for file, each in profiles.items()),
    ]
    return _print(jobs, output, others)


def _within_profile(result: "Validation", file: str, profiles: "list[TrainingProfile]") -> "Validation":
    """Return the jobs of a file, or what the profiles among the files do not allow of them."""
    from torchyard.api.profiles.validate import outside
    from torchyard.api.validation.problems import Problem
    from torchyard.api.validation.validate import Validation

    problems = tuple(Problem(file, 0, *each) for job in result.jobs for each in outside(job.spec, profiles, None))
    return Validation(problems=problems) if problems else result


def _print(
    results: "list[tuple[str, Validation]]",
    output: Format | None,
    others: "Sequence[tuple[str, SweepValidation | ProfileValidation]]" = (),
) -> int:
    import msgspec

    from torchyard.api.profiles.validate import ProfileValidation
    from torchyard.api.resource import job_document

    checked_files: list[tuple[str, Validation | SweepValidation | ProfileValidation]] = [*results, *others]
    profiles = [(source, each) for source, each in others if isinstance(each, ProfileValidation)]
    sweeps = [(source, each) for source, each in others if not isinstance(each, ProfileValidation)]
    problems = [problem for _, each in checked_files for problem in each.problems]
    if output is not None:
        jobs = [job_document(job, with_status=False) for _, result in results for job in result.jobs]
        found = [each.document for _, each in sweeps if each.sweep is not None]
        whole = {"valid": not problems, "jobs": jobs, "problems": msgspec.to_builtins(problems)}
        emit(whole | {"sweeps": found} if sweeps else whole, output)
        return INVALID if problems else SUCCEEDED
    for problem in problems:
        say(str(problem))
    for source, result in results:
        if not result.problems:
            say(f"{source}: valid ({', '.join(job.metadata.name for job in result.jobs)})")
            _say_profiles(source, result, {each.profile.name for _, each in profiles if each.profile is not None})
    for source, each in profiles:
        if each.profile is not None:
            say(f"{source}: valid (profile {each.profile.name})")
    for source, validated in sweeps:
        if validated.sweep is not None:
            from torchyard.sweeps.space import wanted_trials

            trials = plural(wanted_trials(validated.sweep.spec), "trial")
            say(f"{source}: valid (sweep {validated.sweep.metadata.name}, {trials})")
    return INVALID if problems else SUCCEEDED


def _say_profiles(source: str, result: "Validation", known: set[str]) -> None:
    """Name the profiles that were not compared with: they are objects of a cluster."""
    for job in result.jobs:
        name = job.spec.profile
        if name is not None and name not in known:
            say(
                f"{source}: spec.profile: {name} is an object of a cluster, so its limits were not checked; "
                f"`torchyard plan {source} -n NAMESPACE` asks the cluster, or give the file of the profile here as well"
            )
