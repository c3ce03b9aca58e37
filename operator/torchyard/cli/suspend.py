"""`torchyard suspend NAME`."""

from argparse import ArgumentParser

from torchyard.cli import arguments as common
from torchyard.cli.errors import FAILED, SUCCEEDED
from torchyard.cli.output import Format, emit, say
from torchyard.cli.remote.place import on_cluster, place


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    common.run_name(parser)
    place(parser)
    common.output(parser, "json", "yaml", help="print the object on stdout")


def command(name: str, context: str | None, namespace: str | None, output: Format | None) -> int:
    """Save a job and give its pods up; `torchyard resume` goes on from there. On this machine: `torchyard stop`.

    On a cluster that takes a claim in `checkpoint.volume`: what is on a pod's own disk goes with the pod.

    Exit codes on a cluster: 0 it is asked to, or had succeeded before, 1 it had failed.
    """
    if not on_cluster(name, context, namespace):
        return _of_this_machine(name, output)

    from torchyard.api.states import State
    from torchyard.cli.remote import jobs
    from torchyard.cli.remote.session import Remote, ask

    async def suspend(remote: Remote) -> int:
        kept = await jobs.get(remote, name)
        job = jobs.typed(kept)
        state = job.status.state
        if state.terminal:
            told, code = f"has already {state.lower()}", SUCCEEDED if state == State.SUCCEEDED else FAILED
        elif state == State.SUSPENDED and job.spec.suspend:
            told, code = "is suspended already", SUCCEEDED
        else:
            if job.spec.checkpoint.claim is None:
                say("torchyard: without a claim its checkpoints go with its pods, and a resumed job starts from step 0")
            kept = await jobs.set_suspend(remote, name, suspend=True)
            told, code = f"saves and stops within {jobs.typed(kept).spec.grace_period}", SUCCEEDED
        if output is not None:
            emit(kept, output)
        say(f"{name} in {remote.where} {told}")
        return code

    return ask(suspend, context, namespace)


def _of_this_machine(name: str, output: Format | None) -> int:
    from torchyard.cli.runs import find, load
    from torchyard.cli.status import document
    from torchyard.cli.stop import command as stop

    code = stop(name, wait=True)
    if output is not None:
        emit(document(load(find(name))), output)
    return code
