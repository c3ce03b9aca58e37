"""`torchyard crd`."""

import sys
from argparse import ArgumentParser

from torchyard.cli.errors import SUCCEEDED


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""


def command() -> int:
    """Print the CustomResourceDefinitions of TrainingJob and TrainingSweep, for `kubectl apply -f -`."""
    from torchyard.api.crd import crd_yaml
    from torchyard.sweeps.crd import sweep_crd_yaml

    sys.stdout.write(f"{crd_yaml()}---\n{sweep_crd_yaml()}")
    return SUCCEEDED
