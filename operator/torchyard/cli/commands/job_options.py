"""The job of a command line: a job file, or a script, module or command with its options and no file."""

import json
import os
import shlex
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from torchyard.api.files import write_whole
from torchyard.api.names import SCRIPT_SUFFIX, derived_name
from torchyard.cli import arguments as common
from torchyard.cli.errors import RefusalError
from torchyard.cli.output import say
from torchyard.client.errors import InvalidJobError

if TYPE_CHECKING:
    from torchyard.api.spec import TrainingJobSpec
    from torchyard.api.validation.validate import Validation
    from torchyard.client.start import RequestedJob

Backend = Literal["cluster", "local"]
_SHELL_SUFFIXES = {".sh", ".bash"}
_JOB_SUFFIXES = {".yaml", ".yml", ".json"}


class JobOptions(NamedTuple):
    """The options of a command line that describe a job."""

    file: Path | None
    module: str | None
    words: list[str]  # after `--`
    nodes: int | None
    procs: int | str | None
    gpus: int | None
    env: list[dict[str, str]]
    image: str | None
    code: Path | None
    sets: list[str]
    save: Path | None


def declare(parser: common.Parser, backend: Backend) -> None:
    """Declare FILE, -m, the common fields of a job, --set, --save and the words after `--`."""
    parser.trailing = "words"
    parser.usage = f"{parser.prog} [FILE | -m MODULE] [OPTIONS] [-- ARGUMENT...]"
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        type=Path,
        help="job file (YAML or JSON) with one TrainingJob"
        + ("; - is stdin" if backend == "cluster" else "")
        + ", or a Python script (.py), started with torchrun; its own arguments come after --",
    )
    declare_program(parser, backend)
    parser.add_argument(
        "--save", metavar="JOBFILE", type=Path, help="write an equivalent job file instead of starting the job"
    )


def declare_program(parser: common.Parser, backend: Backend) -> None:
    """Declare -m, the common fields of a job and --set."""
    parser.add_argument("-m", "--module", metavar="MODULE", help="start a Python module instead: package.module")
    parser.add_argument("--nodes", "--nnodes", dest="nodes", metavar="N", type=common.counted, help="pods of the gang")
    parser.add_argument(
        "--procs-per-node",
        "--nproc-per-node",
        dest="procs",
        metavar="N",
        type=_procs,
        help="processes on each node; auto, the default: one for each GPU, else one",
    )
    parser.add_argument(
        "--gpus-per-node", dest="gpus", metavar="N", type=common.natural, help="GPUs that each node gets"
    )
    parser.add_argument(
        "--env",
        metavar="NAME=VALUE",
        type=_variable,
        action="append",
        default=[],
        help="set a variable of the program; NAME alone copies its value from this environment",
    )
    if backend == "cluster":
        parser.add_argument("--image", metavar="IMAGE", help="container image that the program runs in")
    parser.add_argument(
        "--code",
        metavar="FOLDER",
        type=Path,
        help="send the files of this folder along, those that git does not ignore; the program runs from a copy",
    )
    common.sets(parser)


def options_of(values: dict[str, Any]) -> JobOptions:
    """Take the options that `declare` declared out of the values of a command line."""
    return JobOptions(**{name: values.pop(name, None) for name in JobOptions._fields})


def requested(options: JobOptions, backend: Backend, name: str | None = None) -> "RequestedJob":
    """Build and check the job of a command line.

    Args:
        options: of the command line.
        backend: where it will run: a cluster gets the script itself, this machine its path.
        name: of the job; by default that of the job file, or one derived from the program.

    Raises:
        RefusalError: the options contradict each other, or the job is invalid.
    """
    file = options.file
    if file is not None and options.module is None and file.suffix not in {SCRIPT_SUFFIX, *_SHELL_SUFFIXES}:
        return _from_file(file, options, _verb(backend))
    from torchyard.client.files import the_job
    from torchyard.client.start import RequestedJob

    result, source = checked_program(options, backend, name)
    return RequestedJob(the_job(result, source), Path.cwd(), source, is_file=False)


