"""`torchyard version`."""

from argparse import ArgumentParser

from torchyard import __version__
from torchyard.cli.errors import SUCCEEDED


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""


def command() -> int:
    """Print the version."""
    print(__version__)
    return SUCCEEDED
