"""`torchyard run FILE`, `torchyard run train.py -- ARGUMENTS`."""

from argparse import ArgumentTypeError
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchyard.api.names import SCRIPT_SUFFIX
from torchyard.cli import arguments as common
from torchyard.cli.commands import fetches as fetching
from torchyard.cli.commands.job_options import declare, options_of
from torchyard.cli.errors import SUCCEEDED, RefusalError
from torchyard.cli.output import Format, say

if TYPE_CHECKING:
    from torchyard.api.spec import TrainingJobSpec
    from torchyard.client.hosts.launch import HostOptions


def run_arguments(parser: common.Parser) -> None:
    """Declare the command line of `run`."""
    declare(parser, "local")
    parser.add_argument("--name", help="name of the run; by default that of the job file, or one from the script's")
    parser.add_argument("-w", "--watch", action="store_true", help="start again each time the code is edited")
    parser.add_argument(
        "--volume",
        dest="volumes",
        metavar="NAME=FOLDER",
        action="append",
        type=_volume,
        default=[],
        help="use this folder for a volume of the job: it takes the place of the mountPath in command, args, env and "
        "parameters",
    )
    common.notify(parser)
    parser.add_argument(
        "--host", metavar="HOST[,HOST]", help="run it on machines that ssh reaches; several form one gang"
    )
    parser.add_argument(
        "--slurm",
        metavar="PARTITION[,OPTION=VALUE]",
        help="run it in an allocation of Slurm, with options of sbatch, as in --slurm gpu,time=4:00:00; --host names "
        "the login node, by default this machine",
    )
    parser.add_argument("--python", metavar="PATH", help="Python of the workers on the hosts; by default python3")
    parser.add_argument("--home", metavar="DIR", help="folder of TorchYard on the hosts; by default ~/.torchyard")
    parser.add_argument(
        "--uv", action="store_true", help="create an environment on the hosts with uv, from requirements.txt"
    )
    fetching.declare(parser)
    common.quiet(parser)
    common.output(parser, "json", "yaml", help="print the final object on stdout, and the program's output on stderr")


