"""Take code from stdin, for the next round of this pod: started by `pods/exec` beside the agent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import List

from torchyard_agent.exit_codes import ExitCode
from torchyard_agent.workers import code


def main(arguments: List[str]) -> None:
    """Receive an archive; exit with 0 once it is verified and unpacked.

    Args:
        arguments: the folder of the code of rounds, digest of the code, size of the archive in bytes.
    """
    folder, digest, size = arguments
    wanted = code.Code(digest, Path(folder), Path(folder))
    try:
        code.receive(wanted, sys.stdin.buffer, int(size))
    except code.MismatchError as error:
        print(error, file=sys.stderr)
        sys.exit(ExitCode.CONFIG)
    except OSError as error:
        print(f"the code cannot be unpacked: {error.strerror}", file=sys.stderr)
        sys.exit(ExitCode.STORAGE)
