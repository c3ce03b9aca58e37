"""`torchyard crd`."""

import sys
from argparse import ArgumentParser

from torchyard.cli.errors import SUCCEEDED


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""


def command() -> int:
    """Print the CustomResourceDefinition of TrainingJob, for `kubectl apply -f -`."""
    from torchyard.api.crd import crd_yaml

    sys.stdout.write(crd_yaml())
    return SUCCEEDED
