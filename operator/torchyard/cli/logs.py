"""`torchyard logs NAME`: the output of all ranks as one stream, the rank that failed first in front."""

import os
import re
import sys
import time
from argparse import ArgumentParser
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from torchyard.cli import arguments as common
from torchyard.cli.errors import SUCCEEDED
from torchyard.cli.output import say
from torchyard.cli.remote.place import on_cluster, place
from torchyard.cli.words import clean

MAX_LINE_BYTES = 64 * 1024
POLL_SECONDS = 0.25
NAMED = re.compile(r"rank-(\d+)\.log(\.\d+)?$")


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    common.run_name(parser)
    place(parser)
    parser.add_argument("--rank", metavar="R", type=common.natural, help="only this rank")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the run ends, through new rounds")
    parser.add_argument("--tail", metavar="N", type=common.natural, help="only the last N lines of each rank")


def command(
    *, name: str, context: str | None, namespace: str | None, rank: int | None, follow: bool, tail: int | None
) -> int:
    """Show the output of a job's ranks, each line after its rank and pod.

    The rank that failed first comes first. On a cluster: of the pods that are still there.
    """
    if on_cluster(name, context, namespace):
        from torchyard.cli.remote.logs import show
        from torchyard.cli.remote.session import ask

        return ask(lambda remote: show(remote, name, rank=rank, follow=follow, tail=tail), context, namespace)
    from torchyard.cli.ranks import failing_rank
    from torchyard.cli.runs import find, load

    folder = find(name)
    run = load(folder)
    first = failing_rank(run.job.status.attempts)
    streams = {path: Stream(path, number) for path, number in log_files(folder.pods, rank)}
    for stream in sorted(streams.values(), key=lambda stream: (stream.rank != first, stream.rank, stream.modified)):
        lines = stream.read(last=not follow)
        write(stream, lines if tail is None else deque(lines, maxlen=tail))
    if not streams and not follow:
        who = "no rank has" if rank is None else f"rank {rank} has not"
        say(f"{name}: {who} written anything yet")
    while follow:
        over = load(folder).over
        for path, number in log_files(folder.pods, rank):
            if path in streams or path.suffix == ".log":  # a turned-over file holds what was shown already
                stream = streams.setdefault(path, Stream(path, number))
                write(stream, stream.read(last=over))
        sys.stdout.flush()
        if over:
            break
        time.sleep(POLL_SECONDS)
    return SUCCEEDED


def log_files(pods: Path, rank: int | None) -> Iterator[tuple[Path, int]]:
    """(path, rank) of every log of every pod the run ever had, turned-over ones before those that replaced them."""
    for path in sorted(pods.glob("*/logs/rank-*.log*"), reverse=True):
        named = NAMED.fullmatch(path.name)
        if named and (rank is None or int(named[1]) == rank):
            yield path, int(named[1])


def write(stream: "Stream", lines: Iterable[str]) -> None:
    """Lines to stdout, each after its rank and pod."""
    for line in lines:
        sys.stdout.write(f"{stream.prefix} {line}\n")


class Stream:
    """One log file, read on from where it was left."""

    def __init__(self, path: Path, rank: int) -> None:
        self.path = path
        self.rank = rank
        self.prefix = f"[r{rank} {clean(path.parent.parent.name)}]"
        self.offset = 0
        try:
            self.modified = path.stat().st_mtime
        except OSError:
            self.modified = 0.0

    def read(self, *, last: bool) -> Iterator[str]:
        """Lines written since the last call, cleaned; a line longer than `MAX_LINE_BYTES` comes in pieces.

        A line without an end is left for the next call unless this is the `last` one.
        """
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        with file:
            if os.fstat(file.fileno()).st_size < self.offset:  # emptied and begun again
                self.offset = 0
            file.seek(self.offset)
            while line := file.readline(MAX_LINE_BYTES):
                if not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES and not last:
                    return
                self.offset += len(line)
                yield clean(line.decode("utf-8", "replace"))
