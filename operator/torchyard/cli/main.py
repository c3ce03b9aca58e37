"""The entry point: the table of commands; find one, run it, turn what goes wrong into a sentence and an exit code.

Next to nothing is imported before a command is known, so that `torchyard --help` answers in tens of milliseconds.
"""

import os
import sys
from collections.abc import Callable, Sequence
from signal import SIGTERM, signal
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from torchyard.cli.errors import FAILED, INTERRUPTED, SUCCEEDED, RefusalError
from torchyard.cli.output import filter_streams, flush_stderr, say
from torchyard.client.errors import InvalidJobError, TorchYardError, is_full
from torchyard.version import __version__

if TYPE_CHECKING:
    from torchyard.cli.arguments import Parser

PROGRAM = "torchyard"
BROKEN_PIPE = 141  # 128 + SIGPIPE, what a shell reports for a program whose reader went away


class Command(NamedTuple):
    """Where a command is: `module` of `torchyard.cli.commands` has a function of the command's name.

    That function carries the command out; `NAME_arguments(parser)` declares its command line. `--help` of the command
    shows the summary, and the docstring of the function from its second paragraph on.
    """

    module: str
    summary: str


COMMANDS: dict[str, Command] = {
    "run": Command("run", "Run a job file or a script on this machine and watch it."),
    "submit": Command("submit", "Submit a job file or a script to a cluster."),
    "push": Command("push", "Write code to a registry as an image that jobs mount."),
    "init": Command("init", "Write a job file for a script."),
    "validate": Command("validate", "Check job files without running them."),
    "plan": Command("plan", "Estimate the memory that a job needs."),
    "sweep": Command("sweep", "List sweeps, and show their trials, the best one or a report."),
    "ps": Command("inspect", "List jobs, newest first."),
    "top": Command("top", "Show jobs and their curves live in the terminal."),
    "ui": Command("ui", "Show jobs and their curves live in a browser."),
    "status": Command("inspect", "Show the state of a job, and why it is in that state."),
    "explain": Command("inspect", "Explain the state of a job, and what to do."),
    "logs": Command("inspect", "Show the output of the ranks of a job."),
    "curves": Command("curves", "Draw the metrics of a job over its steps."),
    "diff": Command("inspect", "Compare two jobs."),
    "events": Command("inspect", "Show the events of a job, oldest first."),
    "wait": Command("inspect", "Wait until a job has ended or reached another state."),
    "fetch": Command("collect", "Download files of a job."),
    "stacks": Command("collect", "Show the stacks of all threads of each rank of a running job."),
    "profile": Command("collect", "Record a profile of some steps of a running job."),
    "stop": Command("lifecycle", "Save and stop a run of this machine."),
    "suspend": Command("lifecycle", "Save a checkpoint and delete the pods of a job."),
    "resume": Command("lifecycle", "Continue a job that was stopped, suspended or interrupted."),
    "scale": Command("lifecycle", "Change the number of nodes of an elastic job while it trains."),
    "rm": Command("lifecycle", "Delete runs of this machine with their logs and checkpoints."),
    "delete": Command("lifecycle", "Delete a job with its pods."),
    "gpus": Command("gpus", "List the GPUs of this machine, or choose among them."),
    "chat": Command("chat", "Talk to a language model: a checkpoint or export of a run, or a Hugging Face folder."),
    "dataset": Command("dataset", "Show the contents of a dataset, and its problems."),
    "install": Command("install", "Install or upgrade the operator of a cluster."),
    "uninstall": Command("install", "Remove the operator of a cluster; jobs remain."),
    "doctor": Command("doctor", "Check that a cluster is ready for jobs."),
    "demo": Command("demo", "Train a small model on two local nodes and show what it learned."),
    "operator": Command("operator", "Reconcile the TrainingJobs of a cluster until a signal ends it."),
    "crd": Command("operator", "Print the CustomResourceDefinitions of TrainingJob and TrainingSweep."),
    "schema": Command("operator", "Print the JSON Schema of job and sweep files, for editors."),
    "completion": Command("completion", "Print the completion script of a shell."),
    "version": Command("operator", "Print the version."),
}

