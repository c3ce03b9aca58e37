"""Get data from a job: `torchyard fetch NAME PATH`, `profile NAME trace|memory`, `stacks NAME`."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Literal

import msgspec

from torchyard.api.formatting import clean
from torchyard.api.values import plural, size
from torchyard.cli import arguments as common
from torchyard.cli.errors import FAILED, SUCCEEDED, RefusalError
from torchyard.cli.output import emit, say
from torchyard.client.artifacts import MAX_SIZE
from torchyard.client.backend import location_flags
from torchyard.client.profile_request import wish_for
from torchyard.client.ranks import RankStacks, shown


def fetch_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `fetch`."""
    common.run_name(parser)
    parser.add_argument(
        "path",
        metavar="PATH",
        nargs="?",
        help="file or folder below the checkpoint folder, as in export/web or final; without it, list the files",
    )
    parser.add_argument(
        "-o", "--output", dest="to", metavar="DIR", type=Path, help="target path; by default the last part of PATH"
    )
    parser.add_argument("--replace", action="store_true", help="replace an existing target")
    parser.add_argument(
        "--max-size", metavar="SIZE", default=MAX_SIZE, help=f"most data that pods may send (default {MAX_SIZE})"
    )
    common.location_options(parser)


def fetch(
    *,
    name: str,
    path: str | None,
    to: Path | None,
    replace: bool,
    max_size: str,
    context: str | None,
    namespace: str | None,
) -> int:
    """Carry out `torchyard fetch`.

    Copies a file or a folder, such as an export, the final weights or the curves. Without PATH, lists the files and
    folders of the job with their sizes.

    The copy of a folder is complete or does not exist, and files with digests in a manifest are verified. On a cluster,
    the files come from a pod of the job, or from one that only reads its claim. Only regular files and folders are
    accepted, no links, and at most --max-size in total.
    """
    from torchyard.cli.arguments import ask
    from torchyard.client.artifacts import bring

    if path is None:
        return _list(name, context, namespace)
    target = ask(
        lambda backend: bring(backend.fetch, name, path, to, replace=replace, max_size=max_size),
        name,
        context,
        namespace,
    )
    files = [each for each in target.rglob("*") if each.is_file()] if target.is_dir() else [target]
    count = plural(len(files), "file")
    print(f"{target}: {count}, {size(sum(each.stat().st_size for each in files))}")
    return SUCCEEDED


def _list(name: str, context: str | None, namespace: str | None) -> int:
    """Print what can be fetched, a line each, and the command that fetches it."""
    from torchyard.cli.arguments import ask

    found = ask(lambda backend: backend.artifacts(name), name, context, namespace)
    if not found:
        raise RefusalError(f"{name!r} has no files to fetch", f"`torchyard status {name}`", FAILED)
    width = max(len(clean(one.path)) for one in found)
    for one in found:
        count = f"  {plural(one.files, 'file')}" if one.is_folder else ""
        print(f"{clean(one.path):<{width}}  {size(one.bytes):>8}{count}")
    say(f"next: torchyard fetch {name} {found[0].path}{location_flags(context, namespace)}")
    return SUCCEEDED


def profile_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `profile`."""
    common.run_name(parser)
    parser.add_argument(
        "kind", choices=("trace", "memory"), help="a Chrome trace of some steps, or the tensors in memory"
    )
    parser.add_argument("--steps", metavar="N", type=common.natural, default=3, help="steps to record (3)")
    parser.add_argument("--rank", metavar="R", type=common.natural, help="only this rank; by default all ranks")
    parser.add_argument("--replace", action="store_true", help="replace an earlier request that is still pending")
    common.location_options(parser)


def profile(
    *,
    name: str,
    kind: Literal["trace", "memory"],
    steps: int,
    rank: int | None,
    replace: bool,
    context: str | None,
    namespace: str | None,
) -> int:
    """Carry out `torchyard profile`.

    The job must run a built-in workload. Training continues.

    Each rank writes its profile to `profile/` of the checkpoint folder; `torchyard fetch NAME profile` downloads it.
    While a request is pending, another one is rejected unless --replace is given.
    """
    from torchyard.cli.arguments import ask

    wish = wish_for(kind, steps, rank)
    asked = ask(lambda backend: backend.profile(name, wish, replace=replace), name, context, namespace)
    fetch = f"torchyard fetch {name} profile{location_flags(context, namespace)}"
    pods = plural(asked, "pod")
    print(f"asked {pods} of {name} for {kind}; `{fetch}` brings it when the steps are made")
    return SUCCEEDED


def stacks_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `stacks`."""
    common.run_name(parser)
    parser.add_argument("--rank", metavar="R", type=common.natural, help="only this rank")
    common.location_options(parser)
    common.output(parser, "json", "yaml", help="print a list with one object for each rank")


def stacks(
    *,
    name: str,
    rank: int | None,
    context: str | None,
    namespace: str | None,
    output: Literal["json", "yaml"] | None,
) -> int:
    """Carry out `torchyard stacks`.

    Training continues. Python's fault handler writes the stacks, even of a rank that hangs in a collective, a driver or
    a file system.
    """
    from torchyard.cli.arguments import ask

    found = ask(lambda backend: backend.stacks(name), name, context, namespace)
    return print_stacks(name, found, rank, output)


def print_stacks(name: str, found: list[RankStacks], rank: int | None, output: Literal["json", "yaml"] | None) -> int:
    """Print the stacks of all ranks, or of one."""
    chosen = [each for each in sorted(found, key=lambda each: each.rank) if rank is None or each.rank == rank]
    if not chosen:
        who = "no rank of it runs now" if rank is None else f"rank {rank} is not running"
        raise RefusalError(f"{name!r}: {who}", f"`torchyard status {name}` shows its state", FAILED)
    if output is not None:
        emit([msgspec.to_builtins(each) for each in chosen], output)
    else:
        print("\n\n".join(map(shown, chosen)))
    return SUCCEEDED
