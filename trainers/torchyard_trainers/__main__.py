"""`torchrun -m torchyard_trainers`: one worker of a training job. Also `python -m torchyard_trainers schema cvrp`."""

import sys

from torchyard_trainers.core.command import main

if __name__ == "__main__":
    code = main(sys.argv[1:])
    # Done returns normally: torchrun's forked workers count that, and only that, as success.
    if code:
        sys.exit(code)