def checked_program(options: JobOptions, backend: Backend, name: str | None = None) -> tuple["Validation", str]:
    """Return the job of a script, module or command, or its problems; and its name in messages.

    Raises:
        RefusalError: the options name no program, or two.
    """
    file = options.file
    command = f"torchyard {_verb(backend)}"
    if file is not None and options.module is not None:
        if (without := common.without_separator(command, [str(file), "-m", options.module])) is not None:
            raise RefusalError(without.sentence, f"`{command} -m {options.module}` starts a module with torchrun")
        raise RefusalError(f"{file} and -m {options.module} are two programs", "give one of them")
    if file is not None and file.suffix in _SHELL_SUFFIXES:
        fix = f"start it as a command: `torchyard {_verb(backend)} -- bash {file}`"
        raise RefusalError(f"{file} is neither a job file nor a Python script", fix)
    document, source = _document(options, backend)
    if name is not None:
        document["metadata"]["name"] = name
    return _judged(document, source, options), source


def require_nothing_beside_save(given: Mapping[str, object]) -> None:
    """Check that no option is given with --save that only a job which is started could follow.

    Args:
        given: values of such options; one that is not given is false, empty or None.

    Raises:
        RefusalError: one is given.
    """
    names = [name for name, value in given.items() if value]
    if names:
        what = f"--save writes a job file and starts nothing, so {', '.join(names)} would have no effect"
        raise RefusalError(what, f"leave out {' and '.join(names)}, or --save")


def save(wanted: "RequestedJob", path: Path, backend: Backend) -> None:
    """Write the job file of a job.

    Args:
        wanted: the job.
        path: of the file.
        backend: where it will run: on this machine, what it names is found from the folder of the file, too.

    Raises:
        RefusalError: the file exists already, or the folder of the job has a name that no file can hold.
    """
    from torchyard.api.resource import job_document
    from torchyard.api.yaml_text import comment, dumped
    from torchyard.client.jobs import metadata_of_users
    from torchyard.local.runs import recordable

    document = job_document(wanted.job, with_status=False)
    document["metadata"] = metadata_of_users(document["metadata"])
    folder, program = (each.resolve() for each in (path.parent, wanted.folder / (wanted.job.spec.working_dir or "")))
    if backend == "local" and folder != wanted.folder.resolve() and _starts_in(program, wanted.job.spec):
        try:
            document["spec"]["workingDir"] = os.path.relpath(recordable(program), folder)
        except ValueError as error:
            raise RefusalError(str(error).rstrip(".")) from error
    text = comment(f"Written by: torchyard {shlex.join(sys.argv[1:])}") + dumped(document)
    try:
        write_whole(path, text)
    except FileExistsError as error:
        raise RefusalError(f"--save: {path} exists", "remove it, or name another file") from error
    say(f"{path}: written; `torchyard run {path}` runs it here, `torchyard submit {path}` on a cluster")


def _starts_in(folder: Path, spec: "TrainingJobSpec") -> bool:
    """Return whether a job needs the folder that it is started in: its command may, and files that its trainer reads.

    A script travels with the job.
    """
    if Path(spec.working_dir or "").is_absolute() or spec.script is not None:
        return False
    return spec.trainer is None or any(
        (folder / text).exists() for text in _texts(spec.trainer.params.decoded()) if text
    )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for child in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _texts(child)


def _from_file(file: Path, options: JobOptions, verb: str) -> "RequestedJob":
    from torchyard.api.validation.validate import has_kind
    from torchyard.client.files import job_of, the_job
    from torchyard.client.start import RequestedJob, folder_of
    from torchyard.sweeps.resource import KIND

    if has_kind(file, KIND):
        fix = f"use it with `torchyard run {file}` or `torchyard submit {file}`"
        raise RefusalError(f"{file} is a sweep, and this takes a job", fix)
    if options.words:
        fix = "put them into spec.args of the file, or give them to a script: `torchyard run train.py -- --lr 1e-3`"
        raise RefusalError(f"{file} is a job file, which takes no arguments after `--`", fix)
    try:
        job = job_of(Path("/dev/stdin") if str(file) == "-" else file, [*fields(options), *options.sets])
    except InvalidJobError as error:
        if (without := common.without_separator(f"torchyard {verb}", [str(file)])) is not None:
            raise without from error
        if not file.is_file() or file.suffix in {*_JOB_SUFFIXES, ".ipynb"}:
            raise
        fix = f"a program without {SCRIPT_SUFFIX} is started as `torchyard {verb} -- torchrun {shlex.quote(str(file))}`"
        raise InvalidJobError(error.sentence, error.problems, fix) from error
    if options.env:
        from torchyard.api.resource import job_document

        document = job_document(job, with_status=False)
        given = {variable["name"]: variable for variable in document["spec"].get("env", [])}
        document["spec"]["env"] = list({**given, **_by_name(options.env)}.values())
        job = the_job(_judged(document, str(file), options._replace(sets=[])), str(file))
    return RequestedJob(job, folder_of(job.metadata, file.absolute().parent, say), str(file), is_file=True)


