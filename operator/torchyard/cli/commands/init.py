"""`torchyard init SCRIPT`: a first job file."""

import os
import shutil
from argparse import ArgumentParser
from pathlib import Path

from torchyard.api.files import write_whole
from torchyard.api.names import SCRIPT_SUFFIX
from torchyard.cli.errors import FAILED, SUCCEEDED, RefusalError
from torchyard.cli.output import say

_FIRST = ("train.py", "main.py", "finetune.py", "pretrain.py")


def init_arguments(parser: ArgumentParser) -> None:
    """Declare the command line of `init`."""
    from torchyard.shipped import examples

    names = sorted(path.stem for path in examples().glob("*.yaml"))
    parser.add_argument(
        "script", metavar="SCRIPT", nargs="?", type=Path, help="script; by default the one of the current folder"
    )
    parser.add_argument("--to", metavar="JOBFILE", type=Path, help="file to write; by default SCRIPT.yaml here")
    parser.add_argument("--example", choices=names, metavar="NAME", help=f"copy an example: {', '.join(names)}")


def init(script: Path | None, to: Path | None, example: str | None) -> int:
    """Carry out `torchyard init`.

    Reads the script (it is not run): its framework, the options of argparse, click, typer, tyro or a dataclass, and
    whether it uses several processes and GPUs. What else a job may need is in the file as comments.

    Exit codes: 0 written, 1 the file exists, 64 invalid.
    """
    if example is not None:
        if script is not None:
            raise RefusalError(f"{script} and --example {example} are given", "omit one of them")
        return _copy(example, to)
    from torchyard.api.names import derived_name
    from torchyard.api.validation.validate import validate_bytes
    from torchyard.client.files import the_job
    from torchyard.client.scaffold.job_file import CHANGE, job_file
    from torchyard.client.scaffold.source import parsed
    from torchyard.client.scaffold.summary import summary_of
    from torchyard.client.scripts import script_name
    from torchyard.local.gpus import has_driver, inventory

    script = script or _only_script(Path())
    if script.suffix != SCRIPT_SUFFIX:
        raise RefusalError(f"{script} is not a Python script", f"give a file that ends with {SCRIPT_SUFFIX}")
    target = to or Path(f"{derived_name(script_name(script))}.yaml")
    _require_free([target])
    summary = summary_of(parsed(script))
    relative = os.path.relpath(script.absolute(), target.absolute().parent)
    text = job_file(relative, script_name(script), summary, len(inventory().uuids) if has_driver() else 0, str(target))
    the_job(validate_bytes(text.encode(), str(target)), str(target))
    _write(target, text)
    say(f"{target}: written; {script} uses {summary.framework}")
    if CHANGE in text:
        say(f"replace {CHANGE} in {target}: the script requires these values")
    say(f"`torchyard run {target}` runs it here; on a cluster it needs an image that has the script (spec.image)")
    return SUCCEEDED


def _only_script(folder: Path) -> Path:
    """Return the script that is meant without a name.

    Raises:
        RefusalError: there is none, or one of several.
    """
    scripts = sorted(folder.glob(f"*{SCRIPT_SUFFIX}"))
    usual = [folder / name for name in _FIRST if (folder / name) in scripts]
    if len(scripts) != 1 and not usual:
        names = ", ".join(each.name for each in scripts[:10])
        what = (
            f"this folder has several scripts ({names})" if scripts else f"this folder has no script (*{SCRIPT_SUFFIX})"
        )
        raise RefusalError(what, "name one: `torchyard init train.py`")
    return usual[0] if usual else scripts[0]


def _copy(name: str, to: Path | None) -> int:
    """Copy an example with the files that it names."""
    from torchyard.shipped import examples

    source = examples() / f"{name}.yaml"
    text = source.read_text(encoding="utf-8")
    first, _, rest = text.partition("\n")
    if first.startswith("# yaml-language-server"):  # a path of the repository
        text = rest
    beside = [each for each in sorted(examples().glob(f"*{SCRIPT_SUFFIX}")) if each.stem in _words(text)]
    target = to or Path(source.name)
    copies = [(each, target.parent / each.name) for each in beside]
    _require_free([target, *(copy for _, copy in copies)])
    _write(target, text)
    for each, copy in copies:
        shutil.copyfile(each, copy)
    say(f"{', '.join(str(each) for each in (target, *(copy for _, copy in copies)))}: written")
    say(f"`torchyard run {target}` runs it here")
    return SUCCEEDED


def _words(text: str) -> set[str]:
    """Return the words of a job file without its comments: `chars:Chars` and `train.py` have that of a module."""
    lines = (line.partition(" #")[0] for line in text.splitlines() if not line.lstrip().startswith("#"))
    return {word for line in lines for word in "".join(c if c.isalnum() or c == "_" else " " for c in line).split()}


def _require_free(paths: list[Path]) -> None:
    for path in paths:
        if os.path.lexists(path):
            raise RefusalError(f"{path} exists", "remove it, or name another file with --to", FAILED)


def _write(path: Path, text: str) -> None:
    try:
        write_whole(path, text)
    except FileExistsError as error:
        raise RefusalError(f"{path} exists", "remove it, or name another file with --to", FAILED) from error
