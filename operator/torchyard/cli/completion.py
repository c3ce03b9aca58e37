"""`torchyard completion`: the script that teaches a shell our commands, options and run names."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from torchyard.cli.errors import SUCCEEDED


def command(shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="Shell to complete in.")]) -> int:
    """Print the completion script of a shell.

    bash: source <(torchyard completion bash)

    zsh: source <(torchyard completion zsh)

    fish: torchyard completion fish | source
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    from torchyard.cli.main import COMPLETE_VARIABLE, PROGRAM

    print(get_completion_script(prog_name=PROGRAM, complete_var=COMPLETE_VARIABLE, shell=shell))
    return SUCCEEDED


def run_names(incomplete: str) -> list[str]:
    """Names of the runs in $TORCHYARD_HOME that start with `incomplete`."""
    runs = Path(os.environ.get("TORCHYARD_HOME") or Path.home() / ".torchyard") / "runs"
    try:
        return sorted(entry.name for entry in runs.iterdir() if entry.is_dir() and entry.name.startswith(incomplete))
    except OSError:
        return []
