"""`torchyard explain NAME`."""

from argparse import ArgumentParser

from torchyard.cli.arguments import run_name
from torchyard.cli.errors import SUCCEEDED
from torchyard.cli.remote.place import on_cluster, place


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    run_name(parser)
    place(parser)


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
    if not on_cluster(name, context, namespace):
        from torchyard.cli.status import command as status

        return status(name, None, None, None)
    import time

    from torchyard.cli.remote import jobs, show
    from torchyard.cli.remote.session import Remote, ask

    async def explain(remote: Remote) -> int:
        job = jobs.typed(await jobs.get(remote, name))
        pods, events = await jobs.pods(remote, job), await jobs.events(remote, job)
        print(show.explain(job, pods, events, remote, time.time()))
        return SUCCEEDED

    return ask(explain, context, namespace)
