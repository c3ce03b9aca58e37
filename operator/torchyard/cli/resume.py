"""`torchyard resume NAME`."""

from argparse import ArgumentParser

from torchyard.cli import arguments as common
from torchyard.cli.errors import SUCCEEDED, RefusalError
from torchyard.cli.output import Format


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    common.run_name(parser)
    common.output(parser, "json", "yaml", help="print the final object on stdout")


def command(name: str, output: Format | None) -> int:
    """Go on with a stopped or interrupted run from its newest checkpoint, and watch it until it is over.

    Exit codes as for `run`.
    """
    from torchyard.cli.foreground import watch
    from torchyard.cli.runs import find, load
    from torchyard.cluster.local.runs import suspend_run

    folder = find(name)
    run = load(folder)
    if run.job.status.state == "Succeeded":
        from torchyard.cli.output import emit, say
        from torchyard.cli.status import document

        say(f"{name}: it has succeeded already")
        if output is not None:
            emit(document(run), output)
        return SUCCEEDED
    if run.job.status.state == "Failed":
        raise RefusalError(
            f"the run {name!r} has failed and is over",
            f"`torchyard status {name}` says why, `torchyard run FILE` starts it over",
        )
    if run.controlled and run.job.status.state != "Suspended":
        fix = f"`torchyard status {name}` and `torchyard logs {name} -f` follow it"
        if run.job.spec.suspend:
            fix = "wait until it is stopped"
        raise RefusalError(f"the run {name!r} is controlled by another process", fix)
    suspend_run(folder, suspend=False)
    return watch(folder, output)
