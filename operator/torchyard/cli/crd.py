"""`torchyard crd`."""

import sys

from torchyard.cli.errors import SUCCEEDED


def command() -> int:
    """Print the CustomResourceDefinition of TrainingJob, for `kubectl apply -f -`."""
    from torchyard.api.crd import crd_yaml

    sys.stdout.write(crd_yaml())
    return SUCCEEDED
