"""`torchyard stacks NAME`: where each rank of a running job stands, also one that hangs."""

import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterable
from typing import Literal

import msgspec

from torchyard.cli import arguments as common
from torchyard.cli.errors import FAILED, SUCCEEDED, RefusalError
from torchyard.cli.output import emit
from torchyard.cli.remote.place import on_cluster, place
from torchyard.cli.words import clean

NO_STACKS = "no stacks: it ended, or it is no Python that the agent's hooks are in"


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rank stands, as its agent tells (docs/protocol.md)."""

    rank: int
    pid: int
    stacks: str | None = None
    at: str = ""  # innermost frame of the program itself
    waits: bool = False  # for other ranks
    pod: str = ""


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    common.run_name(parser)
    parser.add_argument("--rank", metavar="R", type=common.natural, help="only this rank")
    place(parser)
    common.output(parser, "json", "yaml", help="a list with an object a rank")


def command(
    *,
    name: str,
    rank: int | None,
    context: str | None,
    namespace: str | None,
    output: Literal["json", "yaml"] | None,
) -> int:
    """Show the stacks of all threads of each rank of a running job; training goes on.

    Python's own fault handler writes them, also while a rank hangs in a collective, a driver or a file system.
    """
    if on_cluster(name, context, namespace):
        from torchyard.cli.remote.session import ask
        from torchyard.cli.remote.stacks import standing

        found = ask(lambda remote: standing(remote, name), context, namespace)
    else:
        found = standing_here(name)
    chosen = [each for each in sorted(found, key=lambda each: each.rank) if rank is None or each.rank == rank]
    if not chosen:
        who = "no rank of it runs now" if rank is None else f"rank {rank} does not run now"
        raise RefusalError(f"{name!r}: {who}", f"`torchyard status {name}` tells how it is", FAILED)
    if output is not None:
        emit([msgspec.to_builtins(each) for each in chosen], output)
    else:
        print("\n\n".join(map(shown, chosen)))
    return SUCCEEDED


def read(answer: bytes, pod: str) -> Iterable[Standing]:
    """What the agent of a pod answered."""
    return [msgspec.structs.replace(each, pod=pod) for each in msgspec.json.decode(answer, type=list[Standing])]


def shown(standing: Standing) -> str:
    """One rank, as people read it."""
    where = f", at {standing.at}" if standing.at else ""
    head = f"rank {standing.rank} ({standing.pod}){where}" + (", waiting for other ranks" if standing.waits else "")
    lines = (standing.stacks or NO_STACKS).strip().splitlines()
    return "\n".join([clean(head), *map(clean, lines)])


def standing_here(name: str) -> list[Standing]:
    """Ask the workers of a run of this machine.

    Raises:
        RefusalError: nothing runs, or a pod's workers cannot be asked.
    """
    from torchyard.cli.runs import find, load
    from torchyard.cluster.local.folder import is_locked
    from torchyard.cluster.local.zipapp import agent_zipapp

    folder = find(name)
    pods = [pod for pod in sorted(folder.pods.glob("*")) if is_locked(pod / "lock")]
    if load(folder).over or not pods:
        raise RefusalError(f"the run {name!r} does not run", f"`torchyard resume {name}` goes on with it")
    found: list[Standing] = []
    for pod in pods:
        asked = [sys.executable, str(agent_zipapp(folder.home / "cache")), "stacks", str(pod / "run")]
        done = subprocess.run(asked, capture_output=True, check=False)
        if done.returncode != 0:
            raise RefusalError(f"{pod.name}: {done.stderr.decode(errors='replace').strip()[-300:]}", code=FAILED)
        found += read(done.stdout, pod.name)
    return found
