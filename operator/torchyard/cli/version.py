"""`torchyard version`."""

from torchyard import __version__
from torchyard.cli.errors import SUCCEEDED


def command() -> int:
    """Print the version."""
    print(__version__)
    return SUCCEEDED
