"""`torchyard fetch NAME PATH -o DIR`."""

import re
import shutil
import tempfile
from argparse import ArgumentParser
from pathlib import Path

from torchyard.api.formatting import plural
from torchyard.api.forms import QUANTITY_PATTERN
from torchyard.api.values import amount
from torchyard.cli import arguments as common
from torchyard.cli.errors import FAILED, SUCCEEDED, RefusalError
from torchyard.cli.fetchable import fetchable, remove
from torchyard.cli.output import say
from torchyard.cli.remote.place import on_cluster, place, place_flags
from torchyard.cli.words import clean, size

MANIFEST = "manifest.json"
MAX_SIZE = "64Gi"


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
    place(parser)


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
    allowed = _bytes(max_size)
    if path is None:
        return _list(name, context, namespace)
    wanted = inside(path)
    target = to if to is not None else Path(wanted.name)
    if Path.cwd().is_relative_to(target.resolve()):  # what is there is removed, and this folder would go with it
        raise RefusalError(f"-o {target} is where you are", f"name a folder in it: -o {target / wanted.name}")
    if not replace and (target.is_file() or (target.is_dir() and any(target.iterdir()))):
        raise RefusalError(f"{target} is there already", "give --replace, or another -o")
    target.parent.mkdir(parents=True, exist_ok=True)
    # In a folder that is ours alone, under a name that nobody can have foreseen and put a link at.
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name[:100]}.", dir=target.parent))
    scratch = folder / target.name
    try:
        if on_cluster(name, context, namespace):
            from torchyard.cli.remote.fetch import fetch
            from torchyard.cli.remote.session import ask
            from torchyard.cli.remote.unpack import Allowance

            ask(lambda remote: fetch(remote, name, wanted, scratch, Allowance(allowed, max_size)), context, namespace)
        else:
            from torchyard.cli.runs import find

            copy(find(name).checkpoints, wanted, scratch, name)
        check(scratch)
        remove(target)
        scratch.rename(target)
    finally:
        remove(folder)
    files = [each for each in target.rglob("*") if each.is_file()] if target.is_dir() else [target]
    count = plural(len(files), "file")
    print(f"{target}: {count}, {size(sum(each.stat().st_size for each in files))}")
    return SUCCEEDED


def _list(name: str, context: str | None, namespace: str | None) -> int:
    """Print what can be fetched, a line each, and the command that fetches it."""
    if on_cluster(name, context, namespace):
        from torchyard.cli.remote.fetch import contents
        from torchyard.cli.remote.session import ask

        found = ask(lambda remote: contents(remote, name), context, namespace)
    else:
        from torchyard.cli.runs import find

        found = fetchable(find(name).checkpoints)
    if not found:
        raise RefusalError(f"{name!r} has written nothing that can be fetched", f"`torchyard status {name}`", FAILED)
    width = max(len(clean(one.path)) for one in found)
    for one in found:
        count = f"  {plural(one.files, 'file')}" if one.is_folder else ""
        print(f"{clean(one.path):<{width}}  {size(one.bytes):>8}{count}")
    say(f"next: torchyard fetch {name} {found[0].path}{place_flags(context, namespace)}")
    return SUCCEEDED


def _bytes(text: str) -> int:
    """Return the bytes of a quantity.

    Raises:
        RefusalError: it is none.
    """
    if re.search(QUANTITY_PATTERN, text) is None or text.endswith("m"):
        raise RefusalError(f"--max-size {text}: not a size", "write it like 500Mi or 64Gi")
    return int(amount(text))


def inside(text: str) -> Path:
    """A path that stays in the checkpoint folder.

    Raises:
        RefusalError: it leaves it.
    """
    path = Path(text)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise RefusalError(f"{text!r} is no path in a checkpoint folder", "write it like export/web")
    return path


def copy(root: Path, wanted: Path, to: Path, name: str) -> None:
    """Copy from a run's folder.

    Raises:
        RefusalError: it is not there.
    """
    source = root / wanted
    if not source.exists():
        raise RefusalError(f"the run {name!r} has no {wanted}", there([one.path for one in fetchable(root)], name))
    if not source.resolve().is_relative_to(root.resolve()):
        raise RefusalError(f"{wanted} of the run {name!r} is a link out of its folder", f"copy {source.resolve()}")
    if source.is_dir():
        shutil.copytree(source, to, symlinks=True)
    else:
        shutil.copyfile(source, to)


def there(found: list[str], name: str) -> str:
    """What to write instead."""
    return f"it has {', '.join(found)}" if found else f"it has written nothing yet: `torchyard status {name}`"


def check(fetched: Path) -> None:
    """Compare an export with its manifest.

    Raises:
        RefusalError: a file is missing or is not what the manifest says.
    """
    import json

    manifest = fetched / MANIFEST
    if not manifest.is_file():
        return
    try:
        files = json.loads(manifest.read_text(encoding="utf-8"))["files"]
        expected = {name: facts["sha256"] for name, facts in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return  # somebody else's manifest
    for name, digest in expected.items():
        path = fetched / inside(name)
        if not path.is_file() or digest_of(path) != digest:
            raise RefusalError(f"{name} is not what its manifest says", "fetch it again, or export it again", FAILED)


def digest_of(path: Path) -> str:
    """SHA-256 of a file of any size."""
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
