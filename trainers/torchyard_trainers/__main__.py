"""`torchrun -m torchyard_trainers`: one worker of a training job. Also `python -m torchyard_trainers schema cvrp`."""

import os
import sys

from torchyard_trainers.core.collection import exemptions
from torchyard_trainers.core.command import main

if __name__ == "__main__":
    with exemptions():
        code = main(sys.argv[1:])
        # Done returns normally: torchrun's forked workers count that, and only that, as success. Anything else ends at
        # once, since the interpreter's own way out may wait in a communicator for peers that are gone.
        if code:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
