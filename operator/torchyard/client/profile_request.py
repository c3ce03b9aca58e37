"""A request for a profile: a file in the run folder, for which ranks of built-in workloads look while they train."""

import json
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from torchyard.api.files import read_regular
from torchyard.api.values import plural
from torchyard.client.errors import FAILED, TorchYardError

if TYPE_CHECKING:
    from torchyard.api.resource import TrainingJob

FILE = "profile.json"
MAX_STEPS = 100
MAX_BYTES = 64 * 1024


def wish_for(kind: Literal["trace", "memory"], steps: int, rank: int | None) -> str:
    """Return the contents of the file.

    Args:
        kind: `trace` (a Chrome trace of some steps) or `memory` (a snapshot of memory).
        steps: number of steps to record.
        rank: that records; None: all.

    Raises:
        TorchYardError: the number of steps is too large or too small.
    """
    if not 1 <= steps <= MAX_STEPS:
        raise TorchYardError(f"--steps {steps} is not possible", f"ask for 1 to {MAX_STEPS}")
    return json.dumps({"id": uuid.uuid4().hex, "kind": kind, "steps": steps, "rank": rank})


def refuse_deaf(job: "TrainingJob") -> None:
    """Raise an error if the program does not support profiles.

    Raises:
        TorchYardError: it is not a built-in workload, or does not train.
    """
    name, trainer = job.metadata.name, job.spec.trainer
    if trainer is None:
        raise TorchYardError(
            f"{name!r} is not a built-in workload, which alone can be profiled", "use torch.profiler in its program"
        )
    if trainer.mode != "train":
        raise TorchYardError(
            f"{name!r} is in mode {trainer.mode}, and only a job in mode train can be profiled",
            "profile a job in mode train",
        )


class Left(NamedTuple):
    """Earlier requests in the run folder of a pod: the newest one, and the last completed id of each rank."""

    wish: str
    done: list[str]


def left_in(run: Path) -> Left:
    """Return what is in a run folder of this machine."""
    wish = run / FILE
    return Left(_text(wish), [_text(path) for path in run.glob("profiled.*")])


def _text(path: Path) -> str:
    try:
        return read_regular(path, MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def refuse_no_such_rank(job: "TrainingJob", wish: str) -> None:
    """Refuse to ask a rank that the job does not have: no answer would ever come.

    Raises:
        TorchYardError: `--rank` is too large.
    """
    rank, ranks = json.loads(wish).get("rank"), _nodes(job) * _procs(job)
    if rank is None or rank < ranks:
        return
    has = plural(ranks, "rank")
    fix = "ask for --rank 0" if ranks == 1 else f"ask for 0 to {ranks - 1}"
    raise TorchYardError(f"--rank {rank} is not possible: {job.metadata.name!r} has {has}", fix)


def refuse_overwriting(job: "TrainingJob", pods: Iterable[Left], flags: str = "") -> None:
    """Refuse a wish that would take the place of one that some rank is not done with.

    Args:
        job: whose ranks are asked.
        pods: what is in their run folders.
        flags: what to repeat in a command for this job.

    Raises:
        TorchYardError: there is one.
    """
    for left in pods:
        try:
            wish = json.loads(left.wish)
            kind, steps, known = wish["kind"], wish.get("steps", 3), wish["id"]
        except (ValueError, TypeError, KeyError, AttributeError):
            continue  # there is none, or one that cannot be read and is never executed
        if left.done.count(known) < _procs(job):
            name = job.metadata.name
            sentence = f"a {kind} profile of {plural(steps, 'step')} is still wished for of {name!r}"
            fix = f"wait until `torchyard fetch {name} profile{flags}` brings it, or give it up with --replace"
            raise TorchYardError(sentence, fix, FAILED)


def _nodes(job: "TrainingJob") -> int:
    # An elastic gang may have shrunk; between rounds it may also grow again.
    rendezvous = job.status.rendezvous
    return len(rendezvous.members) if rendezvous.open else job.spec.nodes


def _procs(job: "TrainingJob") -> int:
    from torchyard.api.launch import local_procs

    return local_procs(job.spec)
