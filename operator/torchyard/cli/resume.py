"""`torchyard resume NAME`."""

from argparse import ArgumentParser

from torchyard.cli import arguments as common
from torchyard.cli.errors import SUCCEEDED, RefusalError
from torchyard.cli.output import Format, emit, say
from torchyard.cli.remote.place import on_cluster, place


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    common.run_name(parser)
    place(parser)
    common.quiet(parser)
    common.output(parser, "json", "yaml", help="print the object on stdout: on this machine the final one")


def command(*, name: str, context: str | None, namespace: str | None, quiet: bool, output: Format | None) -> int:
    """Go on with a stopped, suspended or interrupted job from its newest checkpoint.

    A run of this machine is watched until it is over; exit codes as for `run`.
    """
    if on_cluster(name, context, namespace):
        return _of_cluster(name, context, namespace, output)
    from torchyard.api.states import State
    from torchyard.cli.foreground import require_gpus, watch
    from torchyard.cli.runs import find, load
    from torchyard.cluster.local.runs import suspend_run

    folder = find(name)
    run = load(folder)
    if run.job.status.state == State.SUCCEEDED:
        from torchyard.cli.status import document

        say(f"{name}: it has succeeded already")
        if output is not None:
            emit(document(run), output)
        return SUCCEEDED
    if run.job.status.state == State.FAILED:
        raise RefusalError(
            f"the run {name!r} has failed and is over",
            f"`torchyard status {name}` says why, `torchyard run FILE` starts it over",
        )
    if run.controlled and run.job.status.state != State.SUSPENDED:
        fix = f"`torchyard status {name}` and `torchyard logs {name} -f` follow it"
        if run.job.spec.suspend:
            fix = "wait until it is stopped"
        raise RefusalError(f"the run {name!r} is controlled by another process", fix)
    require_gpus(run.job)
    suspend_run(folder, suspend=False)
    return watch(folder, output, quiet=quiet)


def _of_cluster(name: str, context: str | None, namespace: str | None, output: Format | None) -> int:
    from torchyard.cli.remote import jobs
    from torchyard.cli.remote.session import Remote, ask

    async def resume(remote: Remote) -> int:
        kept = await jobs.get(remote, name)
        job = jobs.typed(kept)
        state = job.status.state
        if state.terminal:
            fix = f"`torchyard delete {name}{remote.flags}` and submit it again to start over"
            if job.spec.checkpoint.claim is not None:
                fix += f" (its files are kept; with checkpoint.resumeFrom: {name} the new job goes on from them)"
            raise RefusalError(f"{name} in {remote.where} has {state.lower()} and is over", fix)
        told = "goes on" if job.spec.suspend else "is not suspended"
        if job.spec.suspend:
            kept = await jobs.set_suspend(remote, name, suspend=False)
        if output is not None:
            emit(kept, output)
        say(f"{name} in {remote.where} {told}; `torchyard status {name}{remote.flags}` shows what it does")
        return SUCCEEDED

    return ask(resume, context, namespace)
