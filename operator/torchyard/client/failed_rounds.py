"""The output of one failed round, as agents keep it beside the checkpoints, else the lines that the status keeps."""

from collections import deque
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from torchyard.api.formatting import clean
from torchyard.api.resource import TrainingJob
from torchyard.api.status import Attempt
from torchyard.api.values import plural
from torchyard.client.backend import LogLine, Notice
from torchyard.client.errors import TorchYardError
from torchyard.client.local_logs import NAMED, RankLog

FOLDER = "failures"
MOST_BYTES = 32 * 2**20
MOST_LOGS = 256


def output(number: int) -> Path:
    """Return where agents keep the output of a failed round, in the checkpoint folder."""
    return Path(FOLDER) / f"round-{number:08d}"


def require(job: TrainingJob, number: int) -> Attempt | None:
    """Return the failed round if the status still has it.

    Raises:
        TorchYardError: the job has had no round of this number.
    """
    newest = job.status.round
    if not 1 <= number <= newest:
        had = f"it has had {plural(newest, 'round')}" if newest else "none has opened yet"
        raise TorchYardError(f"round {number} of {job.metadata.name!r} does not exist: {had}", "see `torchyard status`")
    rounds = (each for each in reversed(job.status.attempts) if each.round == number and each.cause is not None)
    return next(rounds, None)


def lines(
    job: TrainingJob, number: int, folder: Path, notice: Notice, *, rank: int | None, tail: int | None
) -> Iterator[LogLine]:
    """Yield what is kept of a failed round, the rank that failed first at the beginning.

    Args:
        job: with its status.
        number: of the round.
        folder: with the output that agents kept, if any.
        notice: is called where nothing is kept.
        rank: only this one; None: all.
        tail: only this many of the last lines of each rank.

    Raises:
        TorchYardError: the job has had no such round.
    """
    attempt = require(job, number)
    cause = attempt.cause if attempt is not None else None
    first = cause.rank if cause is not None else None
    logs = {int(named[1]): path for path in folder.glob("rank-*.log") if (named := NAMED.fullmatch(path.name))}
    chosen = sorted((each for each in logs if rank in {None, each}), key=lambda each: (each != first, each))
    for each in chosen[:MOST_LOGS]:
        pod = cause.pod if cause is not None and each == first else ""
        read = RankLog(logs[each], each).read(last=True)
        for line in read if tail is None else deque(read, maxlen=tail):
            yield replace(line, pod=clean(pod), round=number)
    if chosen:
        return
    known = cause.lines if cause is not None and rank in {None, first} else []
    for text in known if tail is None else known[max(0, len(known) - tail) :]:
        yield LogLine(rank=first, pod=cause.pod if cause is not None else "", text=clean(text), round=number)
    name = job.metadata.name
    if known:
        notice(f"{name}: these are the last lines of round {number} that its status keeps")
    else:
        notice(
            f"{name}: nothing is kept of round {number}: only the newest rounds that failed, of the pods they began in"
        )
