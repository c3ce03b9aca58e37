"""Carry out one request of a client."""

import contextlib
import sys
from collections.abc import Callable
from typing import Any

from torchyard.cli.errors import FAILED
from torchyard.cli.hosted.allocation import allocation, nodes_of, queue, stacks, stacks_here, task
from torchyard.cli.hosted.runs import control, create, detach, gang, join, leave, node, send
from torchyard.cli.hosted.view import attach
from torchyard.cli.main import explained
from torchyard.cli.output import filter_streams, say
from torchyard.hosts.slurm import SlurmError

_COMMANDS: dict[str, Callable[..., int]] = {
    "create": create, "gang": gang, "join": join, "detach": detach, "control": control, "node": node,
    "nodes-of": nodes_of, "queue": queue, "allocation": allocation, "task": task,
    "attach": attach, "stacks": stacks, "stacks-here": stacks_here, "leave": leave, "send": send,
}  # fmt: skip


def main(words: list[str]) -> int:
    """Carry out one request."""
    filter_streams()
    try:
        return _COMMANDS[words[0]](*words[1:])
    except KeyboardInterrupt:
        return 130
    except SlurmError as error:
        say(f"torchyard: {error}")
        return FAILED
    except Exception as error:  # noqa: BLE001 - the client shows a sentence
        refusal = explained(error)
        problems: tuple[Any, ...] = getattr(refusal, "problems", ())
        for problem in problems:
            say(str(problem))
        say(f"torchyard: {refusal.sentence}" + (f"; {refusal.fix}" if refusal.fix else ""))
        return refusal.code


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main(sys.argv[1:]))
