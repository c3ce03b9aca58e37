"""`torchyard validate FILE...`."""

from argparse import ArgumentParser
from pathlib import Path

from torchyard.cli import arguments as common
from torchyard.cli.errors import INVALID, SUCCEEDED
from torchyard.cli.output import Format, emit, say


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="job files (YAML or JSON)")
    common.sets(parser)
    common.output(parser, "json", help="print jobs and problems as JSON")


def command(files: list[Path], sets: list[str], output: Format | None) -> int:
    """Check job files without running them, and name every mistake with its line and its fix.

    Exit code 0: all are valid, 64: some are not.
    """
    from torchyard.api.codec import job_document
    from torchyard.cli.files import checked

    results = [(file, checked(file, sets)) for file in files]
    problems = [problem for _, result in results for problem in result.problems]
    if output is not None:
        emit(
            {
                "valid": not problems,
                "jobs": [job_document(job, with_status=False) for _, result in results for job in result.jobs],
                "problems": [
                    {
                        "file": problem.file,
                        "line": problem.line,
                        "path": problem.path,
                        "what": problem.what,
                        "fix": problem.fix,
                    }
                    for problem in problems
                ],
            },
            output,
        )
    else:
        for problem in problems:
            say(str(problem))
        for file, result in results:
            if not result.problems:
                names = ", ".join(job.metadata.name for job in result.jobs)
                say(f"{file}: valid ({names})")
    return INVALID if problems else SUCCEEDED
