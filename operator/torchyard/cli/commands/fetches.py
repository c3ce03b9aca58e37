"""`--fetch PATH=TARGET` of `run` and `submit`: files of a job that are downloaded when it has succeeded."""

import json
from argparse import ArgumentTypeError
from pathlib import Path
from typing import NamedTuple

from torchyard.api.files import read_regular
from torchyard.cli import arguments as common
from torchyard.cli.errors import RefusalError
from torchyard.cli.output import say
from torchyard.client.artifacts import MANIFEST, MAX_MANIFEST_BYTES, inside
from torchyard.client.artifacts import Fetch as FetchOne
from torchyard.client.errors import TorchYardError

LISTED = 3


class Fetch(NamedTuple):
    """What is downloaded, and to which path."""

    path: str
    to: Path


def declare(parser: common.Parser) -> None:
    """--fetch PATH=TARGET, repeatable."""
    parser.add_argument(
        "--fetch",
        dest="fetches",
        metavar="PATH=TARGET",
        type=_fetch,
        action="append",
        default=[],
        help="when the job has succeeded, download this of its files, as in --fetch export/web=web/public",
    )


def require_free(fetches: list[Fetch]) -> None:
    """Check that no download would replace anything but an earlier export: before the job starts, not hours later.

    Raises:
        RefusalError: a target holds other files.
    """
    for each in fetches:
        if not each.to.exists():
            continue
        if Path.cwd().is_relative_to(each.to.resolve()):
            raise RefusalError(f"--fetch: {each.to} is the current folder", f"name a folder inside it: {each.to}/out")
        other = [each.to.name] if not each.to.is_dir() else _not_exported(each.to)
        if other:
            more = f" and {len(other) - LISTED} more" if len(other) > LISTED else ""
            what = f"--fetch: {each.to} has files that no export wrote: {', '.join(other[:LISTED])}{more}"
            raise RefusalError(what, "name a new path, or move them away")


async def bring_all(fetch: FetchOne, name: str, fetches: list[Fetch]) -> None:
    """Download what was asked for, one after the other, and verify it.

    Raises:
        TorchYardError: the job has no such path, or it is damaged.
    """
    from torchyard.client.artifacts import bring

    for each in fetches:
        target = await bring(fetch, name, each.path, each.to, replace=True)
        say(f"fetched {each.path} to {target}")


def _not_exported(folder: Path) -> list[str]:
    """Return the files in a folder that the manifest of an export does not list."""
    try:
        listed = {MANIFEST, *json.loads(read_regular(folder / MANIFEST, MAX_MANIFEST_BYTES))["files"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        listed = set[str]()
    paths = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    return sorted(path for path in paths if path not in listed)


def _fetch(text: str) -> Fetch:
    path, equals, to = text.partition("=")
    try:
        wanted = inside(path)
    except TorchYardError as error:
        raise ArgumentTypeError(str(error)) from None
    if equals and not to:
        raise ArgumentTypeError(f"{text!r} names no target; write it like export/web=web/public")
    return Fetch(path, Path(to) if to else Path(wanted.name))
