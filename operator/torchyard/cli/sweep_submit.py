"""`torchyard submit sweep.yaml`: have the operator of a cluster run a sweep."""

from torchyard.cli.errors import SUCCEEDED, RefusalError
from torchyard.cli.job_options import JobOptions
from torchyard.cli.output import Format, emit, say
from torchyard.cli.sweep_files import named, sweep_of
from torchyard.sweep.resource import TrainingSweep


def submit(
    options: JobOptions, name: str | None, context: str | None, namespace: str | None, output: Format | None
) -> int:
    """Create the sweep of a file.

    Raises:
        RefusalError: the file is invalid, the name is taken, or the cluster refuses.
    """
    from torchyard.client.remote import sweeps
    from torchyard.client.remote.session import Remote, ask
    from torchyard.cluster.kube.errors import AlreadyExists, NotFound
    from torchyard.sweep.codec import sweep_document

    sweep = named(sweep_of(options), name)
    called, given = sweep.metadata.name, namespace
    document = sweep_document(sweep)
    of_file = document["metadata"].get("namespace")
    if of_file and given and of_file != given:
        raise RefusalError(
            f"{options.file} is for namespace {of_file!r}, and -n says {given!r}", "leave one of them out"
        )
    kept = ("name", "namespace", "labels", "annotations")
    document["metadata"] = {field: value for field, value in document["metadata"].items() if field in kept}
    _warn(sweep)

    async def create(remote: Remote) -> int:
        document["metadata"]["namespace"] = remote.namespace
        try:
            created = await sweeps.create(remote, document)
        except AlreadyExists as error:
            fix = f"`torchyard sweep rm {called}{remote.flags}` first, or give this one another --name"
            raise RefusalError(f"there is a TrainingSweep {called!r} in {remote.where} already", fix) from error
        except NotFound as error:
            raise sweeps.missing(remote, called, error) from error
        if output is not None:
            emit(created, output)
        say(f"sweep {called} is submitted to {remote.where}")
        say(f"`torchyard sweep show {called}{remote.flags}` shows its trials")
        return SUCCEEDED

    return ask(create, context, given or of_file)


def _warn(sweep: TrainingSweep) -> None:
    spec = sweep.spec
    if spec.early_stopping is not None and spec.job_template.spec.checkpoint.claim is None:
        say("torchyard: no claim in checkpoint.volume: a stopped trial that goes on trains from step 0 again")
    if spec.algorithm.name == "gp":
        say("torchyard: algorithm gp needs torch and scipy in the operator's image, which ours lacks")
