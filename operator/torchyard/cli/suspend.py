"""`torchyard suspend NAME`."""

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
    """Save a job and give its pods up; `torchyard resume` goes on from there. On this machine: `torchyard stop`."""
    if not on_cluster(name, context, namespace):
        from torchyard.cli.stop import command as stop

        return stop(name, wait=True)

    from torchyard.cli.remote import jobs
    from torchyard.cli.remote.session import Remote, ask

    async def suspend(remote: Remote) -> int:
        job = jobs.typed(await jobs.set_suspend(remote, name, suspend=True))
        say(f"{name} in {remote.where} saves and stops within {job.spec.grace_period}")
        return SUCCEEDED

    return ask(suspend, context, namespace)
