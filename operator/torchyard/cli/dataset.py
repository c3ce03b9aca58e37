"""`torchyard dataset inspect PATH`."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any, Literal

from torchyard.api.figures import plural, span
from torchyard.cli import arguments as common
from torchyard.cli.errors import FAILED, SUCCEEDED, RefusalError


def arguments(parser: ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("action", choices=("inspect",), help="inspect: show what it holds, and look for bad data")
    parser.add_argument("path", metavar="PATH", type=Path, help="folder of a LeRobot dataset, version 2.1 or 3.0")
    common.output(parser, "json", help="print it as one document")


def command(*, action: Literal["inspect"], path: Path, output: Literal["json"] | None) -> int:
    """Show episodes, lengths, features, statistics and problems of a LeRobot dataset.

    All numbers of all frames are checked, and of each camera the first and the last image of every episode is decoded.
    Exit codes: 0 all can be used, 1 there are problems, 65 it is not such a dataset.
    """
    del action
    found = ask(path)
    if output is not None:
        from torchyard.cli.output import emit

        emit(found, output)
    else:
        for line in shown(found):
            print(line)
    return FAILED if found["problemCount"] else SUCCEEDED


def ask(path: Path) -> dict[str, Any]:
    """Return what the trainers say of a dataset; they have the libraries that read it.

    Raises:
        RefusalError: trainers are not installed here, or it is not a dataset.
    """
    import json
    import os
    import subprocess

    from torchyard.cluster.local.interpreter import own_environment, own_python

    command = own_python("-m", "torchyard_trainers", "dataset", str(path.absolute()))
    done = subprocess.run(command, capture_output=True, text=True, env=own_environment(os.environ), check=False)
    if done.returncode == 0:
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer
    said = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
    if "No module named" in said:
        raise RefusalError("trainers are not installed here", "pip install 'torchyard[trainers]'")
    what, _, fix = said.removeprefix("torchyard_trainers: ").partition("; ")
    raise RefusalError(what, fix, done.returncode)


def shown(found: dict[str, Any]) -> list[str]:
    """Return the facts as lines; names of a dataset are those of a stranger."""
    from torchyard.cli.table import lines
    from torchyard.cli.words import clean

    lengths = found["lengths"]
    head = f"LeRobot {clean(found['version'])}, {plural(found['episodes'], 'episode')}"
    text = [
        f"{head}, {found['frames']} frames at {found['fps']:g} per second ({span(found['seconds'])})",
        f"episodes have {lengths['min']} to {lengths['max']} frames, median {lengths['median']:g}",
        *(f"task: {clean(task)}" for task in found["tasks"]),
        "",
    ]
    rows = []
    for name, each in found["features"].items():
        statistics = found["statistics"].get(name, {})
        cells = [_numbers(statistics.get(kind)) for kind in ("min", "mean", "max", "std")]
        rows.append([clean(name), clean(each["dtype"]), "x".join(map(str, each["shape"])), *cells])
    text += lines(("FEATURE", "TYPE", "SHAPE", "MIN", "MEAN", "MAX", "STD"), rows)
    text += [""] + [f"problem: {clean(problem)}" for problem in found["problems"]]
    more = found["problemCount"] - len(found["problems"])
    text += [f"and {more} more problems"] if more else []
    return text if found["problemCount"] else [*text, "no problems"]


def _numbers(values: list[float] | None) -> str:
    """Return the first numbers of a vector."""
    if not values:
        return ""
    return ",".join(f"{each:.3g}" for each in values[:4]) + (",..." if len(values) > 4 else "")
