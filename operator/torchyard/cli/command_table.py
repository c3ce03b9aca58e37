"""The commands: what each is called, what it is for, where it lives. None is imported before it is asked for."""

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torchyard.cli.arguments import Parser

PROGRAM = "torchyard"


class Command(NamedTuple):
    """Where a command lives: `module` of `torchyard.cli.commands` has a function of the command's name.

    That function carries the command out; `NAME_arguments(parser)` declares its command line.
    """

    module: str
    summary: str


COMMANDS: dict[str, Command] = {
    "run": Command("run", "Run a job file on this machine and watch it."),
    "submit": Command("submit", "Submit a job file to a cluster."),
    "validate": Command("validate", "Check job files without running them."),
    "plan": Command("plan", "Tell how much memory a job will need, and whether it fits."),
    "sweep": Command("sweep", "Show what a sweep found: its trials, the best one, a report."),
    "ps": Command("inspect", "List jobs."),
    "status": Command("inspect", "Show what a job is doing."),
    "explain": Command("inspect", "Explain why a job is where it is, and what to do."),
    "logs": Command("inspect", "Show the output of a job's ranks."),
    "diff": Command("inspect", "Show in what two jobs differ: specification, code, packages, metrics."),
    "events": Command("inspect", "Show what happened to a job."),
    "wait": Command("inspect", "Wait until a job is over, or got somewhere else."),
    "fetch": Command("collect", "Bring a file or folder of a job home: its export, its weights, its curves."),
    "stacks": Command("collect", "Show where each rank of a running job stands: the stacks of its threads."),
    "profile": Command("collect", "Record some steps of a running job: a trace, or its memory."),
    "stop": Command("lifecycle", "Save a run of this machine and stop it."),
    "suspend": Command("lifecycle", "Save a job and give its pods up."),
    "resume": Command("lifecycle", "Go on with a job that was stopped, suspended or interrupted."),
    "rm": Command("lifecycle", "Delete a run of this machine with its logs and checkpoints."),
    "delete": Command("lifecycle", "Delete a job with its pods."),
    "gpus": Command("gpus", "List the GPUs of this machine, or choose among them."),
    "chat": Command("chat", "Talk to a language model: a checkpoint or export of a run, or a folder."),
    "dataset": Command("dataset", "Show what a dataset holds, and look for bad data."),
    "doctor": Command("doctor", "Look at a cluster: is all there that jobs need?"),
    "demo": Command("demo", "Train a small model on two local nodes and show what it learned."),
    "operator": Command("operator", "Look after the TrainingJobs of a cluster."),
    "crd": Command("operator", "Print the CustomResourceDefinition of TrainingJob."),
    "completion": Command("completion", "Print the completion script of a shell."),
    "version": Command("operator", "Print the version."),
}


def command_of(name: str) -> Callable[..., int]:
    """Return the function that carries a command out; only its module is imported."""
    function: Callable[..., int] = getattr(_module_of(name), name)
    return function


def parser_of(name: str) -> "Parser":
    """Return the parser of one command."""
    from torchyard.cli.arguments import Parser

    parser = Parser(prog=f"{PROGRAM} {name}", description=dedented(command_of(name).__doc__ or ""))
    getattr(_module_of(name), f"{name}_arguments")(parser)
    return parser


def _module_of(name: str) -> ModuleType:
    from importlib import import_module

    return import_module(f"torchyard.cli.commands.{COMMANDS[name].module}")


def dedented(text: str) -> str:
    """Return a docstring without the indentation of its later lines."""
    return "\n".join(line.removeprefix("    ") for line in text.strip().splitlines())
