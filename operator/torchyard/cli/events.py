"""`torchyard events NAME`."""

from argparse import ArgumentParser
from typing import Literal

from torchyard.cli import arguments as common
from torchyard.cli.errors import SUCCEEDED
from torchyard.cli.output import emit
from torchyard.cli.remote.place import on_cluster, place


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    common.run_name(parser)
    place(parser)
    common.output(parser, "json", "yaml", help="json: one object a line; yaml: a list")


def command(name: str, context: str | None, namespace: str | None, output: Literal["json", "yaml"] | None) -> int:
    """Show what happened to a job, oldest first."""
    import msgspec

    from torchyard.cli.output import escaped
    from torchyard.cli.words import clean
    from torchyard.cluster.local.run import Event

    found: list[Event]
    if on_cluster(name, context, namespace):
        from torchyard.cli.remote import jobs
        from torchyard.cli.remote.session import Remote, ask

        async def ask_for(remote: Remote) -> list[Event]:
            return await jobs.events(remote, jobs.typed(await jobs.get(remote, name)))

        found = ask(ask_for, context, namespace)
    else:
        from torchyard.cli.runs import find
        from torchyard.cluster.local.run import events

        found = list(events(find(name)))
    if output == "yaml":
        emit([msgspec.to_builtins(event) for event in found], output)
        return SUCCEEDED
    for event in found:
        if output is not None:
            print(escaped(msgspec.json.encode(event).decode()))
        else:
            print(f"{clean(event.time)}  {clean(event.type):<7}  {clean(event.reason):<20}  {clean(event.message)}")
    return SUCCEEDED