def fields(options: JobOptions) -> list[str]:
    """Return the options that are fields of the spec, as `--set` takes them."""
    given = {
        "nodes": options.nodes,
        "procsPerNode": options.procs,
        "gpusPerNode": options.gpus,
        "image": options.image,
        "code.path": _code_path(options),
    }
    return [f"{field}={value}" for field, value in given.items() if value is not None]


def _code_path(options: JobOptions) -> str | None:
    """Return `--code` relative to the job file, or without one to the current folder."""
    file, code = options.file, options.code
    if code is None or file is None or file.suffix == SCRIPT_SUFFIX or str(file) == "-":
        return None if code is None else json.dumps(str(code))
    return json.dumps(os.path.relpath(code, file.absolute().parent))


def _document(options: JobOptions, backend: Backend) -> tuple[dict[str, Any], str]:
    """Build the job of a program that has no job file; with it, the name of the program in messages."""
    from torchyard.api.launch import torchrun
    from torchyard.api.resource import API_VERSION, KIND

    spec: dict[str, Any] = {}
    if options.file is not None:
        from torchyard.client.scripts import script_in_code, script_name, script_spec

        source, name = str(options.file), script_name(options.file)
        if options.code is not None:
            spec = script_in_code(options.file, options.words, options.code)
        else:
            spec = script_spec(options.file, options.words, backend, options.image, say)
    elif options.module is not None:
        if options.module.endswith(SCRIPT_SUFFIX) and Path(options.module).is_file():
            fix = f"`torchyard {_verb(backend)} {shlex.quote(options.module)}` starts a script"
            raise RefusalError(f"-m takes the name of a module, and {options.module} is a file", fix)
        source, name = f"-m {options.module}", derived_name(options.module)
        spec["command"] = [*torchrun(options.words, "-m"), options.module]
        spec["args"] = options.words
    elif options.words:
        script = Path(options.words[0])
        if script.suffix == SCRIPT_SUFFIX and script.is_file() and not os.access(script, os.X_OK):
            start, rest = f"torchyard {_verb(backend)}", options.words[1:]
            trained = shlex.join([*start.split(), str(script), *(["--", *rest] if rest else [])])
            fix = f"`{trained}` starts it with torchrun, `{start} -- {shlex.join(['python', *options.words])}` as it is"
            raise RefusalError(f"{script} is a script and not executable, so it cannot be started", fix)
        called = next((word for word in options.words if word.endswith(SCRIPT_SUFFIX)), options.words[0])
        source, name = options.words[0], derived_name(Path(called).stem)
        spec["command"] = options.words
    else:
        verb = _verb(backend)
        fix = f"`torchyard {verb} train.py -- --lr 1e-3` starts a script; `torchyard {verb} --help` explains it"
        raise RefusalError("neither FILE nor -m MODULE nor a command after -- is given", fix)
    if options.code is not None and options.file is None:
        from torchyard.client.bundle.attach import program_location

        spec["workingDir"] = program_location(options.code, None).working_dir
    elif backend == "cluster" and options.file is None and options.image is None:
        fix = "add --code FOLDER, or --image IMAGE, an image that holds your code"
        raise RefusalError(f"{source} must be in the image of the pods, and no image is given", fix)
    spec["env"] = list(_by_name(options.env).values())
    spec = {field: value for field, value in spec.items() if value}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}, source


def _judged(document: dict[str, Any], source: str, options: JobOptions) -> "Validation":
    from torchyard.api.validation.validate import validate_document

    sets = [] if options.file is not None and options.file.suffix != SCRIPT_SUFFIX else fields(options)
    return validate_document(document, source, [*sets, *options.sets])


def _procs(text: str) -> int | str:
    try:
        return text if text == "auto" else common.counted(text)
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"{error}, nor auto") from None


def _variable(text: str) -> dict[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        if name not in os.environ:
            raise ArgumentTypeError(f"{name} is not set in this environment; give a value: {name}=VALUE")
        value = os.environ[name]
    return {"name": name, "value": value}


def _by_name(env: Sequence[dict[str, str]]) -> dict[str, dict[str, str]]:
    return {variable["name"]: variable for variable in env}


def _verb(backend: Backend) -> str:
    return "run" if backend == "local" else "submit"
