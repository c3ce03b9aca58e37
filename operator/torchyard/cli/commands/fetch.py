"""`torchyard fetch NAME PATH -o DIR`."""

from argparse import ArgumentParser
from pathlib import Path

from torchyard.api.formatting import clean, plural, size
from torchyard.cli import arguments as common
from torchyard.cli.errors import FAILED, SUCCEEDED, RefusalError
from torchyard.cli.output import say
from torchyard.client.artifacts import MAX_SIZE
from torchyard.client.backend import place_flags


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    common.run_name(parser)
    parser.add_argument(
        "path",
        metavar="PATH",
        nargs="?",
        help="in the job's checkpoint folder: export/web, final, metrics.jsonl; without it, list what there is",
    )
    parser.add_argument(
        "-o", "--output", dest="to", metavar="DIR", type=Path, help="where to put it; by default its own name"
    )
    parser.add_argument("--replace", action="store_true", help="put it in the place of what is there")
    parser.add_argument(
        "--max-size", metavar="SIZE", default=MAX_SIZE, help=f"the most that pods may send (default {MAX_SIZE})"
    )
    common.place(parser)


def command(
    *,
    name: str,
    path: str | None,
    to: Path | None,
    replace: bool,
    max_size: str,
    context: str | None,
    namespace: str | None,
) -> int:
    """Copy a file or a folder of a job here: its export, its final weights, its curves.

    Without PATH, list what can be fetched, with its size.

    A folder's content becomes that of DIR. It appears whole or not at all, and where it has a manifest with digests,
    what came is what was made. On a cluster a pod of the job, or one that only reads its claim, sends it: of what it
    sends, regular files and folders are taken, no links, and no more than --max-size.
    """
    from torchyard.cli.arguments import ask
    from torchyard.client.artifacts import bring

    if path is None:
        return _list(name, context, namespace)
    target = ask(
        lambda backend: bring(backend, name, path, to, replace=replace, max_size=max_size), name, context, namespace
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
        raise RefusalError(f"{name!r} has written nothing that can be fetched", f"`torchyard status {name}`", FAILED)
    width = max(len(clean(one.path)) for one in found)
    for one in found:
        count = f"  {plural(one.files, 'file')}" if one.is_folder else ""
        print(f"{clean(one.path):<{width}}  {size(one.bytes):>8}{count}")
    say(f"next: torchyard fetch {name} {found[0].path}{place_flags(context, namespace)}")
    return SUCCEEDED
