"""`torchyard submit FILE`."""

from typing import TYPE_CHECKING, Any, Literal

from torchyard.api.names import SCRIPT_SUFFIX
from torchyard.cli import arguments as common
from torchyard.cli.commands import fetches as fetching
from torchyard.cli.commands.job_options import declare, options_of
from torchyard.cli.errors import INTERRUPTED, SUCCEEDED, RefusalError
from torchyard.cli.output import emit, say

if TYPE_CHECKING:
    from torchyard.api.resource import TrainingJob
    from torchyard.client.start import RequestedJob


def submit_arguments(parser: common.Parser) -> None:
    """Declare the command line of `submit`."""
    declare(parser, "cluster")
    parser.add_argument("--name", help="name of the job; by default that of the job file, or one from the script's")
    common.location_options(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="submit nothing: print what `torchyard plan` prints of this job"
    )
    parser.add_argument("-w", "--watch", action="store_true", help="show the job until it ends")
    parser.add_argument(
        "--replace",
        action="store_true",
        help="replace the job of this name, in its pods if only code, command, args or env differ; with --watch and "
        "--code at each edit, until Ctrl-C",
    )
    fetching.declare(parser)
    common.quiet(parser)
    common.output(parser, "json", "yaml", help="print the object on stdout, and the program's output on stderr")


def submit(
    *,
    name: str | None,
    context: str | None,
    namespace: str | None,
    dry_run: bool,
    watch: bool,
    replace: bool,
    fetches: list[fetching.Fetch],
    quiet: bool,
    output: Literal["json", "yaml"] | None,
    **values: Any,
) -> int:
    """Carry out `torchyard submit`.

    torchyard submit job.yaml
    torchyard submit train.py --nodes 2 --gpus-per-node 8 -- --lr 1e-3
    torchyard submit train.py --code . -- --lr 1e-3
    torchyard submit --image IMAGE -m package.train -- --lr 1e-3
    torchyard submit --image IMAGE -- torchrun train.py --lr 1e-3

    The job contains the script (at most 60 KiB, without modules of its folder). With --code, a folder goes along: the
    files that git does not ignore. Other modules and commands are those of the image.

    The file of a TrainingSweep makes the operator run its trials; `torchyard sweep` shows the results.

    With --dry-run nothing is created: whether the job fits now, who holds the GPUs, queue and quotas, and what differs
    from the job of its name, as `torchyard plan -n NAMESPACE` prints it.

    With --watch, the output of the program is written to stdout, or shown below the curve if stdout is a terminal.
    Ctrl-C ends the view and leaves the job running.

    With --replace, a job of this name that runs saves and continues as this one; if only code, command, args or env
    differ, in the same pods, which needs the right to create pods/exec. One that has ended starts over. With --watch
    and --code it does so again after each edit.

    With --fetch, the job is watched, and its files are downloaded and verified once it has succeeded.

    Exit codes: 0 submitted (--watch: succeeded), 1 failed, 64 invalid, 75 suspended.
    """
    import sys

    import msgspec

    from torchyard.api.validation.validate import has_kind
    from torchyard.cli.arguments import ask_at
    from torchyard.cli.commands.follow import follow
    from torchyard.cli.commands.job_options import requested, require_nothing_beside_save, save
    from torchyard.cli.commands.submit_on_save import follow_edits
    from torchyard.client.backend import Backend
    from torchyard.client.bundle.attach import packed
    from torchyard.client.cluster import ClusterBackend
    from torchyard.client.jobs import creatable
    from torchyard.client.location import Location
    from torchyard.sweeps.resource import KIND

    options = options_of(values)
    if options.save is not None:
        require_nothing_beside_save(
            {"--watch": watch, "--replace": replace, "--dry-run": dry_run, "--fetch": fetches, "-o": output}
            | {"--context": context, "--namespace": namespace}
        )
    fetching.require_free(fetches)
    _require_together(dry_run=dry_run, watch=watch, replace=replace, fetches=bool(fetches))
    if options.file is not None and options.file.suffix != SCRIPT_SUFFIX and has_kind(options.file, KIND):
        from torchyard.cli.commands.sweep_submit import submit as submit_sweep

        _refuse_of_sweeps(dry_run=dry_run, replace=replace, fetches=bool(fetches))
        return submit_sweep(options, name, context, namespace, output)
    wanted = requested(options, "cluster", name)
    if options.save is not None:
        save(wanted, options.save, "cluster")
        return SUCCEEDED
    code = packed(wanted.job, wanted.folder, say)
    job = wanted.job if code is None else code.job
    _require_files_to_stay(job, bool(fetches))
    _warn(job)
    if name is not None:
        job = msgspec.structs.replace(job, metadata=msgspec.structs.replace(job.metadata, name=name))
    called = job.metadata.name
    document = creatable(job, wanted.source, namespace)
    if dry_run:
        return _plan(wanted, job, document, context, namespace, output=output)

    async def submit(backend: Backend) -> int:
        assert isinstance(backend, ClusterBackend)
        kept = await (backend.replace(document, job, code) if replace else backend.create(document, code))
        if output is not None:
            emit(kept.document, output)
        say(f"{called} is submitted to {backend.where}")
        if watch or fetches:
            stream = sys.stderr if output is not None else sys.stdout
            if replace and code is not None and code.bundle is not None:
                return await follow_edits(backend, wanted, job, kept, None if quiet else stream)
            outcome = await follow(backend, called, kept.job.metadata.uid, output=None if quiet else stream)
            await fetching.bring_all(backend.fetch, called, fetches if outcome == SUCCEEDED else [])
            return outcome
        say(f"`torchyard status {called}{backend.flags}` shows its state")
        return SUCCEEDED

    location = Location("cluster", context, namespace or document["metadata"].get("namespace"))
    try:
        return ask_at(location, submit)
    except KeyboardInterrupt:
        say(f"{called} continues in the cluster")
        return INTERRUPTED


