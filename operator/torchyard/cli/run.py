"""`torchyard run FILE`."""

from argparse import ArgumentParser
from pathlib import Path

from torchyard.cli import arguments as common
from torchyard.cli.output import Format


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("file", metavar="FILE", type=Path, help="job file (YAML or JSON) with one TrainingJob")
    parser.add_argument("--name", help="name of the run; by default the job's")
    common.sets(parser)
    common.output(parser, "json", "yaml", help="print the final object on stdout")


def command(file: Path, name: str | None, sets: list[str], output: Format | None) -> int:
    """Run a job file on this machine and watch it until it is over.

    An unfinished run of that name goes on from its newest checkpoint; a finished one starts over. To train that for
    longer: --name NEW --set checkpoint.resumeFrom=NAME --set trainer.params.steps=MORE (vecrl: environmentSteps).

    Ctrl-C saves and stops; a second Ctrl-C stops now.

    Exit codes: 0 succeeded, 1 failed, 64 invalid, 75 saved and stopped.
    """
    from torchyard.cli.foreground import start, watch

    return watch(start(file, name, sets), output)