def run(
    *,
    name: str | None,
    watch: bool,
    volumes: list[tuple[str, str]],
    notify: list[str],
    host: str | None,
    slurm: str | None,
    python: str | None,
    home: str | None,
    uv: bool,
    fetches: list[fetching.Fetch],
    quiet: bool,
    output: Format | None,
    **values: Any,
) -> int:
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

    With --host, the run and its controller live on that machine and need no connection; Ctrl-C only ends the view.
    `torchyard status`, `logs`, `stacks`, `stop`, `resume`, `fetch` and `rm` work there by its name.

    A job with volumes of a cluster runs here with --volume NAME=FOLDER for each; with --host, the folder is there.

    Ctrl-C saves and stops a run of this machine; a second Ctrl-C stops it at once.

    Exit codes: 0 succeeded, 1 failed, 64 invalid, 75 saved and stopped.
    """
    from msgspec.structs import replace

    from torchyard.api.validation.validate import has_kind
    from torchyard.cli.commands import foreground
    from torchyard.cli.commands.job_options import requested, require_nothing_beside_save, save
    from torchyard.client.start import start
    from torchyard.local.environment import OWN_PROGRAMS, programs_of_shell, with_programs
    from torchyard.sweeps.resource import KIND

    options = options_of(values)
    if options.save is not None:
        require_nothing_beside_save(
            {"--watch": watch, "--notify": notify, "--host": host, "--slurm": slurm, "--fetch": fetches, "-o": output}
        )
    there = _hosts(host, slurm, python, home, uv=uv)
    fetching.require_free(fetches)
    if watch and (there is not None or fetches):
        raise RefusalError("--watch starts a run of this machine again", "leave out --host, --slurm and --fetch")
    if notify and there is not None:
        raise RefusalError("--notify runs a command on this machine, and the run is on another", "leave it out")
    if options.file is not None and options.file.suffix != SCRIPT_SUFFIX and has_kind(options.file, KIND):
        from torchyard.cli.commands.sweep_run import run

        _refuse_of_sweeps(watch=watch, notify=bool(notify), elsewhere=there is not None or bool(fetches))
        return run(options, name, output, lambda spec: _on_folders(spec, volumes))
    wanted = requested(options, "local", name)
    spec = _on_folders(wanted.job.spec, volumes, elsewhere=there is not None)
    wanted = wanted._replace(job=replace(wanted.job, spec=spec))
    if options.save is not None:
        save(wanted, options.save, "local")
        return SUCCEEDED
    if there is not None:
        from torchyard.cli.commands.hosts import run_there

        return run_there(wanted, name, there, quiet=quiet, output=output, fetches=fetches)
    programs = programs_of_shell()
    if programs != OWN_PROGRAMS and wanted.job.spec.trainer is None:
        say(f"torchyard: torchrun is the one of {programs}, the first on PATH")
    wanted = wanted._replace(job=with_programs(wanted.job, programs))
    if watch:
        from torchyard.cli.commands.run_on_save import run_on_save

        return run_on_save(wanted, name, output, quiet=quiet, notify=notify)
    folder = start(wanted, name, notice=say)
    code = foreground.watch(folder, output, quiet=quiet, notify=notify)
    if code == SUCCEEDED and fetches:
        import asyncio

        from torchyard.client.local import LocalBackend

        asyncio.run(fetching.bring_all(LocalBackend().fetch, folder.name, fetches))
    return code


def _refuse_of_sweeps(*, watch: bool, notify: bool, elsewhere: bool) -> None:
    if watch:
        raise RefusalError("--watch starts one job again, not a sweep", "leave it out")
    if notify:
        raise RefusalError("--notify is for jobs, and this is a sweep", "leave it out")
    if elsewhere:
        raise RefusalError("--host and --fetch are for one job, not for a sweep", "leave them out")


def _volume(text: str) -> tuple[str, str]:
    name, assigned, folder = text.partition("=")
    if not name or not assigned or not folder:
        raise ArgumentTypeError(f"{text} is not NAME=FOLDER")
    return name, folder


def _on_folders(
    spec: "TrainingJobSpec", volumes: list[tuple[str, str]], *, elsewhere: bool = False
) -> "TrainingJobSpec":
    """Return the spec with a folder for each volume that --volume names.

    Args:
        spec: of a job.
        volumes: name and folder of each.
        elsewhere: whether the folders are on hosts.

    Raises:
        RefusalError: the job has no such volume, or there is no such folder.
    """
    from torchyard.api.local_volumes import with_folders

    known = [volume.name for volume in spec.volumes]
    folders = {}
    for name, text in volumes:
        if name not in known:
            has = f"has {', '.join(known)}" if known else "has no volumes"
            raise RefusalError(f"--volume {name}: spec.volumes {has}", "correct the name, or leave it out")
        if name in folders:
            raise RefusalError(f"--volume {name} is given twice", "give one folder")
        path = Path(text).expanduser()
        if elsewhere and not path.is_absolute():
            raise RefusalError(f"--volume {name}={text} is not absolute", "give the path that it has on the hosts")
        if not elsewhere and not path.is_dir():
            raise RefusalError(f"--volume {name}={text} is not a folder", "create it, or name another one")
        folders[name] = str(path if elsewhere else path.absolute())
    return with_folders(spec, folders)


def _hosts(
    host: str | None, slurm: str | None, python: str | None, home: str | None, *, uv: bool
) -> "HostOptions | None":
    """Return the hosts of the command line; None: this machine."""
    if host is None and slurm is None:
        if python is not None or home is not None or uv:
            raise RefusalError("--python, --home and --uv are about hosts", "give --host or --slurm")
        return None
    from torchyard.client.hosts.launch import HostOptions, Slurm
    from torchyard.client.hosts.preflight import DEFAULT_HOME
    from torchyard.hosts.slurm import checked_options

    pairs = [each.partition("=") for each in (host or "").split(",")]
    names, addresses = tuple(name for name, _, _ in pairs), tuple(address for _, _, address in pairs)
    if (host is not None and not all(names)) or len(set(names)) < len(names):
        raise RefusalError(f"--host {host}: a name is empty or named twice", "write it like --host a,b")
    allocation = None
    if slurm is not None:
        if len(names) > 1:
            raise RefusalError("--slurm takes one login node", "name one with --host, and the size with --nodes")
        partition, *assignments = slurm.split(",")
        sbatch = {name: value for name, _, value in (each.partition("=") for each in assignments)}
        try:
            checked_options(sbatch)
        except ValueError as error:
            raise RefusalError(str(error)) from error
        allocation = Slurm(partition, sbatch)
    if uv and python is not None:
        raise RefusalError("--uv creates its own Python, and --python names another", "give one of them")
    return HostOptions(
        names, addresses, python or "python3", home or DEFAULT_HOME, creates_environment=uv, slurm=allocation
    )
