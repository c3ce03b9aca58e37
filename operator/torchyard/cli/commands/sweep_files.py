"""Read the sweep of a job file."""

from torchyard.cli.commands.job_options import JobOptions
from torchyard.cli.errors import RefusalError
from torchyard.client.sweep_files import checked_sweep, the_sweep
from torchyard.sweeps.resource import TrainingSweep


def sweep_of(options: JobOptions) -> TrainingSweep:
    """Read and check the file of a sweep.

    Raises:
        InvalidJobError: it is invalid.
        RefusalError: options of a job are given.
    """
    file = options.file
    assert file is not None
    size = [options.nodes, options.procs, options.gpus]
    given = [*size, options.save, options.module, options.code, *options.words, *options.env]
    if any(each is not None for each in given):
        fix = "change jobTemplate in the file, or use --set jobTemplate.spec.nodes=2"
        raise RefusalError(f"{file} is a sweep, and options of a job are given", fix)
    return the_sweep(checked_sweep(file, options.sets), str(file))
