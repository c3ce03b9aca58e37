"""`torchyard stacks NAME`: where each rank of a running job stands, also one that hangs."""

import os
import subprocess
from argparse import ArgumentParser
from typing import Literal

import msgspec

from torchyard.cli import arguments as common
from torchyard.cli.errors import FAILED, SUCCEEDED, RefusalError
from torchyard.cli.output import emit
from torchyard.cli.remote.place import on_cluster, place
from torchyard.cli.standing import Standing, read, shown


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


def standing_here(name: str) -> list[Standing]:
    """Ask the workers of a run of this machine.

    Raises:
        RefusalError: nothing runs, or a pod's workers cannot be asked.
    """
    from torchyard.cli.runs import find, load
    from torchyard.cluster.local.folder import is_locked
    from torchyard.cluster.local.interpreter import own_environment, own_python
    from torchyard.cluster.local.zipapp import agent_zipapp

    folder = find(name)
    pods = [pod for pod in sorted(folder.pods.glob("*")) if is_locked(pod / "lock")]
    run = load(folder)
    if run.over or not pods:
        raise run.refusal(name)
    found: list[Standing] = []
    for pod in pods:
        asked = own_python(str(agent_zipapp(folder.home / "cache")), "stacks", str(pod / "run"))
        done = subprocess.run(asked, capture_output=True, env=own_environment(os.environ), check=False)
        if done.returncode != 0:
            raise RefusalError(f"{pod.name}: {done.stderr.decode(errors='replace').strip()[-300:]}", code=FAILED)
        found += read(done.stdout, pod.name)
    return found
