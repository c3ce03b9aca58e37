"""`torchyard suspend NAME`."""

from argparse import ArgumentParser

from torchyard.cli import arguments as common
from torchyard.cli.errors import FAILED, SUCCEEDED
from torchyard.cli.output import Format, emit, say


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    common.run_name(parser)
    common.place(parser)
    common.output(parser, "json", "yaml", help="print the object on stdout")


def command(name: str, context: str | None, namespace: str | None, output: Format | None) -> int:
    """Save a job and give its pods up; `torchyard resume` goes on from there. On this machine: `torchyard stop`.

    On a cluster that takes a claim in `checkpoint.volume`: what is on a pod's own disk goes with the pod.

    Exit codes on a cluster: 0 it is asked to, or had succeeded before, 1 it had failed.
    """
    from torchyard.api.status import State
    from torchyard.cli.arguments import ask_at
    from torchyard.client.backend import HERE, Backend, place_of

    place = place_of(name, context, namespace)
    if place == HERE:
        from torchyard.cli.commands.stop import command as stop

        code = stop(name, wait=True)
        if output is not None:
            emit(ask_at(HERE, lambda backend: backend.get(name)).document, output)
        return code

    async def suspend(backend: Backend) -> int:
        kept = await backend.get(name)
        state = kept.job.status.state
        if state.terminal:
            told, code = f"has already {state.lower()}", SUCCEEDED if state == State.SUCCEEDED else FAILED
        elif state == State.SUSPENDED and kept.job.spec.suspend:
            told, code = "is suspended already", SUCCEEDED
        else:
            if kept.job.spec.checkpoint.claim is None:
                say("torchyard: without a claim its checkpoints go with its pods, and a resumed job starts from step 0")
            kept = await backend.suspend(name)
            told, code = f"saves and stops within {kept.job.spec.grace_period}", SUCCEEDED
        if output is not None:
            emit(kept.document, output)
        say(f"{name} in {backend.where} {told}")
        return code

    return ask_at(place, suspend)
