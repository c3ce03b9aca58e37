"""`kubectl torchyard ...`: the same commands, about the cluster of kubectl's current context.

kubectl starts `kubectl-torchyard` with the words after `torchyard`, and asks `kubectl_complete-torchyard` for
candidates, in the form of the library that it is built with.
"""

import os
import sys
from collections.abc import Sequence

from torchyard.cli import main as command_line
from torchyard.cli.errors import RefusalError

ONLY_CANDIDATES, WITH_FILES = ":4", ":0"
"""The last line of an answer: whether the shell offers files, too."""


def main() -> int:
    """Run a command line; a name means a job of the cluster, also where this machine has a run of that name."""
    return command_line.main(on_cluster(sys.argv[1:]))


def complete() -> int:
    """Print the candidates for the last word, one a line."""
    from torchyard.cli.completion.candidates import candidates

    found = candidates(sys.argv[1:], command_line.COMMANDS, command_line.parser_of, on_cluster=True)
    print("\n".join([*found, ONLY_CANDIDATES if found else WITH_FILES]))
    return 0


def on_cluster(words: Sequence[str]) -> list[str]:
    """Return a command line with the current context, if the command takes one and the line names no location.

    Args:
        words: after the name of the program.
    """
    try:
        line = command_line.command_first([*words])
    except RefusalError:  # reported when the line is run
        return [*words]
    if not line or line[0] not in command_line.COMMANDS:
        return [*words]
    options = command_line.parser_of(line[0])._option_string_actions  # noqa: SLF001
    named = any(word.partition("=")[0] in {"--context", "-n", "--namespace", "--help", "-h"} for word in line)
    context = None if named or "--context" not in options else current_context()
    return line if context is None else [line[0], "--context", context, *line[1:]]


def current_context() -> str | None:
    """Return the current context of the kubeconfig; None: there is none, which the command itself reports."""
    import yaml

    from torchyard.kubernetes.client.credentials import choose

    try:
        return choose(os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config"), None).context  # noqa: PTH111
    except (OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError):
        return None
