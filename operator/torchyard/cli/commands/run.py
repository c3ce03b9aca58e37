"""`torchyard run FILE`, `torchyard run train.py -- ARGUMENTS`."""

from typing import Any

from torchyard.api.names import SCRIPT_SUFFIX
from torchyard.cli import arguments as common
from torchyard.cli.commands.job_options import declare, options_of
from torchyard.cli.errors import SUCCEEDED, RefusalError
from torchyard.cli.output import Format, say


def run_arguments(parser: common.Parser) -> None:
    """Declare the command line of `run`."""
    declare(parser, "local")
    parser.add_argument("--name", help="name of the run; by default that of the job file, or one from the script's")
    parser.add_argument("-w", "--watch", action="store_true", help="start again each time the code is edited")
    common.notify(parser)
    common.quiet(parser)
    common.output(parser, "json", "yaml", help="print the final object on stdout, and the program's output on stderr")


def run(*, name: str | None, watch: bool, notify: list[str], quiet: bool, output: Format | None, **values: Any) -> int:
    """Carry out `torchyard run`.

    torchyard run job.yaml
    torchyard run sweep.yaml
    torchyard run train.py --nodes 2 --procs-per-node 2 -- --lr 1e-3
    torchyard run train.py --code . -- --lr 1e-3
    torchyard run -m package.train -- --lr 1e-3
    torchyard run -- bash train.sh

    Scripts and modules are started with torchrun in the current folder. torchrun and python are the ones on your PATH;
    without a torchrun there, TorchYard uses its own. The output of the program is written to stdout, or shown below the
    curve if stdout is a terminal.

    With --code, the program runs from a copy of the folder, so that edits do not change a run. With --watch as well,
    an edit saves and stops the run and continues it with the new code; a run that is over starts over.

    An unfinished run of the same name continues from its newest checkpoint; a finished one starts over. To train a
    finished run for longer: --name NEW --set checkpoint.resumeFrom=NAME --set trainer.params.steps=MORE (vecrl:
    environmentSteps).

    The file of a TrainingSweep runs its trials side by side; `torchyard sweep` shows the results.

    Ctrl-C saves and stops the run; a second Ctrl-C stops it at once.

    Exit codes: 0 succeeded, 1 failed, 64 invalid, 75 saved and stopped.
    """
    from torchyard.api.validation.validate import has_kind
    from torchyard.cli.commands import foreground
    from torchyard.cli.commands.job_options import requested, save
    from torchyard.client.start import start
    from torchyard.local.environment import OWN_PROGRAMS, programs_of_shell, with_programs
    from torchyard.sweeps.resource import KIND

    options = options_of(values)
    if options.file is not None and options.file.suffix != SCRIPT_SUFFIX and has_kind(options.file, KIND):
        from torchyard.cli.commands.sweep_run import run

        if watch:
            raise RefusalError("--watch starts one job again, not a sweep", "leave it out")
        if notify:
            raise RefusalError("--notify is for jobs, and this is a sweep", "leave it out")
        return run(options, name, output)
    wanted = requested(options, "local", name)
    if options.save is not None:
        save(wanted, options.save, "local")
        return SUCCEEDED
    programs = programs_of_shell()
    if programs != OWN_PROGRAMS and wanted.job.spec.trainer is None:
        say(f"torchyard: torchrun is the one of {programs}, the first on PATH")
    wanted = wanted._replace(job=with_programs(wanted.job, programs))
    if watch:
        from torchyard.cli.commands.run_on_save import run_on_save

        return run_on_save(wanted, name, output, quiet=quiet, notify=notify)
    return foreground.watch(start(wanted, name, notice=say), output, quiet=quiet, notify=notify)
