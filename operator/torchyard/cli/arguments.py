"""Command lines by argparse: typer 0.29 imports pydantic to parse, which makes every command 250 ms slower."""

import argparse
import os
import re
import shlex
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from torchyard.cli.errors import RefusalError

if TYPE_CHECKING:
    from torchyard.client.backend import Backend
    from torchyard.client.location import Location

T = TypeVar("T")
SEPARATOR = "--"
_PYTHON = re.compile(r"python(3(\.[0-9]+)?)?")
_PROGRAMS = {
    *("torchrun", "accelerate", "deepspeed", "bash", "sh", "srun", "mpirun", "mpiexec", "numactl", "env", "nohup"),
    *("uv", "poetry", "pipenv", "pixi", "hatch", "conda", "jupyter"),
}
_DIGITS = 15
RUN_NAME = "NAME"
SWEEP_NAME = "SWEEP"
ASSIGNMENT = "PATH=VALUE"
"""Metavars of arguments that name a run, a sweep or a field, by which completion recognises them."""


class Parser(argparse.ArgumentParser):
    """Reports a wrong command line like any other error, and accepts no abbreviations."""

    _words: list[str] = []  # noqa: RUF012 - replaced, never changed
    advice = ""
    """What else may have been meant by a word that is no choice."""
    trailing = ""
    """Where the words after `--` are stored; empty: the command takes none."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the words up to `--`; those after it belong to the program."""
        words = self._words = list(args)
        cut = words.index(SEPARATOR) if self.trailing and SEPARATOR in words else len(words)
        found, unknown = super().parse_known_args(words[:cut], namespace)
        if self.trailing:
            setattr(found, self.trailing, words[cut + 1 :])
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Raise the error as one of the command line."""
        fix = f"`{self.prog} --help` explains it"
        if "invalid choice" in message and self.advice:
            fix = f"{self.advice}; {fix}"
        if self.trailing and message.startswith("unrecognized arguments"):
            if (without := without_separator(self.prog, self._words)) is not None:
                raise without
            fix = f"options of your program come after `--`: `{self.prog} train.py -- --lr 1e-3`; {fix}"
        raise RefusalError(message.replace("argument ", "", 1), fix)


def without_separator(command: str, words: list[str]) -> RefusalError | None:
    """Return the refusal of a command line in which `--` is missing before a program, with what to type; None: other.

    Args:
        command: as it was typed: `torchyard run`.
        words: behind it.
    """
    program = next((word for word in words if _is_program(word)), None)
    if program is None:
        return None
    place = words.index(program)
    options, rest = words[:place], words[place + 1 :]
    as_it_is = shlex.join([*command.split(), *options, "--", program, *rest])
    script = rest[0] if _PYTHON.fullmatch(os.path.basename(program)) and rest else ""  # noqa: PTH119
    if not script.endswith(".py"):
        return RefusalError(f"{program} is a program, not a file", f"`{as_it_is}` starts it")
    trained = shlex.join([*command.split(), *options, script, *(["--", *rest[1:]] if rest[1:] else [])])
    fix = f"`{trained}` starts the script with torchrun, `{as_it_is}` as it is"
    return RefusalError(f"{program} is a program, not a file", fix)


def _is_program(word: str) -> bool:
    name = os.path.basename(word)  # noqa: PTH119 -- pathlib is not imported
    is_known = name in _PROGRAMS or _PYTHON.fullmatch(name) is not None
    return is_known and (word != name or not os.path.exists(word))  # noqa: PTH110 -- likewise


def run_name(parser: argparse.ArgumentParser) -> None:
    """NAME: one run."""
    parser.add_argument("name", metavar=RUN_NAME, help="name of the job or run")


def location_options(parser: argparse.ArgumentParser) -> None:
    """--context and -n, as kubectl has them."""
    parser.add_argument("--context", metavar="CONTEXT", help="context of the kubeconfig; by default its current one")
    parser.add_argument(
        "-n", "--namespace", metavar="NAMESPACE", help="namespace of the cluster; by default that of the context"
    )


def output(parser: argparse.ArgumentParser, *forms: str, help: str) -> None:  # noqa: A002 - argparse's own word
    """-o FORM."""
    parser.add_argument("-o", "--output", choices=forms, help=help)


def sets(parser: argparse.ArgumentParser) -> None:
    """--set PATH=VALUE, repeatable."""
    parser.add_argument(
        "--set",
        dest="sets",
        metavar=ASSIGNMENT,
        action="append",
        default=[],
        help="set a field of the job, as in --set nodes=2 --set trainer.params.steps=100",
    )


def quiet(parser: argparse.ArgumentParser) -> None:
    """-q: leave the program's output out of the view."""
    parser.add_argument("-q", "--quiet", action="store_true", help="do not show the output of the program")


def natural(text: str, least: int = 0) -> int:
    """Return a whole number of at least `least` that any count can have."""
    digits = text.isascii() and text.isdigit()
    if not digits or int(text[:_DIGITS]) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    if len(text) > _DIGITS:
        raise argparse.ArgumentTypeError(f"a number of {len(text)} digits is too large")
    return int(text)


def notify(parser: argparse.ArgumentParser) -> None:
    """--notify: a program that each transition of the run starts."""
    parser.add_argument(
        "--notify",
        metavar="COMMAND",
        type=_command,
        default=[],
        help="start this program, with words as in a shell but without one, when the run starts to train, fails, is "
        "stopped or ends; it reads a CloudEvent as JSON from stdin",
    )


def _command(text: str) -> list[str]:
    import shlex
    import shutil

    try:
        words = shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be read: {error}") from None
    if not words or shutil.which(words[0]) is None:
        raise argparse.ArgumentTypeError(f"{text!r}: there is no program {words[0] if words else ''!r}")
    return words


def counted(text: str) -> int:
    """Return a whole number from 1 on."""
    return natural(text, 1)


def ask(
    work: "Callable[[Backend], Awaitable[T]]",
    name: str | None,
    context: str | None,
    namespace: str | None,
    *,
    waits: bool = False,
) -> T:
    """Do `work` with the backend of a job, and return its result.

    Args:
        work: gets the backend.
        name: of the job, None: no single one is meant.
        context: what --context says.
        namespace: what -n says.
        waits: whether the work may take long on this machine, too, such as following a run.

    Raises:
        TorchYardError: there is no cluster, it does not answer, or it refuses.
    """
    from torchyard.client.location import location_of

    return ask_at(location_of(name, context, namespace), work, waits=waits)


def ask_at(location: "Location", work: "Callable[[Backend], Awaitable[T]]", *, waits: bool = False) -> T:
    """Do `work` with the backend of a location. Raises what `ask` does."""
    from torchyard.cli.output import say
    from torchyard.client.location import opened

    async def connected() -> T:
        async with opened(location, say) as backend:
            return await work(backend)

    if location.kind == "local" and not waits:
        # Files are read at once: nothing is waited for, and an event loop would cost more than the answer.
        try:
            connected().send(None)
        except StopIteration as done:
            answer: T = done.value
            return answer
        raise AssertionError("a question to this machine waits; ask it with waits=True")
    import asyncio

    return asyncio.run(connected())
