"""`torchyard submit sweep.yaml`: have the operator of a cluster run a sweep."""

from torchyard.cli.commands.job_options import JobOptions
from torchyard.cli.commands.sweep_files import sweep_of
from torchyard.cli.errors import SUCCEEDED
from torchyard.cli.output import Format, emit, say
from torchyard.client.sweep_files import named
from torchyard.sweeps.resource import TrainingSweep


def submit(
    options: JobOptions, name: str | None, context: str | None, namespace: str | None, output: Format | None
) -> int:
    """Create the sweep of a file.

    Raises:
        RefusalError: the file is invalid, the name is taken, or the cluster refuses.
    """
    from torchyard.client.remote.session import Remote, ask
    from torchyard.client.start import folder_of
    from torchyard.client.sweeps import creatable, create, with_code

    assert options.file is not None
    sweep = named(sweep_of(options), name)
    sweep, code = with_code(sweep, folder_of(sweep.metadata, options.file.absolute().parent, say), say)
    called = sweep.metadata.name
    document = creatable(sweep, str(options.file), namespace)
    _warn(sweep)

    async def submit_to(remote: Remote) -> int:
        created = await create(remote, document, code)
        if output is not None:
            emit(created, output)
        say(f"sweep {called} is submitted to {remote.where}")
        say(f"`torchyard sweep show {called}{remote.flags}` shows its trials")
        return SUCCEEDED

    return ask(submit_to, context, namespace or document["metadata"].get("namespace"))


def _warn(sweep: TrainingSweep) -> None:
    from torchyard.api.launch import checkpoint_claim

    spec = sweep.spec
    if spec.early_stopping is not None and checkpoint_claim(spec.job_template.spec) is None:
        say("torchyard: no claim in checkpoint.volume: a stopped trial that continues starts again at step 0")
    if spec.algorithm.name == "gp":
        say("torchyard: algorithm gp needs torch and scipy in the operator's image, which ours lacks")
