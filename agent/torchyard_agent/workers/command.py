"""Classify COMMAND: a torchrun command line, which torch's own launcher runs, or any other program (pure)."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

_PYTHON = re.compile(r"^python(\d+(\.\d+)*)?$")
_FLAGS = re.compile(r"^-[uOEsIBq]+$")
_RUN_MODULE = "torch.distributed.run"


@dataclass(frozen=True)
class Torchrun:
    """`torchrun ARGS`, to be run by the torch of `interpreter`."""

    interpreter: str
    args: Tuple[str, ...]


@dataclass(frozen=True)
class Plain:
    """A program that is started once in every pod, as given."""

    argv: Tuple[str, ...]


def classify(argv: Sequence[str], interpreter: Optional[str] = None) -> Torchrun | Plain:
    """Distinguish `torchrun ...` and `python -m torch.distributed.run ...` from everything else.

    Args:
        argv: the command, at least one word.
        interpreter: the Python behind `torchrun`, found by `torchrun_interpreter`.
    """
    name = Path(argv[0]).name
    if name == "torchrun":
        return Torchrun(interpreter or sys.executable, tuple(argv[1:]))
    if _PYTHON.match(name):
        rest = list(argv[1:])
        while rest and _FLAGS.match(rest[0]):
            rest.pop(0)
        if rest[:2] == ["-m", _RUN_MODULE]:
            return Torchrun(argv[0], tuple(rest[2:]))
    return Plain(tuple(argv))


class Program(NamedTuple):
    """What a round runs instead of the command and the variables that the pod was started with."""

    command: List[str]
    env: Dict[str, str]


def sent_program(command: Mapping[str, Any]) -> Optional[Program]:
    """Return the program in a `run` command; None: the round runs that of the pod.

    Raises:
        ValueError: it is of the wrong kind.
    """
    sent = command.get("program")
    if not sent:
        return None
    words, env = (sent.get("command"), sent.get("env")) if isinstance(sent, dict) else (None, None)
    if isinstance(words, list) and words and isinstance(env, dict):
        texts = [*words, *env, *env.values()]
        if all(isinstance(text, str) for text in texts):
            return Program(words, env)
    raise ValueError("command `run`: `program` needs `command`, a list of words, and `env`, an object of strings")


def is_python(program: str) -> bool:
    """Return whether a program is a Python interpreter, by its name."""
    return bool(_PYTHON.match(Path(program).name))


def interpreter_of(kind: Union[Plain, Torchrun]) -> str:
    """Return the interpreter of a program: that of torchrun, or else of the program itself, if known."""
    return kind.interpreter if isinstance(kind, Torchrun) else torchrun_interpreter(kind.argv[0])


def torchrun_interpreter(program: str) -> str:
    """Return the interpreter in the first line of the `torchrun` script, which may not be the one the agent runs on."""
    path = shutil.which(program)
    if path is None:
        return sys.executable
    try:
        with Path(path).open("rb") as file:
            head = file.read(1024).decode("utf-8", "replace").splitlines()
    except OSError:
        return sys.executable
    for line in head[:3]:  # a long path hides behind `#!/bin/sh` and `'''exec' /path/python "$0" "$@"`
        for word in line.replace("#!", " ").replace('"', " ").replace("'", " ").split():
            if _PYTHON.match(Path(word).name):
                found = shutil.which(word)
                if found:
                    return found
    beside = Path(path).with_name("python")
    return str(beside) if os.access(beside, os.X_OK) else sys.executable
