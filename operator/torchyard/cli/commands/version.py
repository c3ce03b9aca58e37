"""`torchyard version`."""

from argparse import ArgumentParser

from torchyard.cli.errors import SUCCEEDED
from torchyard.version import __version__


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""


def command() -> int:
    """Print the version."""
    print(__version__)
    return SUCCEEDED
