"""`torchyard delete NAME`."""

from argparse import ArgumentParser

from torchyard.cli import arguments as common
from torchyard.cli.errors import SUCCEEDED
from torchyard.cli.output import say


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    common.run_name(parser)
    common.place(parser)


def command(name: str, context: str | None, namespace: str | None) -> int:
    """Delete a job with its pods; checkpoints on a claim stay. On this machine: `torchyard rm`, checkpoints too."""
    from torchyard.cli.arguments import ask_at
    from torchyard.client.backend import HERE, Backend, place_of

    place = place_of(name, context, namespace)
    if place == HERE:
        from torchyard.cli.commands.rm import command as remove

        return remove([name], force=False)

    async def delete(backend: Backend) -> int:
        await backend.delete(name)
        say(f"{name} in {backend.where} is deleted; its pods stop")
        return SUCCEEDED

    return ask_at(place, delete)
