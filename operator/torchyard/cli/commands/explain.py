"""`torchyard explain NAME`."""

from argparse import ArgumentParser

from torchyard.cli import arguments as common
from torchyard.cli.errors import SUCCEEDED


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    common.run_name(parser)
    common.place(parser)


def command(name: str, context: str | None, namespace: str | None) -> int:
    """Explain why a job is where it is: verdict, what to do, pods, failures, events.

    Given a reason code instead (InsufficientGPU), say what it means.
    """
    if name[:1].isupper():
        from torchyard.api.reasons import Reason
        from torchyard.cli.errors import RefusalError

        known = Reason.of(name)
        if known is None:
            raise RefusalError(f"there is no reason {name!r}", "the reason of a job is in `torchyard ps -o wide`")
        print(f"{name}: {known.sentence}" + (f"; {known.next_step}" if known.next_step else ""))
        return SUCCEEDED
    from torchyard.cli.arguments import ask

    print(ask(lambda backend: backend.explain(name), name, context, namespace))
    return SUCCEEDED
