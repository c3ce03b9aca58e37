"""The commands: what each is called, what it is for, where it lives. None is imported before it is asked for."""

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torchyard.cli.arguments import Parser

PROGRAM = "torchyard"


class Command(NamedTuple):
    """Where a command lives: `module` of this package has a function `command`."""

    module: str
    summary: str


COMMANDS: dict[str, Command] = {
    "run": Command("run", "Run a job file on this machine and watch it."),
    "submit": Command("submit", "Submit a job file to a cluster."),
    "validate": Command("validate", "Check job files without running them."),
    "plan": Command("plan", "Tell how much memory a job will need, and whether it fits."),
    "sweep": Command("sweep", "Show what a sweep found: its trials, the best one, a report."),
    "ps": Command("ps", "List jobs."),
    "status": Command("status", "Show what a job is doing."),
    "explain": Command("explain", "Explain why a job is where it is, and what to do."),
    "logs": Command("logs", "Show the output of a job's ranks."),
    "diff": Command("diff", "Show in what two jobs differ: specification, code, packages, metrics."),
    "events": Command("events", "Show what happened to a job."),
    "wait": Command("wait", "Wait until a job is over, or got somewhere else."),
    "fetch": Command("fetch", "Bring a file or folder of a job home: its export, its weights, its curves."),
    "stacks": Command("stacks", "Show where each rank of a running job stands: the stacks of its threads."),
    "profile": Command("profile", "Record some steps of a running job: a trace, or its memory."),
    "stop": Command("stop", "Save a run of this machine and stop it."),
    "suspend": Command("suspend", "Save a job and give its pods up."),
    "resume": Command("resume", "Go on with a job that was stopped, suspended or interrupted."),
    "rm": Command("rm", "Delete a run of this machine with its logs and checkpoints."),
    "delete": Command("delete", "Delete a job with its pods."),
    "gpus": Command("gpus", "List the GPUs of this machine, or choose among them."),
    "chat": Command("chat", "Talk to a language model: a checkpoint or export of a run, or a folder."),
    "dataset": Command("dataset", "Show what a dataset holds, and look for bad data."),
    "doctor": Command("doctor", "Look at a cluster: is all there that jobs need?"),
    "demo": Command("demo", "Train a small model on two local nodes and show what it learned."),
    "operator": Command("operator", "Look after the TrainingJobs of a cluster."),
    "crd": Command("crd", "Print the CustomResourceDefinition of TrainingJob."),
    "completion": Command("completion", "Print the completion script of a shell."),
    "version": Command("version", "Print the version."),
}


def module_of(name: str) -> Any:
    """The module of a command: `arguments(parser)` declares its command line, `command(...)` carries it out."""
    from importlib import import_module

    return import_module(f"torchyard.cli.commands.{COMMANDS[name].module}")


def parser_of(name: str) -> "Parser":
    """The parser of one command."""
    from torchyard.cli.arguments import Parser

    module = module_of(name)
    parser = Parser(prog=f"{PROGRAM} {name}", description=dedented(module.command.__doc__ or ""))
    module.arguments(parser)
    return parser


def dedented(text: str) -> str:
    """A docstring without the indentation of its later lines."""
    return "\n".join(line.removeprefix("    ") for line in text.strip().splitlines())
