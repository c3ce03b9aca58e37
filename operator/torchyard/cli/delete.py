"""`torchyard delete NAME`."""

from argparse import ArgumentParser

from torchyard.cli.arguments import run_name
from torchyard.cli.errors import SUCCEEDED
from torchyard.cli.output import say
from torchyard.cli.remote.place import on_cluster, place


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    run_name(parser)
    place(parser)


def command(name: str, context: str | None, namespace: str | None) -> int:
    """Delete a job with its pods; checkpoints on a claim stay. On this machine: `torchyard rm`, checkpoints too."""
    if not on_cluster(name, context, namespace):
        from torchyard.cli.rm import command as remove

        return remove([name], force=False)

    from torchyard.cli.remote import jobs
    from torchyard.cli.remote.session import Remote, ask

    async def delete(remote: Remote) -> int:
        await jobs.delete(remote, name)
        say(f"{name} in {remote.where} is deleted; its pods stop")
        return SUCCEEDED

    return ask(delete, context, namespace)