# Commands about one run, which are carried out where it is.
WHERE_IT_IS = frozenset({
    "status", "explain", "logs", "curves", "events", "wait", "fetch", "stacks", "profile", "stop", "suspend", "resume",
    "rm", "delete",
})  # fmt: skip

# What users of kubectl and of other launchers type first.
ELSEWHERE = {
    "ls": "ps",
    "list": "ps",
    "jobs": "ps",
    "get": "ps",
    "htop": "top",
    "dashboard": "ui",
    "describe": "explain",
    "why": "explain",
    "metrics": "curves",
    "plot": "curves",
    "show": "status",
    "apply": "submit",
    "create": "submit",
    "launch": "run",
    "start": "run",
    "train": "run",
    "kill": "stop",
    "cancel": "stop",
    "pause": "suspend",
    "continue": "resume",
    "restart": "resume",
    "resize": "scale",
    "check": "validate",
    "lint": "validate",
    "download": "fetch",
    "cp": "fetch",
    "artifacts": "fetch",
    "serve": "chat",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = os.environ.get("TORCHYARD_DEBUG", "") not in {"", "0"}
    ours = words[: words.index("--")] if "--" in words else words
    if "--debug" in ours:
        words.remove("--debug")
        debug = True
    if debug:
        import logging

        logging.basicConfig()
    # Closed by the parent process: our files must not get their numbers.
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 -- before anything is imported
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115 -- before anything is imported
    filter_streams()
    try:
        code = dispatch(words)
        sys.stdout.flush()
    except BrokenPipeError:
        # Nothing is left to be said when Python flushes at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except Terminated:
        flush_stderr()
        os.kill(os.getpid(), SIGTERM)  # its handler is restored: the parent process sees that a signal ended this one
        raise
    except Exception as error:  # noqa: BLE001 - a user never meets a traceback
        if debug:
            import traceback

            say(traceback.format_exc().rstrip())
        refusal = explained(error)
        for problem in refusal.problems if isinstance(refusal, InvalidJobError) else ():
            say(str(problem))
        say(f"{PROGRAM}: {refusal.sentence}" + (f"; {refusal.fix}" if refusal.fix else ""))
        return refusal.code
    finally:
        flush_stderr()
    return code


def explained(error: Exception) -> TorchYardError:
    """Return what a user can do about an error."""
    if isinstance(error, TorchYardError):
        return error
    if isinstance(error, OSError):
        if isinstance(error, FileNotFoundError) and error.filename is None and not _has_folder():
            return RefusalError("the current folder was deleted", "change to another one", FAILED)
        where = f"{error.filename}: " if error.filename else ""
        fix = "free space there" if is_full(error) else ""
        return RefusalError(f"{where}{error.strerror or error}", fix, FAILED)
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        library = error.name.partition(".")[0]
        if extra := _extra_of(library):
            fix = f"pip install 'torchyard[{extra}]'"
            return RefusalError(f"this needs {library}, which is not installed", fix, FAILED)
    return RefusalError(
        f"internal error: {type(error).__name__}: {error}",
        "run the command again with --debug, and report its output",
        FAILED,
    )


def _has_folder() -> bool:
    try:
        return bool(os.getcwd())  # noqa: PTH109 -- pathlib is not imported
    except FileNotFoundError:
        return False


def _extra_of(library: str) -> str | None:
    """Return the smallest extra that installs a library; None: no extra does."""
    import re
    from importlib.metadata import requires

    form = re.compile(r"([\w-]+).*; extra == ['\"](.+)['\"]")
    found = [match.groups() for each in requires(PROGRAM) or () if (match := form.match(each))]
    sizes = {extra: sum(extra == other for _, other in found) for name, extra in found if name == library}
    return min(sizes, key=sizes.__getitem__, default=None)


def dispatch(words: list[str]) -> int:
    """Carry out `words`; the command's module is imported only now."""
    if not words or words[0] in {"--help", "-h", "help"}:
        print(overview())
        return SUCCEEDED
    name, *rest = command_first(words)
    if name in {"--version", "-V"}:
        print(__version__)
        return SUCCEEDED
    if name == "__complete":
        from torchyard.cli.completion.candidates import candidates

        print("\n".join(candidates(rest, COMMANDS, parser_of)))
        return SUCCEEDED
    if name not in COMMANDS:
        import difflib

        near = ELSEWHERE.get(name) or next(iter(difflib.get_close_matches(name, COMMANDS, n=1)), None)
        kind = "option" if name.startswith("-") else "command"
        fix = f"did you mean `{PROGRAM} {near}`?" if near else f"`{PROGRAM} --help` lists the commands"
        raise RefusalError(f"there is no {kind} {name!r}", fix)
    try:
        values = vars(parser_of(name).parse_args(rest))
    except SystemExit:  # --help has been printed
        return SUCCEEDED
    before = signal(SIGTERM, _end)
    try:
        if name in WHERE_IT_IS and (code := _on_hosts(name, rest, values)) is not None:
            return code
        return int(command_of(name)(**values))
    finally:
        signal(SIGTERM, before)


def _on_hosts(command: str, words: list[str], values: dict[str, object]) -> int | None:
    """Carry out a command about a run on hosts; None: the run is elsewhere."""
    names = values.get("names") or [values.get("name")]
    if values.get("context") or values.get("namespace") or not isinstance(names, list):
        return None
    from torchyard.client.location import has_runs_on_hosts

    there = [name for name in names if has_runs_on_hosts(str(name))]
    if not there:
        return None
    from torchyard.cli.commands.hosts import forward

    if len(names) > 1:
        raise RefusalError(f"{there[0]} is on a host", f"`{PROGRAM} {command} {there[0]}` alone")
    return forward(command, words, values, str(names[0]))


class Terminated(SystemExit):
    """SIGTERM was received."""


def _end(_number: int, _frame: object) -> None:
    """Unwind, as Ctrl-C does, so that processes that the command started end and its temporary files are removed."""
    raise Terminated


def command_of(name: str) -> Callable[..., int]:
    """Return the function that carries a command out; only its module is imported."""
    function: Callable[..., int] = getattr(_module_of(name), name)
    return function


def parser_of(name: str) -> "Parser":
    """Return the parser of one command."""
    from torchyard.cli.arguments import Parser

    _, _, details = dedented(command_of(name).__doc__ or "").partition("\n\n")
    parser = Parser(prog=f"{PROGRAM} {name}", description=f"{COMMANDS[name].summary}\n\n{details}".strip())
    getattr(_module_of(name), f"{name}_arguments")(parser)
    return parser


def _module_of(name: str) -> ModuleType:
    from importlib import import_module

    return import_module(f"torchyard.cli.commands.{COMMANDS[name].module}")


def dedented(text: str) -> str:
    """Return a docstring without the indentation of its later lines."""
    return "\n".join(line.removeprefix("    ") for line in text.strip().splitlines())


def command_first(words: list[str]) -> list[str]:
    """Return the words with `-n NAMESPACE` and `--context CONTEXT`, which kubectl takes in front, after the command."""
    options: list[str] = []
    while words and words[0].partition("=")[0] in {"-n", "--namespace", "--context"}:
        taken = 1 if "=" in words[0] else 2
        options, words = [*options, *words[:taken]], words[taken:]
    if options and not words:
        raise RefusalError(f"{' '.join(options)}: no command is given", f"`{PROGRAM} --help` lists the commands")
    return [*words[:1], *options, *words[1:]]


def overview() -> str:
    """Return the text of `torchyard --help`."""
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items())
    return f"""\
Usage: {PROGRAM} COMMAND [OPTIONS] [ARGS]...

Training jobs that keep training: on a cluster, or on this machine with no Kubernetes.

Commands:
{commands}

Options:
  --debug    Show tracebacks (also TORCHYARD_DEBUG=1).
  --version  Print the version.
  --help     Show this text; `{PROGRAM} COMMAND --help` explains a command.

A name means the run of this machine ($TORCHYARD_HOME, default ~/.torchyard) if there is one, else the job of
the cluster of kubectl's current context; -n NAMESPACE and --context CONTEXT mean the cluster.
Exit codes: 0 succeeded, 1 failed, 64 invalid input, 75 saved and stopped."""


if __name__ == "__main__":
    sys.exit(main())
