"""Where words go: data to stdout, everything else to stderr."""

import contextlib
import json
import os
import sys
from typing import Any, Literal

from torchyard.cli.safe_output import escaped

Format = Literal["json", "yaml"]


def emit(document: Any, form: Format) -> None:
    """Write one document to stdout."""
    if form == "json":
        sys.stdout.write(escaped(json.dumps(document, indent=2, ensure_ascii=False)) + "\n")
        return
    import yaml

    yaml.safe_dump(document, sys.stdout, sort_keys=False, allow_unicode=True, width=120)


def say(text: str) -> None:
    """Print one line to stderr; ignore a closed pipe."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def let_go() -> None:
    """Before the program ends: output without a reader must not be flushed into a broken pipe by Python's own exit.

    That flush would change the exit code to 120.
    """
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
