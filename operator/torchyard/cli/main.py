"""The entry point: find the command, run it, turn what goes wrong into a sentence and an exit code.

Next to nothing is imported before a command is known, so that `torchyard --help` answers in tens of milliseconds.
"""

import os
import sys
from collections.abc import Sequence

from torchyard.cli.command_table import COMMANDS, PROGRAM, command_of, parser_of
from torchyard.cli.errors import FAILED, INTERRUPTED, SUCCEEDED, RefusalError
from torchyard.cli.output import filter_streams, flush_stderr, say
from torchyard.client.errors import InvalidJobError, TorchYardError
from torchyard.version import __version__

BROKEN_PIPE = 141  # 128 + SIGPIPE, what a shell reports for a program whose reader went away


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
        where = f"{error.filename}: " if error.filename else ""
        return RefusalError(f"{where}{error.strerror or error}", code=FAILED)
    return RefusalError(
        f"internal error: {type(error).__name__}: {error}",
        "run it again with --debug and report what it prints",
        FAILED,
    )


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
        from torchyard.cli.commands.completion import candidates

        print("\n".join(candidates(rest)))
        return SUCCEEDED
    if name not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(name, COMMANDS, n=1)
        kind = "option" if name.startswith("-") else "command"
        fix = f"did you mean `{PROGRAM} {near[0]}`?" if near else f"`{PROGRAM} --help` lists the commands"
        raise RefusalError(f"there is no {kind} {name!r}", fix)
    try:
        values = vars(parser_of(name).parse_args(rest))
    except SystemExit:  # --help has been printed
        return SUCCEEDED
    return int(command_of(name)(**values))


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
the cluster that kubectl would speak to; -n NAMESPACE and --context CONTEXT mean the cluster.
Exit codes: 0 succeeded, 1 failed, 64 invalid input, 75 saved and stopped."""


if __name__ == "__main__":
    sys.exit(main())
