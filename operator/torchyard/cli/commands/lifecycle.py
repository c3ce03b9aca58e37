"""Stop, suspend, resume, scale and delete jobs: `torchyard stop|suspend|resume|scale|delete|rm NAME`."""

from argparse import ArgumentParser
from typing import TYPE_CHECKING

from torchyard.api.status import State
from torchyard.cli import arguments as common
from torchyard.cli.errors import FAILED, STOPPED, SUCCEEDED, RefusalError
from torchyard.cli.output import Format, emit, say

if TYPE_CHECKING:
    from torchyard.client.backend import Backend


def stop_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `stop`."""
    common.run_name(parser)
    parser.add_argument("--no-wait", dest="wait", action="store_false", help="return at once")
    common.output(parser, "json", "yaml", help="print the object on stdout")


def stop(*, name: str, wait: bool, output: Format | None) -> int:
    """Carry out `torchyard stop`.

    `torchyard resume` continues from the saved checkpoint.

    Exit codes: 75 the run is stopped, 0 it had succeeded before, 1 it had failed before.
    """
    import asyncio

    from torchyard.client.local import find, kept, load
    from torchyard.client.stopping import settled, stop_run

    run = load(find(name))
    if not settled(run):
        say(f"{name}: saving and stopping")
        run = asyncio.run(stop_run(name, wait=wait))
    if output is not None:
        emit(kept(run).document, output)
    state = run.job.status.state
    if state.terminal:
        say(f"{name} has already {state.lower()}")
        return SUCCEEDED if state == State.SUCCEEDED else FAILED
    if settled(run):
        say(f"{name}: stopped; `torchyard resume {name}` continues it")
    return STOPPED


def suspend_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `suspend`."""
    common.run_name(parser)
    common.location_options(parser)
    common.output(parser, "json", "yaml", help="print the object on stdout")


def suspend(name: str, context: str | None, namespace: str | None, output: Format | None) -> int:
    """Carry out `torchyard suspend`.

    `torchyard resume` continues the job. For a run of this machine, use `torchyard stop`.

    The checkpoint must be on a claim (`checkpoint.volume`): files on a pod's own disk are deleted with the pod.

    Exit codes: 0 the suspension is requested, or the job had succeeded before, 1 it had failed before.
    """
    from torchyard.api.launch import checkpoint_claim
    from torchyard.api.status import State
    from torchyard.cli.arguments import ask_at
    from torchyard.client.backend import Backend
    from torchyard.client.location import HERE, location_of

    location = location_of(name, context, namespace)
    if location == HERE:
        return stop(name=name, wait=True, output=output)

    async def suspend(backend: Backend) -> int:
        kept = await backend.get(name)
        state = kept.job.status.state
        if state.terminal:
            outcome, code = f"has already {state.lower()}", SUCCEEDED if state == State.SUCCEEDED else FAILED
        elif state == State.SUSPENDED and kept.job.spec.suspend:
            outcome, code = "is suspended already", SUCCEEDED
        else:
            if checkpoint_claim(kept.job.spec) is None:
                say("torchyard: without a claim its checkpoints are lost with its pods; a resumed job starts at step 0")
            kept = await backend.suspend(name)
            outcome, code = f"saves and stops within {kept.job.spec.grace_period}", SUCCEEDED
        if output is not None:
            emit(kept.document, output)
        say(f"{name} in {backend.where} {outcome}")
        return code

    return ask_at(location, suspend)


