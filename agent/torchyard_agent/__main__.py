"""`python torchyard-agent.pyz [--listen 127.0.0.1:PORT] -- COMMAND [ARG ...]`, `install --to DIR`, `stacks RUN_DIR`."""

from __future__ import annotations

import faulthandler
import os
import sys
from pathlib import Path


def main() -> None:
    """Run the agent, or install it into a pod; the exit code is that of the container."""
    faulthandler.enable()
    if sys.argv[1:2] == ["install"]:
        _install()
        return
    from torchyard_agent import program  # every pod waits for the installer, which needs none of its imports

    program.run()


def _install() -> None:
    from torchyard_agent import install, termination

    try:
        install.install(sys.argv[2:], os.environ, Path(__file__).parents[1])
    except ValueError as error:
        termination.refuse(str(error), os.environ)


if __name__ == "__main__":
    main()
