"""`torchyard validate FILE...`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from torchyard.cli.errors import INVALID, SUCCEEDED
from torchyard.cli.output import emit, say


def command(
    files: Annotated[list[Path], typer.Argument(help="Job files.", metavar="FILE...")],
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Change a field first, as `run` does.")
    ] = None,
    output: Annotated[
        Literal["json"] | None, typer.Option("--output", "-o", help="Print jobs and problems as JSON.")
    ] = None,
) -> int:
    """Check job files without running them, and name every mistake with its line and its fix.

    Exit code 0: all are valid, 64: some are not.
    """
    from torchyard.api.codec import job_document
    from torchyard.api.validate import validate_file

    checked = [(file, validate_file(file, sets or ())) for file in files]
    problems = [problem for _, result in checked for problem in result.problems]
    if output is not None:
        emit(
            {
                "valid": not problems,
                "jobs": [job_document(job, with_status=False) for _, result in checked for job in result.jobs],
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
        for file, result in checked:
            if not result.problems:
                names = ", ".join(job.metadata.name for job in result.jobs)
                say(f"{file}: valid ({names})")
    return INVALID if problems else SUCCEEDED