def resume_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `resume`."""
    common.run_name(parser)
    common.location_options(parser)
    common.notify(parser)
    common.quiet(parser)
    common.output(parser, "json", "yaml", help="print the object on stdout: on this machine the final one")


def resume(
    *,
    name: str,
    context: str | None,
    namespace: str | None,
    notify: list[str],
    quiet: bool,
    output: Format | None,
) -> int:
    """Carry out `torchyard resume`.

    The job continues from its newest checkpoint. A run of this machine is watched until it ends, with the exit codes of
    `torchyard run`.
    """
    from torchyard.api.status import State
    from torchyard.cli.arguments import ask_at
    from torchyard.cli.commands.foreground import watch
    from torchyard.client.local import find
    from torchyard.client.location import HERE, location_of
    from torchyard.client.start import require_gpus

    location = location_of(name, context, namespace)
    if location != HERE:
        if notify:
            fix = "leave it out; `notifications` of the chart sends those of a cluster"
            raise RefusalError("--notify is for runs of this machine", fix)
        return ask_at(location, lambda backend: _of_cluster(backend, name, output))
    kept = ask_at(HERE, lambda backend: backend.get(name))
    job = kept.job
    if job.status.state == State.SUCCEEDED:
        say(f"{name} has already succeeded")
        if output is not None:
            emit(kept.document, output)
        return SUCCEEDED
    if job.status.state == State.FAILED:
        raise RefusalError(
            f"{name} has already failed",
            f"`torchyard status {name}` shows why, `torchyard run FILE` starts it over",
        )
    if kept.controlled and job.status.state != State.SUSPENDED:
        fix = f"`torchyard status {name}` and `torchyard logs {name} -f` follow it"
        if job.spec.suspend:
            fix = "wait until it is stopped"
        raise RefusalError(f"the run {name!r} is controlled by another process", fix)
    require_gpus(job)
    ask_at(HERE, lambda backend: backend.resume(name))
    return watch(find(name), output, quiet=quiet, notify=notify)


async def _of_cluster(backend: "Backend", name: str, output: Format | None) -> int:
    from torchyard.api.launch import checkpoint_claim

    kept = await backend.get(name)
    job = kept.job
    if job.status.state.terminal:
        fix = f"`torchyard delete {name}{backend.flags}` and submit it again to start over"
        if checkpoint_claim(job.spec) is not None:
            new = f"{name}-old-1 beside those of the new job"
            if job.spec.trainer is not None:
                new = f"with checkpoint.resumeFrom: {name} the new job continues from them"
            fix += f" (its files are kept: {new})"
        raise RefusalError(f"{name} in {backend.where} has already {job.status.state.lower()}", fix)
    outcome = "continues" if job.spec.suspend else "is not suspended"
    if job.spec.suspend:
        kept = await backend.resume(name)
    if output is not None:
        emit(kept.document, output)
    say(f"{name} in {backend.where} {outcome}; `torchyard status {name}{backend.flags}` shows its state")
    return SUCCEEDED


def scale_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `scale`."""
    common.run_name(parser)
    parser.add_argument("--nodes", metavar="N", type=int, required=True, help="number of nodes that the gang wants")
    common.location_options(parser)
    common.output(parser, "json", "yaml", help="print the object on stdout")


def scale(name: str, nodes: int, context: str | None, namespace: str | None, output: Format | None) -> int:
    """Carry out `torchyard scale`.

    A gang that shrinks saves and continues at once; one that grows does so when its new pods are ready and the time
    saved is worth the restart. The global batch stays the same. The number must be within `spec.elastic`; a suspended
    job may get any.
    """
    from torchyard.api.values import plural
    from torchyard.cli.arguments import ask_at
    from torchyard.client.backend import Backend
    from torchyard.client.location import location_of
    from torchyard.client.scaling import require_scalable

    async def scale(backend: Backend) -> int:
        kept = await backend.get(name)
        before = kept.job.spec.nodes
        require_scalable(kept.job, nodes, backend.flags)
        if nodes != before:
            kept = await backend.scale(name, nodes)
        if output is not None:
            emit(kept.document, output)
        change = f"from {before} to {plural(nodes, 'node')}" if nodes != before else f"it already has nodes: {nodes}"
        say(f"{name}: {change}; `torchyard status {name}{backend.flags}` shows its state")
        return SUCCEEDED

    return ask_at(location_of(name, context, namespace), scale)


def delete_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `delete`."""
    common.run_name(parser)
    common.location_options(parser)


def delete(name: str, context: str | None, namespace: str | None) -> int:
    """Carry out `torchyard delete`.

    Checkpoints on a claim are not deleted. A run of this machine is deleted with its checkpoints, as by `torchyard rm`.
    """
    from torchyard.cli.arguments import ask_at
    from torchyard.client.backend import Backend
    from torchyard.client.location import HERE, location_of

    location = location_of(name, context, namespace)
    if location == HERE:
        return rm([name], force=False)

    async def delete(backend: Backend) -> int:
        await backend.delete(name)
        say(f"{name} in {backend.where} is deleted; its pods are being deleted")
        return SUCCEEDED

    return ask_at(location, delete)


def rm_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `rm`."""
    parser.add_argument("names", metavar=common.RUN_NAME, nargs="+", help="names of runs")
    parser.add_argument("--force", action="store_true", help="kill an unfinished run without saving")


def rm(names: list[str], force: bool) -> int:
    """Carry out `torchyard rm`."""
    from torchyard.cli.output import say
    from torchyard.client.local import find, load

    runs = [load(find(name)) for name in names]
    for run in runs:
        if not run.over and not force:
            name = run.folder.name
            raise RefusalError(f"the run {name!r} is not over", f"`torchyard stop {name}` first, or use --force")
    from torchyard.local.runs import remove_run

    for run in runs:
        try:
            remove_run(run.folder)
        except ValueError as error:
            raise RefusalError(str(error).rstrip(".")) from error
        say(f"{run.folder.name}: deleted")
    return SUCCEEDED
