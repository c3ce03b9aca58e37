"""Run commands of the trainers, each in a new process, since the operator never imports torch."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchyard.api.launch import imports_own_code, trainer_config
from torchyard.api.resource import TrainingJob
from torchyard.api.validation.problems import Problem
from torchyard.api.values import BUILT_IN
from torchyard.client.errors import FAILED, INVALID, TorchYardError
from torchyard.interpreter import own_environment, own_python

_PACKAGE = "torchyard_trainers"
_WITHOUT_PARTS = {"check"}  # commands that look at parameters alone, and run no code that these name


def document(*arguments: str, renamed: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a command of the trainers that is about no job; return the document that it prints.

    Args:
        arguments: of the trainers' command line.
        renamed: see `refusal`.

    Raises:
        TorchYardError: the trainers' error, or they are not installed here.
    """
    output = _output(own_python("-m", _PACKAGE, *arguments), renamed, env=own_environment(os.environ))
    found: dict[str, Any] = json.loads(output)
    return found


def refusal(said: str, code: int, renamed: Mapping[str, str] | None = None) -> TorchYardError:
    """Return the error with which a process of the trainers ended.

    Args:
        said: what it wrote to stderr: messages of libraries, then `torchyard_trainers: SENTENCE; FIX` or a traceback.
        code: its exit code; negative: a signal ended it.
        renamed: beginnings of its sentences, such as `--memory:`, and what the user has written in their place.
    """
    _, own, sentence = f"\n{said}".rpartition(f"\n{_PACKAGE}: ")
    if own:
        sentence = " ".join(sentence.split())
        for begin, written in (renamed or {}).items():
            sentence = written + sentence.removeprefix(begin) if sentence.startswith(begin) else sentence
        what, _, fix = sentence.rpartition("; ")
        return TorchYardError(what or fix, fix if what else "", code)
    if code < 0:
        ended = f"a process of the trainers was ended by {signal.Signals(-code).name}"
        return TorchYardError(ended, "check whether memory ran out" if code == -signal.SIGKILL else "", FAILED)
    last = (said.strip() or f"exit code {code}").splitlines()[-1]
    if "No module named" in last:
        return TorchYardError("trainers are not installed here", "pip install 'torchyard[trainers]'", FAILED)
    return TorchYardError(last, code=code)


def is_outside(job: TrainingJob) -> bool:
    """Return whether the job's workload is a custom one, MODULE:CLASS."""
    return job.spec.trainer is not None and job.spec.trainer.name not in BUILT_IN


def ask(job: TrainingJob, *arguments: str, folder: Path = Path(), renamed: Mapping[str, str] | None = None) -> str:
    """Run a command of a job's trainer; return its output.

    Args:
        job: with a trainer.
        arguments: of the trainer's command line.
        folder: folder of the job file; code of the user's is searched there or in the job's `workingDir`.
        renamed: see `refusal`.

    Raises:
        TorchYardError: the trainer's error.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
        json.dump(trainer_config(job, str), config)  # where checkpoints are changes no answer
        config.flush()
        words = ["-m", _PACKAGE, "--config", config.name, *arguments]
        alone = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        # A workload or a part of one's own is looked for where it lies, and its neighbours are its modules.
        own_code = is_outside(job) or (imports_own_code(job.spec) and arguments[0] not in _WITHOUT_PARTS)
        command = [sys.executable, *words] if own_code else own_python(*words)
        environment = {**os.environ, **alone} if own_code else own_environment(os.environ, **alone)
        cwd = folder / (job.spec.working_dir or "") if own_code else None
        if cwd is not None and not cwd.is_dir():
            raise TorchYardError(f"spec.workingDir: {cwd} is not a folder", "create it or correct the path")
        return _output(command, renamed, env=environment, cwd=cwd)


def _output(command: list[str], renamed: Mapping[str, str] | None, **settings: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **settings)
    if done.returncode:
        raise refusal(done.stderr, done.returncode, renamed)
    output: str = done.stdout
    return output


def fault(job: TrainingJob, file: str) -> Problem | None:
    """Return the problem that the job's trainer finds in parameters that are valid one by one, or None.

    Without trainers on this machine the check is left to the job itself. Nor is a user's program
    started to have a job looked through.
    """
    if job.spec.trainer is None or is_outside(job) or importlib.util.find_spec(_PACKAGE) is None:
        return None
    try:
        ask(job, "check")
    except TorchYardError as error:
        if error.code != INVALID:
            raise
        field = re.fullmatch(r"([A-Za-z.]+): (.*)", error.sentence, re.DOTALL)
        path, what = (f"spec.{field[1]}", field[2]) if field else ("spec.trainer", error.sentence)
        return Problem(file, 0, path, what, error.fix)
    return None
