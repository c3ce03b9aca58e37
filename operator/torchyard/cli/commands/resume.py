"""`torchyard resume NAME`."""

from argparse import ArgumentParser
from typing import TYPE_CHECKING

from torchyard.cli import arguments as common
from torchyard.cli.errors import SUCCEEDED, RefusalError
from torchyard.cli.output import Format, emit, say

if TYPE_CHECKING:
    from torchyard.client.backend import Backend


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    common.run_name(parser)
    common.place(parser)
    common.quiet(parser)
    common.output(parser, "json", "yaml", help="print the object on stdout: on this machine the final one")


def command(*, name: str, context: str | None, namespace: str | None, quiet: bool, output: Format | None) -> int:
    """Go on with a stopped, suspended or interrupted job from its newest checkpoint.

    A run of this machine is watched until it is over; exit codes as for `run`.
    """
    from torchyard.api.status import State
    from torchyard.cli.arguments import ask_at
    from torchyard.cli.commands.foreground import watch
    from torchyard.client.backend import HERE, place_of
    from torchyard.client.local import find
    from torchyard.client.start import require_gpus

    place = place_of(name, context, namespace)
    if place != HERE:
        return ask_at(place, lambda backend: _of_cluster(backend, name, output))
    kept = ask_at(HERE, lambda backend: backend.get(name))
    job = kept.job
    if job.status.state == State.SUCCEEDED:
        say(f"{name}: it has succeeded already")
        if output is not None:
            emit(kept.document, output)
        return SUCCEEDED
    if job.status.state == State.FAILED:
        raise RefusalError(
            f"the run {name!r} has failed and is over",
            f"`torchyard status {name}` says why, `torchyard run FILE` starts it over",
        )
    if kept.controlled and job.status.state != State.SUSPENDED:
        fix = f"`torchyard status {name}` and `torchyard logs {name} -f` follow it"
        if job.spec.suspend:
            fix = "wait until it is stopped"
        raise RefusalError(f"the run {name!r} is controlled by another process", fix)
    require_gpus(job)
    ask_at(HERE, lambda backend: backend.resume(name))
    return watch(find(name), output, quiet=quiet)


async def _of_cluster(backend: "Backend", name: str, output: Format | None) -> int:
    kept = await backend.get(name)
    job = kept.job
    if job.status.state.terminal:
        fix = f"`torchyard delete {name}{backend.flags}` and submit it again to start over"
        if job.spec.checkpoint.claim is not None:
            fix += f" (its files are kept; with checkpoint.resumeFrom: {name} the new job goes on from them)"
        raise RefusalError(f"{name} in {backend.where} has {job.status.state.lower()} and is over", fix)
    told = "goes on" if job.spec.suspend else "is not suspended"
    if job.spec.suspend:
        kept = await backend.resume(name)
    if output is not None:
        emit(kept.document, output)
    say(f"{name} in {backend.where} {told}; `torchyard status {name}{backend.flags}` shows what it does")
    return SUCCEEDED
