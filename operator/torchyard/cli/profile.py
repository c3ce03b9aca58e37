"""`torchyard profile NAME trace|memory`."""

from argparse import ArgumentParser
from typing import Literal

from torchyard.api.formatting import plural
from torchyard.cli import arguments as common
from torchyard.cli.errors import SUCCEEDED
from torchyard.cli.remote.place import on_cluster, place
from torchyard.cli.wish import FILE, left_in, refuse_deaf, refuse_no_such_rank, refuse_overwriting, wish_for


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    common.run_name(parser)
    parser.add_argument(
        "kind", choices=("trace", "memory"), help="a Chrome trace of some steps, or which tensors there are"
    )
    parser.add_argument("--steps", metavar="N", type=common.natural, default=3, help="steps to record (3)")
    parser.add_argument("--rank", metavar="R", type=common.natural, help="only this rank; by default every rank")
    parser.add_argument("--replace", action="store_true", help="give up an earlier wish that is not granted yet")
    place(parser)


def command(
    *,
    name: str,
    kind: Literal["trace", "memory"],
    steps: int,
    rank: int | None,
    replace: bool,
    context: str | None,
    namespace: str | None,
) -> int:
    """Ask the ranks of a running job of a built-in workload for a profile; training goes on.

    Each writes it into `profile/` of the checkpoint folder, from where `torchyard fetch NAME profile` brings it. One
    wish at a time: while an earlier one is not granted, another is rejected unless --replace is given.
    """
    wish = wish_for(kind, steps, rank)
    if on_cluster(name, context, namespace):
        from torchyard.cli.remote.place import place_flags
        from torchyard.cli.remote.profile import ask_for_profile
        from torchyard.cli.remote.session import ask

        asked = ask(lambda remote: ask_for_profile(remote, name, wish, replace=replace), context, namespace)
        fetch = f"torchyard fetch {name} profile{place_flags(context, namespace)}"
    else:
        asked, fetch = ask_local(name, wish, replace=replace), f"torchyard fetch {name} profile"
    pods = plural(asked, "pod")
    print(f"asked {pods} of {name} for {kind}; `{fetch}` brings it when the steps are made")
    return SUCCEEDED


def ask_local(name: str, wish: str, *, replace: bool = False) -> int:
    """Leave the wish in the run folder of every pod that lives; how many there are.

    Raises:
        RefusalError: nothing runs, what runs is not ours or has no such rank, or an earlier wish would be lost.
    """
    from torchyard.cli.runs import find, load
    from torchyard.cluster.local.folder import is_locked, write_atomic

    folder = find(name)
    run = load(folder)
    refuse_deaf(run.job)
    pods = [pod for pod in sorted(folder.pods.glob("*")) if is_locked(pod / "lock")]
    if run.over or not pods:
        raise run.refusal(name)
    refuse_no_such_rank(run.job, wish)
    if not replace:
        refuse_overwriting(run.job, (left_in(pod / "run") for pod in pods))
    for pod in pods:
        write_atomic(pod / "run" / FILE, wish.encode())
    return len(pods)
