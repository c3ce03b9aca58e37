"""`torchyard submit FILE`."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Literal

from torchyard.cli import arguments as common
from torchyard.cli.errors import INTERRUPTED, SUCCEEDED, RefusalError
from torchyard.cli.output import emit, say
from torchyard.cli.remote.place import place


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="job file (YAML or JSON) with one TrainingJob; - is stdin"
    )
    parser.add_argument("--name", help="name of the job; by default that of the file")
    common.sets(parser)
    place(parser)
    parser.add_argument("-w", "--watch", action="store_true", help="show the job until it is over")
    common.output(parser, "json", "yaml", help="print the object on stdout")


def command(
    *,
    file: Path,
    name: str | None,
    sets: list[str],
    context: str | None,
    namespace: str | None,
    watch: bool,
    output: Literal["json", "yaml"] | None,
) -> int:
    """Submit a job file to the cluster of your kubeconfig.

    With --watch, Ctrl-C ends the view and leaves the job running.

    Exit codes: 0 submitted (--watch: succeeded), 1 failed, 64 invalid, 75 suspended.
    """
    import msgspec

    from torchyard.api.backends import ignored
    from torchyard.api.codec import job_document
    from torchyard.cli.files import job_of
    from torchyard.cli.remote import jobs
    from torchyard.cli.remote.follow import follow
    from torchyard.cli.remote.session import Remote, ask
    from torchyard.cluster.kube.errors import AlreadyExists

    job = job_of(Path("/dev/stdin") if str(file) == "-" else file, sets)
    if unused := ignored(job.spec, "cluster"):
        say(f"torchyard: a cluster has no use for {', '.join(unused)}; ignored")
    if job.spec.trainer is not None and job.spec.checkpoint.claim is None:
        say("torchyard: no claim in checkpoint.volume: what it writes, checkpoints and exports, ends with its pods")
    if name is not None:
        job = msgspec.structs.replace(job, metadata=msgspec.structs.replace(job.metadata, name=name))
    document = job_document(job, with_status=False)
    given = document["metadata"].get("namespace")
    if given and namespace and given != namespace:
        raise RefusalError(f"{file} is for namespace {given!r}, and -n says {namespace!r}", "leave one of them out")

    async def submit(remote: Remote) -> int:
        document["metadata"]["namespace"] = remote.namespace
        try:
            kept = await jobs.create(remote, document)
        except AlreadyExists as error:
            called = job.metadata.name
            fix = f"`torchyard delete {called}{remote.flags}` first, or give this one another --name"
            raise RefusalError(f"there is a TrainingJob {called!r} in {remote.where} already", fix) from error
        if output is not None:
            emit(kept, output)
        say(f"{job.metadata.name} is submitted to {remote.where}")
        if watch:
            return await follow(remote, job.metadata.name)
        say(f"`torchyard status {job.metadata.name}{remote.flags}` shows what it does")
        return SUCCEEDED

    try:
        return ask(submit, context, namespace or given)
    except KeyboardInterrupt:
        say(f"{job.metadata.name} goes on in the cluster")
        return INTERRUPTED