def _require_together(*, dry_run: bool, watch: bool, replace: bool, fetches: bool) -> None:
    if replace and fetches:
        raise RefusalError("--fetch waits for the end of a job, which --replace edits", "leave one of them out")
    if dry_run and replace:
        raise RefusalError("--dry-run replaces nothing", "leave --replace out: the plan names what differs")
    if dry_run and (watch or fetches):
        raise RefusalError("--dry-run submits nothing that --watch or --fetch could get", "leave one of them out")


def _require_files_to_stay(job: "TrainingJob", fetches: bool) -> None:
    from torchyard.api.launch import checkpoint_claim

    if fetches and checkpoint_claim(job.spec) is None:
        what = "--fetch downloads once the job has succeeded, and without a claim its files are deleted with its pods"
        raise RefusalError(what, "name a claim in checkpoint.volume, as in --set checkpoint.volume.claim=NAME")


def _refuse_of_sweeps(*, dry_run: bool, replace: bool, fetches: bool) -> None:
    if dry_run or fetches or replace:
        fix = "plan its jobTemplate as a job file" if dry_run else "leave it out"
        given = "--dry-run" if dry_run else "--fetch" if fetches else "--replace"
        raise RefusalError(f"{given} is for one job, not for a sweep", fix)


def _warn(job: "TrainingJob") -> None:
    from torchyard.api.backends import ignored
    from torchyard.api.launch import checkpoint_claim

    if unused := ignored(job.spec, "cluster"):
        say(f"torchyard: a cluster ignores {', '.join(unused)}; ignored")
    if job.spec.trainer is not None and checkpoint_claim(job.spec) is None:
        say("torchyard: no claim in checkpoint.volume: its checkpoints and exports are lost with its pods")


def _plan(
    wanted: "RequestedJob",
    job: "TrainingJob",
    document: dict[str, Any],
    *location: str | None,
    output: Literal["json", "yaml"] | None,
) -> int:
    """Print the plan of a job, and submit nothing."""
    from torchyard.cli.commands import plan

    memory, why = plan.memory_if_possible(job, wanted.folder, None)
    found = plan.on_the_cluster(job, document, *location)
    return plan.show(memory, plan.size_of(job, None), found, why, output)
